"""What code in a worker can learn about that worker."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np


@dataclass(frozen=True)
class WorkerRandom:
    """Random generators of a worker's own, which nothing sets anew: what is drawn depends on the worker.

    Each is made when it is asked for, lest every replacement of a worker take a millisecond longer.

    Parameters:
        seed: of both.
    """

    seed: int

    @cached_property
    def random_generator(self) -> random.Random:
        """Python's."""
        return random.Random(self.seed)

    @cached_property
    def numpy_generator(self) -> np.random.Generator:
        """NumPy's."""
        return np.random.default_rng(self.seed)


@dataclass(frozen=True)
class WorkerInfo:
    """One worker, as seen from inside it.

    Parameters:
        id: 0 to num_workers - 1; a replacement has its predecessor's.
        num_workers: how many there are.
        seed: the loader's plus ``id``: different in every worker. ``worker_init_fn`` runs with it.
        dataset: this worker's copy of the dataset.
        rng: generators seeded with ``seed``.
    """

    id: int
    num_workers: int
    seed: int
    dataset: Any
    rng: WorkerRandom


_info: WorkerInfo | None = None
_was_asked = False


def get_worker_info() -> WorkerInfo | None:
    """Return what this worker is, None in a process that is no worker.

    >>> get_worker_info() is None
    True
    >>> from dataloader import DataLoader
    >>> with DataLoader([7], collate_fn=lambda _: get_worker_info().num_workers, num_workers=1) as loader:
    ...     list(loader)
    [1]
    """
    note_asked()
    return _info


def note_asked() -> None:
    """Take note that somebody has asked which worker this is, here or elsewhere."""
    global _was_asked
    _was_asked = True


def was_asked() -> bool:
    """Whether anybody has, since this process is a worker: a stream may be one of several, and know it."""
    return _was_asked


def become_worker(id: int, num_workers: int, loader_seed: int, dataset: Any) -> WorkerInfo:
    """Let ``get_worker_info`` say from now on which worker this process is."""
    global _info, _was_asked
    seed = (loader_seed + id) % 2**64
    _info, _was_asked = WorkerInfo(id, num_workers, seed, dataset, WorkerRandom(seed)), False
    return _info


def is_worker() -> bool:
    """Whether this process is a worker."""
    return _info is not None
