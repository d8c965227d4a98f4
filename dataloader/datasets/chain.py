"""Several streams, one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from dataloader.datasets.base import IterableDataset, T_co


class ChainDataset(IterableDataset[T_co]):
    """Several streams, one after the other; the next is begun when the one before it has ended.

    Parameters:
        datasets: whatever can be iterated, anew each epoch. Each shards itself between workers.

    Raises:
        TypeError: ``datasets``, or one of them, cannot be iterated.

    >>> list(ChainDataset(["ab", range(2)]))
    ['a', 'b', 0, 1]
    """

    def __init__(self, datasets: Iterable[Any]) -> None:
        self.datasets = list(datasets)
        for i, dataset in enumerate(self.datasets):
            if not hasattr(dataset, "__iter__"):
                raise TypeError(f"datasets[{i}]={dataset!r} cannot be iterated: give an IterableDataset")

    def __iter__(self) -> Iterator[T_co]:
        return chain.from_iterable(self.datasets)

    def __len__(self) -> int:
        """The sum of their lengths. Raises TypeError where one has none."""
        return sum(len(dataset) for dataset in self.datasets)
