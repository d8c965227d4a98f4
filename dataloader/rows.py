"""Large arrays of samples, written into the batch as each sample is made.

    sample 0: image ---> row 0 of the batch's array, and the sample has a view of it instead
    sample 1: image ---> row 1 ...

Stacked at the end, all samples of a batch would be alive at once, each in fresh memory and out of the caches
by then: for decoded images that costs a tenth of the time or more. What is collated are the views. Where they
are all the rows of one array, in order, the array is the batch, and nothing is copied again. Where they are
not (a sample was skipped, or is of another shape), they are arrays like others.

Only arrays that are a sample, or lie directly in a tuple, list or dict that is one; and only for
``default_collate``, whose user never sees the samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_
from typing import Any

import numpy as np

from dataloader.arena import Arena

ROW_BYTES = 1 << 14  # at least; smaller ones are better copied in one go


class Rows:
    """The rows of one batch. This class is for NumPy's arrays.

    Parameters:
        count: how many samples there are to be.
        arena: where the batch's arrays are to lie.

    Attributes:
        is_open: whether another sample may bring a row: not if the first has brought none.

    >>> rows = Rows(2, None)
    >>> samples = [rows.put(i, (np.full(8192, i), i)) for i in range(2)]
    >>> rows.whole([image for image, _ in samples])[:, 0]
    array([0, 1])
    """

    __slots__ = ("_columns", "arena", "count", "is_open")

    def __init__(self, count: int, arena: Arena | None) -> None:
        self.is_open = count > 1
        self.count = count
        self.arena = arena
        self._columns: dict[Any, tuple[Any, list[Any]]] = {}  # by key in the sample: the array, its rows

    def put(self, position: int, sample: Any) -> Any:
        """Return ``sample`` with its large arrays moved to row ``position``."""
        kind = type(sample)
        if kind is tuple or kind is list:
            sample = kind([self._put(position, key, value) for key, value in enumerate(sample)])
        elif kind is dict:
            sample = {key: self._put(position, key, value) for key, value in sample.items()}
        else:
            sample = self._put(position, None, sample)
        self.is_open = bool(self._columns)
        return sample

    def _put(self, position: int, key: Any, value: Any) -> Any:
        if not self.takes(value):
            return value
        column = self._columns.get(key)
        if column is None:
            if position:
                return value  # a column begins with the first sample, or not at all
            column = self._columns[key] = self.new_array(value), []
        array, rows = column
        if array.dtype != value.dtype or array.shape[1:] != value.shape:
            return value
        row = array[position]
        row[...] = value
        rows.append(row)
        return row

    def takes(self, value: Any) -> bool:
        """Whether ``value`` may be a row: a large array, of a type that stacking does not change."""
        if type(value) is not np.ndarray or value.nbytes < ROW_BYTES:
            return False
        return value.dtype.kind in "biufc" and value.dtype.isnative

    def new_array(self, first: Any) -> Any:
        """Return an array of rows like ``first``, in the arena if there is room."""
        shape, room = (self.count, *first.shape), self.room_for(first)
        return np.empty(shape, first.dtype) if room is None else np.ndarray(shape, first.dtype, buffer=room)

    def room_for(self, first: Any) -> memoryview | None:
        """Return memory for rows like ``first``, None where there is none."""
        return None if self.arena is None else self.arena.take(self.count * first.nbytes)

    def whole(self, arrays: Sequence[Any]) -> Any:
        """Return the array of which ``arrays`` are all the rows, in order; None if there is none."""
        for array, rows in self._columns.values():
            if len(rows) == len(array) == len(arrays) and all(map(is_, rows, arrays)):
                return array
        return None


class NoRows(Rows):
    """Of a batch whose user sees the samples."""

    __slots__ = ()

    def __init__(self, count: int = 0, arena: Arena | None = None) -> None:
        super().__init__(0, arena)
