"""A function over the samples of a dataset."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dataloader.datasets.base import T_co
from dataloader.datasets.fetching import DerivedDataset, checked_map_style, fetch, fetch_all


class MappedDataset(DerivedDataset[T_co]):
    """The samples of ``dataset``, each passed through ``function`` when it is asked for.

    Parameters:
        dataset: a map-style dataset.
        function: takes a sample, and returns what is to come in its place.

    Raises:
        TypeError: ``dataset`` is none, or ``function`` cannot be called.

    >>> shouted = MappedDataset(["a", "b"], str.upper)
    >>> len(shouted), shouted[1]
    (2, 'B')
    """

    def __init__(self, dataset: Any, function: Callable[[Any], T_co]) -> None:
        if not callable(function):
            raise TypeError(f"function={function!r} cannot be called: give a function of a sample")
        self.dataset = checked_map_style("dataset", dataset)
        self.function = function

    @property
    def sources(self) -> tuple[Any]:
        return (self.dataset,)

    def __getitem__(self, index: Any) -> T_co:
        return self.function(fetch(self.dataset, index))

    def __getitems__(self, indices: Sequence[Any]) -> list[T_co]:
        """Return several samples, by the dataset's ``__getitems__`` where it has one."""
        return [self.function(sample) for sample in fetch_all(self.dataset, indices)]

    def __len__(self) -> int:
        return len(self.dataset)
