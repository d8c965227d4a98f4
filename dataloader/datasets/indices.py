"""Indices as datasets take them."""

from __future__ import annotations

from typing import Any

import numpy as np


def checked_position(index: int, length: int) -> int:
    """Return which sample of ``length`` is meant: a negative index counts from the end.

    Raises IndexError where there is none.

    >>> checked_position(-1, length=5)
    4
    """
    if not -length <= index < length:
        raise IndexError(f"index {index}: the dataset has {length} samples")
    return index % length


def plain(index: Any) -> Any:
    """Return ``index``; a number of NumPy's as one of Python's, which every dataset takes."""
    return index.item() if isinstance(index, np.generic) else index
