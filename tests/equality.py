"""Whether two batches are the same: types, dtypes, shapes and bytes, not just values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any

import numpy as np


def fingerprint(batch: Any) -> Any:
    """Return what is equal for equal batches, byte for byte, and for no others.

    >>> fingerprint([1]) == fingerprint((1,)), fingerprint(np.zeros(1)) == fingerprint(np.array([-0.0]))
    (False, False)
    """
    if isinstance(batch, np.ndarray):
        content = batch.tolist() if batch.dtype.hasobject else batch.tobytes()
        return ("array", type(batch), batch.dtype.descr, batch.shape, content)
    if isinstance(batch, Mapping):
        return (type(batch), [(key, fingerprint(field)) for key, field in batch.items()])
    if isinstance(batch, list | tuple):
        return (type(batch), [fingerprint(field) for field in batch])
    if is_dataclass(batch):
        return (type(batch), fingerprint(vars(batch)))
    return (type(batch), batch)
