"""Samplers: in which order a loader asks for samples.

Their iterators are made of C iterators alone. An exception out of a signal handler then cannot strike inside
one: a generator would be ended by it, and its epoch with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from itertools import islice, repeat, takewhile
from typing import Any

import numpy as np


class SequentialSampler:
    """Indices 0, 1, 2 ... of ``data_source``.

    >>> list(SequentialSampler("abc"))
    [0, 1, 2]
    """

    def __init__(self, data_source: Sized) -> None:
        self.data_source = data_source

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source)))

    def __len__(self) -> int:
        return len(self.data_source)


class RandomSampler:
    """Every index of ``data_source`` once, in an order that depends on ``seed`` and the epoch alone.

    >>> sampler = RandomSampler("abcd", seed=1)
    >>> sorted(sampler), list(sampler) == list(sampler)
    ([0, 1, 2, 3], True)
    """

    def __init__(self, data_source: Sized, seed: int) -> None:
        self.data_source = data_source
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Let the next iterator give the order of ``epoch``."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        generator = np.random.Generator(np.random.Philox([self.seed, self.epoch]))
        return iter(generator.permutation(len(self.data_source)).tolist())

    def __len__(self) -> int:
        return len(self.data_source)


class BatchSampler:
    """Lists of ``batch_size`` consecutive indices of ``sampler``; the last may be shorter, or is dropped.

    >>> list(BatchSampler(range(5), batch_size=2, drop_last=False))
    [[0, 1], [2, 3], [4]]
    >>> list(BatchSampler(range(5), batch_size=2, drop_last=True))
    [[0, 1], [2, 3]]
    """

    def __init__(self, sampler: Iterable[Any], batch_size: int, drop_last: bool) -> None:
        self.sampler = sampler
        self.batch_size = batch_size
        self.drop_last = drop_last

    def __iter__(self) -> Iterator[list[Any]]:
        indices = iter(self.sampler)
        if self.drop_last:
            return map(list, zip(*[indices] * self.batch_size, strict=False))
        return takewhile(bool, map(list, map(islice, repeat(indices), repeat(self.batch_size))))

    def __len__(self) -> int:
        samples = len(self.sampler)  # type: ignore[arg-type]
        return samples // self.batch_size if self.drop_last else -(-samples // self.batch_size)
