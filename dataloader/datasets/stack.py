"""Several datasets, side by side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from dataloader.datasets.fetching import DerivedDataset, checked_map_style, fetch, fetch_all


class StackDataset(DerivedDataset[Any]):
    """Several datasets of the same length, side by side: a sample has one of each.

    Parameters:
        args: map-style datasets: a sample is a tuple.
        kwargs: the same by name: a sample is a dict.

    Raises:
        ValueError: none is given, or some of both kinds, or their lengths differ.
        TypeError: one has no ``__len__``.

    >>> StackDataset("abc", [1, 2, 3])[0], StackDataset(letter="abc", number=[1, 2, 3])[-1]
    (('a', 1), {'letter': 'c', 'number': 3})
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if bool(args) == bool(kwargs):
            raise ValueError(
                f"{len(args)} datasets without a name and {len(kwargs)} with one: give at least one dataset, "
                "all without a name (a sample is a tuple) or all with one (a sample is a dict)"
            )
        self.datasets: tuple[Any, ...] | dict[str, Any] = args or kwargs
        named = kwargs.items() if kwargs else ((f"args[{i}]", dataset) for i, dataset in enumerate(args))
        lengths = {name: len(checked_map_style(name, dataset)) for name, dataset in named}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"lengths {lengths} differ: give datasets of the same length")

    @property
    def sources(self) -> Iterable[Any]:
        return self.datasets.values() if isinstance(self.datasets, dict) else self.datasets

    def __getitem__(self, index: Any) -> Any:
        return self._sample([fetch(dataset, index) for dataset in self.sources])

    def __getitems__(self, indices: Sequence[Any]) -> list[Any]:
        """Return several samples, by the datasets' ``__getitems__`` where they have one."""
        columns = [fetch_all(dataset, indices) for dataset in self.sources]
        return [self._sample(parts) for parts in zip(*columns, strict=True)]

    def _sample(self, parts: Sequence[Any]) -> Any:
        if isinstance(self.datasets, dict):
            return dict(zip(self.datasets, parts, strict=True))
        return tuple(parts)

    def __len__(self) -> int:
        return len(next(iter(self.sources)))
