"""Meta's SPDL: a pipeline with a stage in worker processes, for Python code that holds the GIL."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
from spdl.pipeline import PipelineBuilder

from benchmarks.batches import Batches, load, receive
from benchmarks.works import Dataset, Work

as_array = np.asarray


class Epochs:
    """Its own loader for map-style datasets cannot keep workers: a pipeline on one's own executor can."""

    def __init__(self, batches: Batches, work: Work, num_workers: int) -> None:
        self._batches = batches
        self._work = work
        self._num_workers = num_workers
        self._executor = self._start()

    def __iter__(self) -> Iterator[Any]:
        pipeline = (
            PipelineBuilder()
            .add_source(range(len(self._batches)))
            .pipe(load, executor=self._executor, concurrency=self._num_workers, output_order="input")
            .add_sink(2 * self._num_workers)
            .build(num_threads=1)
        )
        with pipeline.auto_stop():
            yield from pipeline
        if not self._work.persistent_workers:
            self._executor.shutdown()
            self._executor = self._start()

    def _start(self) -> ProcessPoolExecutor:
        context = multiprocessing.get_context(self._work.start_method)
        return ProcessPoolExecutor(self._num_workers, context, receive, (self._batches,))


def open_loader(dataset: Dataset, work: Work, num_workers: int) -> Iterable[Any]:
    """The executor is the standard library's, and so is its default start method."""
    return Epochs(Batches(dataset, work), work, num_workers)
