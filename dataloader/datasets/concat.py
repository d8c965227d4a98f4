"""Several datasets, one after the other."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

from dataloader.datasets.base import T_co
from dataloader.datasets.fetching import DerivedDataset, checked_map_style, fetch, fetch_all
from dataloader.datasets.indices import checked_position


class ConcatDataset(DerivedDataset[T_co]):
    """Several datasets, one after the other.

    Parameters:
        datasets: map-style datasets, at least one. Their lengths are taken now.

    Raises:
        ValueError: there are none.
        TypeError: one has no ``__len__``.

    A negative index counts from the end; one out of range raises IndexError.

    >>> both = ConcatDataset(["abc", "de"])
    >>> len(both), both[3], both[-1]
    (5, 'd', 'e')
    """

    def __init__(self, datasets: Iterable[Any]) -> None:
        self.datasets = [checked_map_style(f"datasets[{i}]", dataset) for i, dataset in enumerate(datasets)]
        if not self.datasets:
            raise ValueError("datasets=[]: give at least one dataset")
        self.cumulative_sizes = list(accumulate(len(dataset) for dataset in self.datasets))

    @property
    def sources(self) -> list[Any]:
        return self.datasets

    def __getitem__(self, index: int) -> T_co:
        dataset, rest = self._find(index)
        sample: T_co = fetch(self.datasets[dataset], rest)
        return sample

    def __getitems__(self, indices: Sequence[int]) -> list[T_co]:
        """Return several samples, by the datasets' ``__getitems__`` where they have one."""
        places = [self._find(index) for index in indices]
        samples: dict[int, T_co] = {}
        for number, dataset in enumerate(self.datasets):
            positions = [i for i, place in enumerate(places) if place[0] == number]
            fetched = fetch_all(dataset, [places[i][1] for i in positions])
            samples.update(zip(positions, fetched, strict=True))
        return [samples[i] for i in range(len(places))]

    def _find(self, index: int) -> tuple[int, int]:
        """Return which dataset has it, and under which index."""
        position = checked_position(index, len(self))
        dataset = bisect_right(self.cumulative_sizes, position)
        return dataset, position - (self.cumulative_sizes[dataset - 1] if dataset else 0)

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]
