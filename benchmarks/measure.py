"""The measuring process: opens one loader on one work and holds the clock."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

from benchmarks import floor
from benchmarks.catalog import load_adapter, load_work
from benchmarks.digest import digest
from benchmarks.jobs import Job, Measurement, Problem
from benchmarks.killing import killing
from benchmarks.loaders import Adapter, CannotError
from benchmarks.stopwatch import Stopwatch, pss_bytes
from benchmarks.works import Work

_POINTS = 50

OpenLoader = Callable[[], Iterable[Any]]


def main(job: str) -> None:
    """Print the measurement of a job, or why there is none."""
    print(json.dumps(asdict(_outcome(Job(**json.loads(job))))))


def _outcome(job: Job) -> Measurement | Problem:
    try:
        return _of_job(job)
    except ModuleNotFoundError as error:
        return Problem("missing", f"{error.name} is not installed")
    except CannotError as error:
        return Problem("cannot", str(error))
    except Exception as error:
        traceback.print_exc()
        return Problem("failed", f"{type(error).__name__}: {error}")


def _of_job(job: Job) -> Measurement:
    work = load_work(job.work)
    work = work.shortened() if job.quick else work
    if job.loader == floor.NAME:
        return Measurement(floor.duration_s(work, job.num_workers), work.batches, work.samples)
    return _of_loader(load_adapter(job.loader), work, job.num_workers)


def _of_loader(adapter: Adapter, work: Work, num_workers: int) -> Measurement:
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
    clock = time.perf_counter
    with killing(loader, work.kill_every_s):
        watch = Stopwatch(loader)
        arrivals = [clock() for _ in range(work.epochs) for _ in loader]
        duration_s, cpu = watch.stop(loader)
    if len(arrivals) != work.epochs * work.batches:
        raise RuntimeError(f"{len(arrivals)} batches came instead of {work.epochs * work.batches}")
    step = -(-work.batches // _POINTS)
    return Measurement(
        duration_s,
        len(arrivals),
        len(arrivals) * work.batch_size,
        digest=fingerprint,
        cpu=cpu,
        pss_bytes=pss_bytes(),
        arrivals_s=[arrival - watch.started_s for arrival in arrivals[step - 1 : work.batches : step]],
    )


def _cold_first_batch(open_loader: OpenLoader, work: Work) -> Measurement:
    watch = Stopwatch()
    # Both names keep the workers until their CPU time is read.
    loader = open_loader()
    batches = iter(loader)
    batch = next(batches)
    duration_s, cpu = watch.stop(loader)
    return Measurement(duration_s, 1, work.batch_size, digest=digest([batch]), cpu=cpu, pss_bytes=pss_bytes())


def _warm_first_batch(open_loader: OpenLoader, work: Work) -> Measurement:
    loader = open_loader()
    fingerprint = digest(loader)
    watch = Stopwatch(loader)
    batches = iter(loader)
    next(batches)
    duration_s, cpu = watch.stop(loader)
    return Measurement(duration_s, 1, work.batch_size, digest=fingerprint, cpu=cpu, pss_bytes=pss_bytes())
