"""MPIRE: an ordered map over a pool of processes that share the dataset."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from mpire import WorkerPool

from benchmarks.batches import Batches
from benchmarks.works import Dataset, Work

as_array = np.asarray


class Epochs:
    """One map for each epoch, with at most two batches ahead for each worker, as MPIRE has it by default."""

    def __init__(self, pool: WorkerPool, batches: int) -> None:
        self._pool = pool
        self._numbers = range(batches)

    def __iter__(self) -> Iterator[Any]:
        yield from self._pool.imap(Batches.__getitem__, self._numbers, chunk_size=1)


def open_loader(dataset: Dataset, work: Work, num_workers: int) -> Iterable[Any]:
    """Its default start method is fork."""
    pool = WorkerPool(
        num_workers,
        shared_objects=Batches(dataset, work),
        start_method=work.start_method or "fork",
        keep_alive=work.persistent_workers,
    )
    return Epochs(pool, work.batches)
