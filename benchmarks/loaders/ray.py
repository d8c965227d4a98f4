"""Ray: actors that load, for Ray Data's blocks hold tables, and not every batch here is one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import ray
from ray.util import ActorPool

from benchmarks.batches import Batches
from benchmarks.loaders import only_spawns
from benchmarks.works import Dataset, Work

as_array = np.asarray


class Loader:
    """What runs in an actor."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches

    def load(self, number: int) -> Any:
        """One batch."""
        return self._batches[number]


class Epochs:
    """An ordered map over a pool of actors, each of which is there twice: so it has one task ahead."""

    def __init__(self, batches: Batches, num_workers: int, keep: bool) -> None:
        self._numbers = range(len(batches))
        self._num_workers = num_workers
        self._keep = keep
        self._batches = ray.put(batches)
        self._actors = self._start()

    def __iter__(self) -> Iterator[Any]:
        pool: Any = ActorPool(2 * self._actors)
        yield from pool.map(lambda actor, number: actor.load.remote(number), self._numbers)
        if not self._keep:
            self._actors = self._start()

    def _start(self) -> list[Any]:
        restarted = ray.remote(max_restarts=-1, max_task_retries=-1)(Loader)
        return [restarted.remote(self._batches) for _ in range(self._num_workers)]


def open_loader(dataset: Dataset, work: Work, num_workers: int) -> Iterable[Any]:
    """Its workers are fresh interpreters, and daemons come with them."""
    only_spawns(work)
    ray.init(num_cpus=num_workers, include_dashboard=False, log_to_driver=False)
    return Epochs(Batches(dataset, work), num_workers, work.persistent_workers)
