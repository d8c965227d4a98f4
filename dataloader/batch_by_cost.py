"""Batches of as many samples as a budget allows: of tokens, of frames, of pixels.

What is drawn from the sampler is kept until its batch is given, and a batch is given by a single store: an
exception out of the cost function, or out of a signal handler, loses no index (see samplers).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from numbers import Real
from typing import Any, Literal, get_args

from dataloader.datasets.rows import by_row
from dataloader.intake import Intake
from dataloader.interrupts import is_interrupt
from dataloader.samplers import EpochSampler, checked_count, checked_flag, iterate

Oversized = Literal["raise", "alone", "skip"]
Cost = Callable[[Any], float]


class BatchByCost(EpochSampler):
    """Lists of consecutive indices of ``sampler``, each as long as its cost stays within ``budget``.

    Given to a loader as ``batch_sampler``, it is drawn from as batches are needed, and the loader's seed
    decides the order of a random ``sampler`` of ours.

    Parameters:
        sampler: gives indices.
        cost: of a sample, a number of at least 0: a function of its index, or a sequence or mapping of costs
            by index. Its length, say: it must be known without loading the sample.
        budget: what a batch may cost, above 0.
        padded: samples are padded to the dearest of their batch: the batch costs their number times that.
            Otherwise it costs their sum.
        max_size: how many indices a batch may have at most; None: any number.
        drop_last: leave out the last batch, unless it is full: of ``budget`` or of ``max_size``.
        oversized: what becomes of a sample that alone costs more than ``budget``: "raise" ValueError (the
            next batch goes on after it), "alone": it comes as a batch of its own, or "skip" it.

    It has no length: how many batches there are depends on the order. ``num_items`` tells how many samples.

    Raises:
        ValueError, TypeError: naming the argument and what to write instead. By ``next()``: a sample is
            oversized, or ``cost`` gives no number of at least 0.

    >>> words = ["a", "of", "to", "supervisor", "in", "data"]
    >>> list(BatchByCost(range(6), lambda index: len(words[index]), budget=10))
    [[0, 1, 2], [3], [4, 5]]
    >>> list(BatchByCost(range(4), [2, 2, 3, 3], budget=6, padded=True))
    [[0, 1], [2, 3]]
    """

    def __init__(
        self,
        sampler: Iterable[Any],
        cost: Any,
        budget: float,
        *,
        padded: bool = False,
        max_size: int | None = None,
        drop_last: bool = False,
        oversized: Oversized = "raise",
    ) -> None:
        self.sampler = sampler
        self.cost = _checked_cost(cost)
        self.budget = _checked_budget(budget)
        self.padded = checked_flag("padded", padded)
        self.max_size = None if max_size is None else checked_count("max_size", max_size, least=1)
        self.drop_last = checked_flag("drop_last", drop_last)
        if oversized not in get_args(Oversized):
            raise ValueError(f"oversized={oversized!r}: give 'raise', 'alone' or 'skip'")
        self.oversized = oversized

    def iterate(self, seed: int, epoch: int) -> Iterator[list[Any]]:
        """Return the batches of one epoch: see SeededSampler."""
        return _Batches(self, iterate(self.sampler, seed, epoch))

    def __iter__(self) -> Iterator[list[Any]]:
        return _Batches(self, iter(self.sampler))

    @property
    def num_items(self) -> int:
        """How many indices its batches have together.

        Raises TypeError where that depends on the order, or ``sampler`` has no length.
        """
        if self.drop_last or self.oversized == "skip":
            option = "drop_last=True" if self.drop_last else "oversized='skip'"
            raise TypeError(f"{option}: how many samples are left depends on the order")
        return len(self.sampler)  # type: ignore[arg-type]

    def size_of(self, costs: Iterable[float]) -> tuple[int, bool]:
        """Return how many of the samples that have these ``costs`` make a batch, and whether it is full.

        It is full if the next does not fit, or nothing is left of the budget. It has one sample at least.
        """
        size, total, dearest = 0, 0.0, 0.0
        for cost in costs:
            total, dearest = total + cost, max(dearest, cost)
            price = (size + 1) * dearest if self.padded else total
            if size and price > self.budget:
                return size, True
            size += 1
            if size == self.max_size or price >= self.budget:
                return size, True
        return size, False


class BucketSampler(EpochSampler):
    """The indices of ``sampler``, those of each bucket sorted by cost: batches need less padding.

    A bucket is ``bucket_size`` consecutive indices. Buckets go up and down in turn, so that a batch at the
    border of two has samples of similar cost too.

    Parameters:
        sampler: gives indices.
        cost: as that of ``BatchByCost``.
        bucket_size: how many indices a bucket has, at least 1: some batches, say 20. Larger buckets need less
            padding, and leave less to chance.

    Raises:
        ValueError, TypeError: naming the argument and what to write instead. By ``next()``: ``cost`` gives no
            number of at least 0.

    >>> list(BucketSampler(range(6), [3, 1, 2, 5, 6, 4], bucket_size=3))
    [1, 2, 0, 4, 3, 5]
    """

    def __init__(self, sampler: Iterable[Any], cost: Any, bucket_size: int) -> None:
        self.sampler = sampler
        self.cost = _checked_cost(cost)
        self.bucket_size = checked_count("bucket_size", bucket_size, least=1)

    def iterate(self, seed: int, epoch: int) -> Iterator[Any]:
        """Return the indices of one epoch: see SeededSampler."""
        return _Sorted(self, iterate(self.sampler, seed, epoch))

    def __iter__(self) -> Iterator[Any]:
        return _Sorted(self, iter(self.sampler))

    def __len__(self) -> int:
        return len(self.sampler)  # type: ignore[arg-type]


class _Ahead:
    """Indices that are drawn and not given yet, and what they cost, as far as it was asked for."""

    def __init__(self, indices: Iterator[Any], cost: Cost) -> None:
        self._intake = Intake(indices)
        self._cost = cost
        self.indices: list[Any] = []
        self.costs: list[float] = []

    def reach(self, count: int) -> bool:
        """Draw until there are ``count``; return whether there are.

        An index whose cost cannot be told is dropped as that is raised.
        """
        self._intake.draw(self.indices, max(0, count - len(self.indices)))
        while len(self.costs) < len(self.indices):
            try:
                self.costs.append(self._cost(self.indices[len(self.costs)]))
            except Exception as error:
                if not is_interrupt(error):
                    del self.indices[len(self.costs)]
                raise
        return len(self.indices) >= count

    def each(self) -> Iterator[float]:
        """Give the costs, drawing as they are asked for."""
        position = 0
        while self.reach(position + 1):
            yield self.costs[position]
            position += 1


class _Batches:
    """Gives the batches of a BatchByCost."""

    def __init__(self, sampler: BatchByCost, indices: Iterator[Any]) -> None:
        self._sampler = sampler
        self._ahead = _Ahead(indices, _cost_function(sampler.cost))

    def __iter__(self) -> Iterator[list[Any]]:
        return self

    def __next__(self) -> list[Any]:
        ahead, sampler = self._ahead, self._sampler
        while True:
            size, is_full = sampler.size_of(ahead.each())
            if not size or (sampler.drop_last and not is_full):
                raise StopIteration
            batch, indices, costs = ahead.indices[:size], ahead.indices[size:], ahead.costs[size:]
            is_wanted = ahead.costs[0] <= sampler.budget or sampler.oversized == "alone"
            error = None if is_wanted else _oversized(batch[0], ahead.costs[0], sampler.budget)
            ahead.indices, ahead.costs = indices, costs  # no call from here on: see delivery
            if is_wanted:
                return batch
            if sampler.oversized == "raise":
                assert error is not None
                raise error


class _Sorted:
    """Gives the indices of a BucketSampler."""

    def __init__(self, sampler: BucketSampler, indices: Iterator[Any]) -> None:
        self._ahead = _Ahead(indices, _cost_function(sampler.cost))
        self._size = sampler.bucket_size
        self._bucket: list[Any] = []
        self._given = 0
        self._descending = True

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._given == len(self._bucket):
            self._fill()
        index = self._bucket[self._given]
        self._given += 1  # no call from here on: see delivery
        return index

    def _fill(self) -> None:
        ahead, descending = self._ahead, not self._descending
        ahead.reach(self._size)
        if not ahead.indices:
            raise StopIteration
        order = sorted(range(len(ahead.costs)), key=ahead.costs.__getitem__, reverse=descending)
        bucket = [ahead.indices[i] for i in order]
        self._bucket, self._given, self._descending = bucket, 0, descending
        ahead.indices, ahead.costs = [], []


def _oversized(index: Any, cost: float, budget: float) -> ValueError:
    return ValueError(
        f"sample {index!r} alone costs {cost:g}, more than budget={budget:g}: give a larger budget, or "
        "oversized='alone' or 'skip'"
    )


# ---- arguments -----------------------------------------------------------------------------------


def _checked_cost(cost: Any) -> Any:
    if not callable(cost) and not hasattr(cost, "__getitem__"):
        raise TypeError(f"cost={cost!r}: give a function of an index, or a sequence of costs")
    return cost


def _checked_budget(budget: Any) -> float:
    if not isinstance(budget, Real) or isinstance(budget, bool):
        raise TypeError(f"budget={budget!r}: give a number above 0")
    if not 0 < budget < math.inf:  # type: ignore[operator]
        raise ValueError(f"budget={budget!r}: give a number above 0")
    return budget  # type: ignore[return-value]


def _cost_function(cost: Any) -> Cost:
    """Return a function of an index, whose results are checked."""
    give = cost if callable(cost) else by_row(cost).__getitem__
    return lambda index: _checked_number(give(index), index)


def _checked_number(cost: Any, index: Any) -> float:
    if isinstance(cost, str | bytes) or not hasattr(cost, "__float__"):
        raise TypeError(f"sample {index!r} costs {cost!r}: let cost give a number of at least 0")
    if not 0 <= float(cost) < math.inf:
        raise ValueError(f"sample {index!r} costs {cost!r}: let cost give a number of at least 0")
    return float(cost)
