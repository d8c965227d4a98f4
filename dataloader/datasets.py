"""Datasets: what a loader loads from."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, Generic, TypeVar

T_co = TypeVar("T_co", covariant=True)


class Dataset(Generic[T_co]):
    """A map-style dataset: samples by index, and a length.

    Subclassing is a convenience: whatever has ``__getitem__`` and ``__len__`` will do, a list too.

    >>> class Squares(Dataset[int]):
    ...     def __len__(self):
    ...         return 4
    ...     def __getitem__(self, index):
    ...         return index * index
    >>> Squares()[3]
    9
    """

    def __getitem__(self, index: Any) -> T_co:
        raise NotImplementedError(f"{type(self).__name__} must define __getitem__(index)")


class IterableDataset(Dataset[T_co]):
    """A dataset that is a stream of samples. DataLoader does not take one yet: NotImplementedError."""

    def __iter__(self) -> Iterator[T_co]:
        raise NotImplementedError(f"{type(self).__name__} must define __iter__()")


class Subset(Dataset[T_co]):
    """Those samples of ``dataset`` that ``indices`` name, in that order.

    Parameters:
        dataset: anything with ``__getitem__``.
        indices: a sequence of what ``dataset`` takes as an index; one may come several times.

    >>> Subset("abcdef", [5, 0])[0]
    'f'
    """

    def __init__(self, dataset: Any, indices: Sequence[Any]) -> None:
        self.dataset = dataset
        self.indices = indices

    def __getitem__(self, index: Any) -> T_co:
        sample: T_co = self.dataset[self.indices[index]]
        return sample

    def __getitems__(self, indices: Iterable[Any]) -> list[T_co]:
        """Return several samples, by the dataset's ``__getitems__`` where it has one."""
        return fetch_all(self.dataset, [self.indices[index] for index in indices])

    def __len__(self) -> int:
        return len(self.indices)


class ConcatDataset(Dataset[T_co]):
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
        self.datasets = list(datasets)
        if not self.datasets:
            raise ValueError("datasets=[]: give at least one dataset")
        for i, dataset in enumerate(self.datasets):
            if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
                raise TypeError(f"datasets[{i}]={dataset!r} has no __len__: give map-style datasets")
        self.cumulative_sizes = list(accumulate(len(dataset) for dataset in self.datasets))

    def __getitem__(self, index: int) -> T_co:
        dataset, rest = self._find(index)
        sample: T_co = self.datasets[dataset][rest]
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
        length = len(self)
        if not -length <= index < length:
            raise IndexError(f"index {index}: the datasets have {length} samples together")
        position = index % length
        dataset = bisect_right(self.cumulative_sizes, position)
        return dataset, position - (self.cumulative_sizes[dataset - 1] if dataset else 0)

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]


def loads_together(dataset: Any) -> bool:
    """Whether ``dataset``, or one that it is a part or a chain of, has a ``__getitems__`` of its own.

    A subset, torch's too, has one only to pass it on: where there is nothing behind it, samples are loaded
    one by one, and each can be told from the others when it fails.

    >>> loads_together(Subset(range(10), [1, 2]))
    False
    """
    if isinstance(dataset, ConcatDataset):
        return any(map(loads_together, dataset.datasets))
    if isinstance(dataset, Subset) or _is_torch_subset(dataset):
        return loads_together(dataset.dataset)
    return callable(getattr(dataset, "__getitems__", None))


def _is_torch_subset(dataset: Any) -> bool:
    kind = type(dataset)
    return kind.__name__ == "Subset" and kind.__module__.startswith("torch.utils.data")


def fetch_all(dataset: Any, indices: Sequence[Any]) -> list[Any]:
    """Return the samples at ``indices``, by ``dataset.__getitems__`` where it has one."""
    if not hasattr(dataset, "__getitems__"):
        return [dataset[index] for index in indices]
    if not len(indices):
        return []
    samples = dataset.__getitems__(indices)
    if len(samples) != len(indices):
        raise ValueError(
            f"{type(dataset).__name__}.__getitems__ gave {len(samples)} samples for {len(indices)} indices"
        )
    return list(samples)
