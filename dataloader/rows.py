"""Large arrays of samples, written into the batch as each sample is made.

    sample 0: image ---> row 0 of the batch's array, and the sample has a view of it instead
    sample 1: image ---> row 1 ...

Stacked at the end, all samples of a batch would be alive at once, each in fresh memory and out of the caches
by then: for decoded images that costs a tenth of the time or more. What is collated are the views. Where they
are all the rows of one array, in order, the array is the batch, and nothing is copied again. Where they are
not (a sample was skipped, or is of another shape), they are arrays like others.

Only arrays that are a sample, or lie directly in a tuple, list or dict that is one; and only for
``default_collate``, whose user never sees the samples.

A worker that makes a piece of a batch writes its samples into their rows likewise, of arrays for all of the
batch. Workers that make other pieces may write into the same slot: each into its own rows, if they all agree
what rows there are (see Arena).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from operator import is_
from typing import Any

import numpy as np

from dataloader.arena import ALIGNMENT_BYTES, SMALL_BYTES, Arena

ROW_BYTES = 1 << 14  # at least; smaller ones are better copied in one go


class Rows:
    """The rows of one batch. This class is for NumPy's arrays.

    Parameters:
        count: how many samples the batch has.
        arena: where the batch's arrays are to lie.
        piece_start: position of the first sample of the piece that is made; None: all of them are.

    Attributes:
        is_open: whether another sample may bring a row: not if the first has brought none.

    >>> rows = Rows(2, None)
    >>> samples = [rows.put(i, (np.full(8192, i), i)) for i in range(2)]
    >>> rows.whole([image for image, _ in samples])[:, 0]
    array([0, 1])
    """

    __slots__ = ("_columns", "_start", "arena", "count", "is_open")

    plain: frozenset[type] = frozenset({int, float, bool, complex, str, bytes, np.ndarray})

    def __init__(self, count: int, arena: Arena | None, piece_start: int | None = None) -> None:
        self.is_open = count > 1
        self.count = count
        self.arena = arena
        self._start = piece_start
        self._columns: dict[Any, tuple[Any, list[Any]]] = {}  # by key in the sample: the array, its rows

    def put(self, position: int, sample: Any) -> Any:
        """Return ``sample`` with its large arrays moved to row ``position``."""
        if position == (self._start or 0):
            self._begin(sample)
        kind = type(sample)
        if kind is tuple or kind is list:
            sample = kind([self._put(position, key, value) for key, value in enumerate(sample)])
        elif kind is dict:
            sample = {key: self._put(position, key, value) for key, value in sample.items()}
        else:
            sample = self._put(position, None, sample)
        self.is_open = bool(self._columns)
        return sample

    def _begin(self, first: Any) -> None:
        """Make room for rows like those of the first sample: what brings none there brings none later."""
        large = [(key, value) for key, value in _parts(first) if self.takes(value)]
        if self._start is not None and large and self.arena is not None:
            self._agree(large, self.arena)
        for key, value in large:
            self._columns[key] = self.new_array(value), []

    def _agree(self, large: Sequence[tuple[Any, Any]], arena: Arena) -> None:
        """Have room for the rows of all pieces, in which each piece finds them at the same place."""
        text = repr((self.count, [(key, str(value.dtype), tuple(value.shape)) for key, value in large]))
        wanted_bytes = sum(self.count * value.nbytes + ALIGNMENT_BYTES for _, value in large)
        arena.agree(hashlib.blake2b(text.encode(), digest_size=8).digest(), wanted_bytes)

    def _put(self, position: int, key: Any, value: Any) -> Any:
        column = self._columns.get(key)
        if column is None or not self.takes(value):
            return value
        array, rows = column
        if array.dtype != value.dtype or array.shape[1:] != value.shape:
            return value
        row = array[position]
        row[...] = value
        rows.append(row)
        return row

    def takes(self, value: Any) -> bool:
        """Whether ``value`` may be a row: a large array, of a type that stacking does not change."""
        if type(value) is not np.ndarray or value.nbytes < self.least_bytes:
            return False
        return value.dtype.kind in "biufc" and value.dtype.isnative

    @property
    def least_bytes(self) -> int:
        """Of a row. In a piece, what is smaller travels inline."""
        return ROW_BYTES if self._start is None else SMALL_BYTES

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

    @classmethod
    def are_plain(cls, samples: Sequence[Any]) -> bool:
        """Whether samples are what they are in every process: no object of the user's is among them."""
        kinds = {*map(type, samples)}
        nested = kinds & _CONTAINERS
        if not all(kind in cls.plain or issubclass(kind, np.generic) for kind in kinds - nested):
            return False
        if np.ndarray in kinds and not all(cls.travels(one) for one in samples if type(one) is np.ndarray):
            return False
        return all(map(cls._holds_plain, (sample for sample in samples if type(sample) in nested)))

    @classmethod
    def _holds_plain(cls, sample: Any) -> bool:
        if type(sample) is not dict:
            return cls.are_plain(sample)
        return {*map(type, sample)} <= cls.plain and cls.are_plain([*sample.values()])

    @classmethod
    def travels(cls, array: Any) -> bool:
        """Whether a batch of arrays is made of them as they arrive, which is without gaps."""
        return True


_CONTAINERS = {tuple, list, dict}


def _parts(sample: Any) -> Iterable[tuple[Any, Any]]:
    """Return what a sample holds that may be a row, and under which key."""
    kind = type(sample)
    if kind is tuple or kind is list:
        return enumerate(sample)
    return sample.items() if kind is dict else [(None, sample)]


class NoRows(Rows):
    """Of a batch whose user sees the samples."""

    __slots__ = ()

    def __init__(self, count: int = 0, arena: Arena | None = None, piece_start: int | None = None) -> None:
        super().__init__(0, arena)
