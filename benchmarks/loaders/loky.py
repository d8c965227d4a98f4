"""Loky, the pool of joblib: an executor, and as many batches ahead as one asks for."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from loky import get_reusable_executor

from benchmarks.batches import Batches, load, receive
from benchmarks.loaders import only_spawns
from benchmarks.works import Dataset, Work

as_array = np.asarray


class Epochs:
    """Two batches ahead for each worker: all of an epoch at once might not fit into memory."""

    def __init__(self, batches: Batches, num_workers: int, keep: bool) -> None:
        self._batches = batches
        self._num_workers = num_workers
        self._keep = keep

    def __iter__(self) -> Iterator[Any]:
        executor = get_reusable_executor(self._num_workers, initializer=receive, initargs=(self._batches,))
        ahead: deque[Any] = deque()
        for number in range(len(self._batches)):
            ahead.append(executor.submit(load, number))
            if len(ahead) > 2 * self._num_workers:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
        if not self._keep:
            executor.shutdown()


def open_loader(dataset: Dataset, work: Work, num_workers: int) -> Iterable[Any]:
    """Its workers are fresh interpreters."""
    only_spawns(work)
    return Epochs(Batches(dataset, work), num_workers, work.persistent_workers)
