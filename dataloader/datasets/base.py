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
    """A dataset that is a stream of samples. Subclass it, and define ``__iter__``, and ``__len__`` if known.

    Each worker iterates a copy of its own, anew in each epoch: ``get_worker_info()`` tells it which share to
    give. An ``__iter__`` gives the same each time it is called in one epoch: after a worker's death another
    goes on with its stream, by ``state_dict()`` and ``load_state_dict()`` where the dataset or its iterator
    has them, and else by drawing again what had been drawn.

    >>> from dataloader import DataLoader, get_worker_info
    >>> class Squares(IterableDataset[int]):
    ...     def __iter__(self):
    ...         info = get_worker_info()
    ...         first, step = (0, 1) if info is None else (info.id, info.num_workers)
    ...         return (number * number for number in range(first, 6, step))
    >>> list(DataLoader(Squares(), batch_size=4, collate_fn=list))
    [[0, 1, 4, 9], [16, 25]]
    """

    def __iter__(self) -> Iterator[T_co]:
        raise NotImplementedError(f"{type(self).__name__} must define __iter__()")
