"""The least time that a work can take on so many cores, whatever the loader."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.works import Collate, Dataset, Work

#: Stands in the place of a loader's name.
NAME = "floor"


def duration_s(work: Work, num_workers: int) -> float:
    """Seconds for an epoch of nothing but the copy, or the samples, on all cores that take part."""
    cores = min(num_workers, len(os.sched_getaffinity(0)))
    dataset = work.dataset(work.samples, np.asarray)
    return _copies_s(dataset, work, cores) if work.floor == "copy" else _samples_s(dataset, work) / cores


def _samples_s(dataset: Dataset, work: Work) -> float:
    # A collate_fn of the user's own is as much a part of the work as the samples are.
    collate: Collate = work.collate_fn or list

    def load(number: int) -> None:
        first = number * work.batch_size
        collate([dataset[index] for index in range(first, first + work.batch_size)])

    load(0)
    started_s = time.perf_counter()
    for number in range(work.batches):
        load(number)
    return time.perf_counter() - started_s


def _copies_s(dataset: Dataset, work: Work, cores: int) -> float:
    # Into memory that is warm, by threads: a copy does not hold the GIL.
    samples = [_arrays(dataset[index]) for index in range(work.batch_size)]
    batch = [np.stack(column) for column in zip(*samples, strict=True)]

    def copy(first: int) -> None:
        for index in range(first, work.samples, cores):
            for target, array in zip(batch, _arrays(dataset[index]), strict=True):
                np.copyto(target[index % work.batch_size], array)

    with ThreadPoolExecutor(cores) as pool:
        started_s = time.perf_counter()
        list(pool.map(copy, range(cores)))
        return time.perf_counter() - started_s


def _arrays(sample: Any) -> list[NDArray[Any]]:
    return [*sample.values()] if isinstance(sample, dict) else [sample]
