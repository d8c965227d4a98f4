"""Datasets and collate functions for tests with torch, importable by fresh worker processes."""

from __future__ import annotations

import os
import random
import time
from collections import namedtuple
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, Sampler, get_worker_info


class SeldomDrawing(Dataset[Any]):
    """Draws in few samples; collating draws in few batches too."""

    def __len__(self) -> int:
        return 3000

    def __getitem__(self, index: int) -> Any:
        if index % 1000 == 700:
            return index, torch.rand(1).item()
        if index == 1950:
            with torch.random.fork_rng():
                return index, torch.rand(1).item()
        return index, torch.initial_seed() if index == 2950 else random.random() if index == 2951 else 0


def seldom_drawing_collate(samples: list[Any]) -> list[Any]:
    return [*samples, torch.rand(1).item()] if samples[0][0] % 640 == 512 else samples


class Counting(Dataset[int]):
    """Sample ``index`` is ``index``."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        return index


class Augmented(Counting):
    """Draws from all three global generators."""

    def __getitem__(self, index: int) -> Any:
        crop = torch.randint(9, (2,))
        noise = torch.rand(200, 100) + np.random.random()
        return {"noise": noise, "crop": crop, "flip": random.random(), "index": index}


class Failing(Counting):
    """Has no samples."""

    def __getitem__(self, index: int) -> Any:
        raise NotImplementedError


class Slow(Counting):
    """Sample 2 takes a while."""

    def __getitem__(self, index: int) -> int:
        time.sleep(0.4 if index == 2 else 0)
        return index


Point = namedtuple("Point", ["x", "y"])


class Listed(list[Any]):
    """A list of the user's own."""


class Mapped(dict[str, Any]):
    """A dict of the user's own."""


class Mixed(Counting):
    """One of everything that ``default_collate`` takes."""

    def __getitem__(self, index: int) -> Any:
        return {
            "tensor": torch.full((3,), float(index)),
            "large": torch.full((100, 100), index, dtype=torch.int32),
            "array": np.full((2, 3), index),
            "scalars": (np.float32(index), np.int16(index), np.bool_(index % 2)),
            "point": Point(index, str(index)),
            "nested": {"int": index, "float": index / 3, "bool": index > 3, "bytes": b"x" * index},
            "list": [index, [index]],
            "own": Listed([Mapped(x=index), Mapped(x=-index)]),
        }


class InWorker(Counting):
    """Every sample says what code in a worker sees."""

    started: tuple[int, int] | None = None

    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        assert info is not None
        assert info.dataset is self
        with_threads = torch.get_num_threads()
        seen = (info.id, info.num_workers, info.seed, os.getpid(), with_threads, self.started)
        return (*seen, sorted(os.sched_getaffinity(0)))


def start(worker: int) -> None:
    """Be the ``worker_init_fn`` of InWorker."""
    info: Any = get_worker_info()
    info.dataset.started = (worker, torch.initial_seed())
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


class Bulk(Counting):
    """Loads all samples of a list at once."""

    def __getitem__(self, index: Any) -> Any:
        return torch.as_tensor(index)


class BulkSampler(Sampler[list[int]]):
    """Gives lists of indices."""

    def __iter__(self) -> Iterator[list[int]]:
        return iter([[3, 1], [2], [0, 4, 5]])


def stacked_by_torch(samples: list[Any]) -> Any:
    """Collate with torch's own function, wherever it is called from."""
    batch = torch.utils.data.default_collate(samples)
    assert not batch["noise"].is_shared()
    return batch
