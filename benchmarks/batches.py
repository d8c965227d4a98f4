"""A dataset whose items are whole batches: for what maps a function over numbers and knows no batches."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.works import Collate, Dataset, Work


class Batches:
    """Batch ``number``, in order and collated; numpy arrays, where the work leaves the choice."""

    def __init__(self, dataset: Dataset, work: Work) -> None:
        self._dataset = dataset
        self._batch_size = work.batch_size
        self._collate: Collate = work.collate_fn or stack

    def __len__(self) -> int:
        return len(self._dataset) // self._batch_size

    def __getitem__(self, number: int) -> Any:
        first = number * self._batch_size
        return self._collate([self._dataset[index] for index in range(first, first + self._batch_size)])


def stack(samples: list[Any]) -> Any:
    """The usual collation: one array in the place of each number or array of a sample."""
    first = samples[0]
    if isinstance(first, dict):
        return {key: stack([sample[key] for sample in samples]) for key in first}
    if isinstance(first, tuple):
        return [stack(list(column)) for column in zip(*samples, strict=True)]
    return np.stack(samples) if isinstance(first, np.ndarray) else np.array(samples)


_received: Batches


def receive(batches: Batches) -> None:
    """What a worker of a pool does once: keep its batches, so that a task is only a number."""
    global _received
    _received = batches


def load(number: int) -> Any:
    """A task: the batch of that number, out of those that this worker has received."""
    return _received[number]
