"""Runs loaders and holds the clock, and ends in time whatever the samples do.

    one worker, probed            what samples and batches cost
    1, 2, 4 ... workers, plain    the throughput, and the memory of a worker
    no worker, plain              last: only now are samples loaded in this process

Each run has its share of the time that is left, and need not use it up. An alarm ends what is late: a wait
for a batch, or a sample in this process; what was seen until then counts.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import psutil

from dataloader.arguments import usable_cores
from dataloader.bench.figures import (
    BatchFigures,
    Machine,
    Measured,
    Point,
    SampleFigures,
    batch_figures,
    sample_figures,
    slots_in_flight,
    warm_up,
)
from dataloader.bench.probe import Journal
from dataloader.bench.subject import Subject
from dataloader.bench.target import TargetError
from dataloader.supervised import SupervisedLoader
from supervisor import memory_cgroup
from supervisor.cgroup import cpu_quota
from supervisor.memory import UNREADABLE

MAX_NOTED_SAMPLES = 20_000
ENOUGH_S, ENOUGH_BATCHES = 3.0, 20  # after the warm-up: a run that has had both is over
PUNCTUAL = 0.9  # of its share a run ends by itself; the alarm is for what does not
LEAST_SHARE_S = 0.1


@dataclass(frozen=True)
class Bounds:
    """What a measurement may take.

    Parameters:
        seconds: all runs together.
        samples: each run; None: as many as there is time for.
        step_s: seconds that the loop takes for each batch, as training would.
    """

    seconds: float
    samples: int | None = None
    step_s: float = 0.0


def measure(
    subject: Subject, numbers: Sequence[int], bounds: Bounds, tell: Callable[[str], None] = lambda doing: None
) -> Measured:
    """Measure ``subject`` with each of these numbers of workers. Only in the main thread: it sets an alarm.

    Parameters:
        tell: is told what is done next.

    Raises:
        TargetError: an epoch had no batch.
        Exception: what a sample raises, or a WorkerDiedError.
    """
    machine, end_s = this_machine(), time.monotonic() + bounds.seconds
    order = sorted(numbers, key=lambda number: (number == 0, number))
    tell("samples, one by one")
    samples, batch = _measure_samples(subject, bounds, _share_s(end_s, len(order) + 1))
    points = []
    for done, number in enumerate(order):
        tell(f"num_workers={number}")
        points.append(_measure_point(subject, number, bounds, _share_s(end_s, len(order) - done)))
    return Measured(machine, samples, batch, tuple(sorted(points, key=lambda point: point.num_workers)))


def this_machine() -> Machine:
    """Return what there is for this process now."""
    cgroup = memory_cgroup.find(os.getpid())
    tightest = None if cgroup is None else cgroup.tightest()
    limit_bytes = None if tightest is None else tightest.limit_bytes()
    available_bytes = psutil.virtual_memory().available
    return Machine(
        cores=usable_cores(os.sched_getaffinity(0), cpu_quota()),
        load=os.getloadavg()[0],
        available_bytes=available_bytes if limit_bytes is None else min(available_bytes, limit_bytes),
    )


def _share_s(end_s: float, runs: int) -> float:
    return max(LEAST_SHARE_S, (end_s - time.monotonic()) / runs)


# ---- runs ----------------------------------------------------------------------------------------


def _measure_samples(
    subject: Subject, bounds: Bounds, share_s: float
) -> tuple[SampleFigures | None, BatchFigures | None]:
    most = min(bounds.samples or MAX_NOTED_SAMPLES, MAX_NOTED_SAMPLES)
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(Path(folder) / "journal")
        loader = subject.loader(1, journal)
        _Run(loader, subject.name).go(share_s, most)
        stats = loader.stats()
        samples, batches = journal.read()
    return sample_figures(samples), batch_figures(samples, batches, stats.bytes, stats.batches)


def _measure_point(subject: Subject, num_workers: int, bounds: Bounds, share_s: float) -> Point:
    loader = subject.loader(num_workers)
    run = _Run(loader, subject.name, bounds.step_s)
    run.go(share_s, bounds.samples)
    return run.point()


class Mark(NamedTuple):
    """When a batch had come, and the CPU time of this thread then."""

    at_s: float
    cpu_s: float


class _Run:
    """Iterates a loader, epoch after epoch, and looks at the clock after each batch.

    Parameters:
        step_s: seconds to sleep after each batch.
    """

    def __init__(self, loader: SupervisedLoader, name: str, step_s: float = 0.0) -> None:
        self._loader, self._name, self._step_s = loader, name, step_s
        self._slots = slots_in_flight(loader.num_workers, loader.prefetch_factor)
        self._first_s: float | None = None
        self._worker_bytes: int | None = None
        self._marks: list[Mark] = []

    def go(self, share_s: float, most_samples: int | None) -> None:
        """Run until time is up or so many samples have come, and end the workers."""
        end_s = time.monotonic() + PUNCTUAL * share_s
        try:
            call_within(share_s, lambda: self._iterate(end_s, most_samples))
            self._worker_bytes = _largest_own_bytes(self._loader)
        finally:
            self._loader.close()

    def _iterate(self, end_s: float, most_samples: int | None) -> None:
        start_s, marks = time.monotonic(), self._marks
        while True:
            before = len(marks)
            for _ in cast(Iterable[Any], self._loader):
                if self._first_s is None:
                    self._first_s = time.monotonic() - start_s
                if self._step_s:
                    time.sleep(self._step_s)
                marks.append(Mark(time.monotonic(), time.thread_time()))
                if marks[-1].at_s >= end_s or self._has_enough(most_samples):
                    return
            if len(marks) == before:
                raise TargetError(f"{self._name} gave no sample: there is nothing to measure")

    def _has_enough(self, most_samples: int | None) -> bool:
        marks, warm = self._marks, self._slots
        if len(marks) >= warm + ENOUGH_BATCHES and marks[-1].at_s - marks[warm].at_s >= ENOUGH_S:
            return True
        if most_samples is None or len(marks) <= max(1, self._loader.num_workers):
            return False
        return self._loader.stats().samples >= most_samples

    def point(self) -> Point:
        """Return what was seen."""
        stats, num_workers = self._loader.stats(), self._loader.num_workers
        counted = self._marks[warm_up(num_workers, self._slots, len(self._marks)) - 1 :]
        batches = max(0, len(counted) - 1)
        point = Point(num_workers, self._first_s, worker_bytes=self._worker_bytes)
        if not batches:
            return point
        first, last = counted[0], counted[-1]
        return replace(
            point,
            batches=batches,
            samples=batches * stats.samples / stats.batches,
            elapsed_s=last.at_s - first.at_s,
            consumer_s=last.cpu_s - first.cpu_s + batches * self._step_s,
        )


def _largest_own_bytes(loader: SupervisedLoader) -> int | None:
    own_bytes = [_own_bytes(worker.pid) for worker in loader.workers()]
    return max((size for size in own_bytes if size is not None), default=None)


def _own_bytes(pid: int) -> int | None:
    try:
        return int(psutil.Process(pid).memory_full_info().uss)
    except UNREADABLE:
        return None


# ---- an end in time ------------------------------------------------------------------------------


class _OutOfTimeError(BaseException):
    """Time is up. No Exception, so that no sample catches it."""


def call_within(seconds: float, function: Callable[[], None]) -> bool:
    """Call ``function``; return False if it had to be ended after ``seconds``.

    >>> call_within(0.01, lambda: time.sleep(60)), call_within(60, lambda: None)
    (False, True)
    """
    before = signal.signal(signal.SIGALRM, _raise_out_of_time)
    try:
        # The alarm rings once. That may be in the inner block's own end, too: it is caught all the same.
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds)
            function()
            return True
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except _OutOfTimeError:
        return False
    finally:
        signal.signal(signal.SIGALRM, before)


def _raise_out_of_time(number: int, frame: object) -> None:
    raise _OutOfTimeError
