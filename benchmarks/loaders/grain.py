"""Google's Grain: batches of a map-style dataset, prefetched by worker processes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import grain
import numpy as np

from benchmarks.loaders import only_spawns
from benchmarks.works import Dataset, Work

as_array = np.asarray


class Epochs:
    """Grain starts workers for each iterator: to keep them its users iterate once, over repeated epochs."""

    def __init__(self, repeated: Iterable[Any], batches: int) -> None:
        self._repeated = iter(repeated)
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        return islice(self._repeated, self._batches)


def open_loader(dataset: Dataset, work: Work, num_workers: int) -> Iterable[Any]:
    """Without threads in the workers, as its documentation wants it for what is in memory."""
    only_spawns(work)
    batches = grain.MapDataset.source(dataset).batch(work.batch_size, batch_fn=work.collate_fn)
    if work.persistent_workers:
        return Epochs(_prefetched(batches.repeat(), num_workers), work.batches)
    return _prefetched(batches, num_workers)


def _prefetched(batches: Any, num_workers: int) -> Iterable[Any]:
    in_memory = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    workers = grain.MultiprocessingOptions(num_workers=num_workers, per_worker_buffer_size=2)
    prefetched: Iterable[Any] = batches.to_iter_dataset(in_memory).mp_prefetch(workers)
    return prefetched
