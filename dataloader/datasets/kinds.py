"""Which kind a dataset is of."""

from __future__ import annotations

import sys
from typing import Any

from dataloader.datasets.base import IterableDataset


def is_iterable(dataset: Any) -> bool:
    """Whether ``dataset`` is a stream: an IterableDataset, torch's too, or what has only an ``__iter__``.

    >>> is_iterable(IterableDataset()), is_iterable({1, 2}), is_iterable([1, 2])
    (True, True, False)
    """
    if isinstance(dataset, IterableDataset) or _is_torch_iterable(dataset):
        return True
    has_indices = hasattr(dataset, "__getitem__") or hasattr(dataset, "__getitems__")
    return hasattr(dataset, "__iter__") and not hasattr(dataset, "__next__") and not has_indices


def _is_torch_iterable(dataset: Any) -> bool:
    torch = sys.modules.get("torch.utils.data")
    return torch is not None and isinstance(dataset, torch.IterableDataset)
