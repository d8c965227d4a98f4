"""No loader at all: the loop that one would write without one, in one process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from benchmarks.works import Collate, Dataset, Work

as_array = np.asarray


class InProcess:
    """Loads each batch when it is asked for."""

    def __init__(self, dataset: Dataset, batch_size: int, collate: Collate) -> None:
        self._dataset = dataset
        self._batch_size = batch_size
        self._collate = collate

    def __iter__(self) -> Iterator[Any]:
        for first in range(0, len(self._dataset), self._batch_size):
            indices = range(first, min(first + self._batch_size, len(self._dataset)))
            yield self._collate([self._dataset[index] for index in indices])


def open_loader(dataset: Dataset, work: Work, num_workers: int) -> Iterable[Any]:
    """The number of workers makes no difference here."""
    return InProcess(dataset, work.batch_size, work.collate_fn or _stack)


def _stack(samples: list[Any]) -> Any:
    if isinstance(samples[0], tuple):
        return [_stack(list(column)) for column in zip(*samples, strict=True)]
    return np.stack(samples) if isinstance(samples[0], np.ndarray) else np.array(samples)
