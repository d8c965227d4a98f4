"""Iterable datasets for tests, importable by fresh worker processes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from dataloader import IterableDataset, get_worker_info

Sample = tuple[int, float, float]


def shard(length: int) -> range:
    """Return the numbers below ``length`` that are this worker's."""
    info = get_worker_info()
    return range(length) if info is None else range(info.id, length, info.num_workers)


@dataclass
class Numbers(IterableDataset[Sample]):
    """Numbers, shared out between workers, each with random numbers drawn on the way."""

    length: int

    def __iter__(self) -> Iterator[Sample]:
        for number in shard(self.length):
            yield number, random.random(), float(np.random.rand())


@dataclass
class StatefulNumbers(Numbers):
    """The same, and knows where it is."""

    position: int = 0

    def __iter__(self) -> Iterator[Sample]:
        mine = shard(self.length)
        while self.position < len(mine):
            self.position += 1
            yield mine[self.position - 1], random.random(), float(np.random.rand())
        self.position = 0

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state["position"]


class OwnIterator(IterableDataset[Sample]):
    """The same; its iterators know where they are, and go on after an exception."""

    def __init__(self, length: int, raises_at: tuple[int, ...] = ()) -> None:
        self.length = length
        self.raises_at = raises_at

    def __iter__(self) -> NumbersIterator:
        return NumbersIterator(self)


class NumbersIterator:
    def __init__(self, dataset: OwnIterator) -> None:
        self.mine = shard(dataset.length)
        self.raises_at = dataset.raises_at
        self.position = 0

    def __iter__(self) -> NumbersIterator:
        return self

    def __next__(self) -> Sample:
        if self.position == len(self.mine):
            raise StopIteration
        self.position += 1
        number = self.mine[self.position - 1]
        if number in self.raises_at:
            raise LookupError(number)
        return number, random.random(), float(np.random.rand())

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state["position"]


@dataclass
class Lengths(IterableDataset[int]):
    """Stream i gives ``lengths[i]`` numbers, from 100 * i on. ``before``, if any, is called before each."""

    lengths: tuple[int, ...]
    before: Callable[[int], Any] | None = None

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        stream = 0 if info is None else info.id
        for number in range(100 * stream, 100 * stream + self.lengths[stream]):
            if self.before is not None:
                self.before(number)
            yield number


class StatefulLengths(Lengths):
    """The same, and knows where it is."""

    position = 0

    def __iter__(self) -> Iterator[int]:
        mine = list(super().__iter__())
        while self.position < len(mine):
            self.position += 1
            yield mine[self.position - 1]
        self.position = 0

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state["position"]


@dataclass
class Unshared(IterableDataset[int]):
    """Every worker gives all of it."""

    length: int

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.length))

    def __len__(self) -> int:
        return self.length
