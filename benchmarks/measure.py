"""The measuring process: opens one loader on one work and holds the clock."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

import psutil

from benchmarks.catalog import load_adapter, load_work
from benchmarks.digest import digest
from benchmarks.jobs import Job, Measurement, Problem
from benchmarks.killing import killing
from benchmarks.loaders import Adapter, CannotError
from benchmarks.works import Work

OpenLoader = Callable[[], Iterable[Any]]


def main(job: str) -> None:
    """Print the measurement of a job, or why there is none."""
    print(json.dumps(asdict(_outcome(Job(**json.loads(job))))))


def _outcome(job: Job) -> Measurement | Problem:
    try:
        adapter, work = load_adapter(job.loader), load_work(job.work)
    except ModuleNotFoundError as error:
        return Problem("missing", f"{error.name} is not installed")
    try:
        return _measure(adapter, work.shortened() if job.quick else work, job.num_workers)
    except CannotError as error:
        return Problem("cannot", str(error))


def _measure(adapter: Adapter, work: Work, num_workers: int) -> Measurement:
    dataset = work.dataset(work.samples, adapter.as_array)

    def open_loader() -> Iterable[Any]:
        return adapter.open_loader(dataset, work, num_workers)

    measures = {
        "epochs": _epochs,
        "cold first batch": _cold_first_batch,
        "warm first batch": _warm_first_batch,
    }
    return measures[work.measures](open_loader, work)


def _epochs(open_loader: OpenLoader, work: Work) -> Measurement:
    loader = open_loader()
    # The warm-up: workers start, memory is touched, and batches are checked while no clock runs.
    fingerprint = digest(loader)
    with killing(loader, work.kill_every_s):
        watch = Stopwatch()
        batches = sum(1 for _ in range(work.epochs) for _ in loader)
        duration_s, cpu_s = watch.stop()
    if batches != work.epochs * work.batches:
        raise RuntimeError(f"{batches} batches came instead of {work.epochs * work.batches}")
    return Measurement(duration_s, cpu_s, batches, batches * work.batch_size, fingerprint)


def _cold_first_batch(open_loader: OpenLoader, work: Work) -> Measurement:
    watch = Stopwatch()
    # Both names keep the workers until their CPU time is read.
    loader = open_loader()
    batches = iter(loader)
    batch = next(batches)
    duration_s, cpu_s = watch.stop()
    return Measurement(duration_s, cpu_s, 1, work.batch_size, digest([batch]))


def _warm_first_batch(open_loader: OpenLoader, work: Work) -> Measurement:
    loader = open_loader()
    fingerprint = digest(loader)
    watch = Stopwatch()
    batches = iter(loader)
    next(batches)
    duration_s, cpu_s = watch.stop()
    return Measurement(duration_s, cpu_s, 1, work.batch_size, fingerprint)


class Stopwatch:
    """Wall clock and CPU time of this process and its descendants, from construction on."""

    def __init__(self) -> None:
        # Looking for descendants costs more CPU time than many a batch: before the start, and after the stop.
        self._descendants_s = _descendants_s()
        self._own_s = time.process_time()
        self._started_s = time.perf_counter()

    def stop(self) -> tuple[float, float]:
        """Seconds that have passed, and seconds of CPU that were used."""
        duration_s = time.perf_counter() - self._started_s
        own_s = time.process_time() - self._own_s
        return duration_s, own_s + _descendants_s() - self._descendants_s


def _descendants_s() -> float:
    # The living, one by one: persistent workers are not reaped before the end.
    return sum(_process_s(process.pid) for process in psutil.Process().children(recursive=True))


def _process_s(pid: int) -> float:
    # The kernel's CPU clock of a process (clock_getcpuclockid); /proc counts in hundredths of a second.
    try:
        return time.clock_gettime(~pid << 3 | 2)
    except OSError:
        return 0.0  # It has ended since it was listed.
