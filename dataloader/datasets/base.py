"""What a dataset is: samples by index, or a stream of them."""

from __future__ import annotations

from collections.abc import Iterator
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
