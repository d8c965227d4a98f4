"""What one process is asked to measure, what comes of it, and the way between."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Literal

import psutil

from benchmarks import floor
from benchmarks.stopwatch import CpuTimes

_TIME_LIMIT_S = 300
_TIME_LIMIT_QUICK_S = 60


@dataclass(frozen=True)
class Job:
    """One loader's turn at one work."""

    work: str
    loader: str
    turn: int
    num_workers: int
    quick: bool


@dataclass(frozen=True)
class Measurement:
    """What the clock said, and all that is known of a loader besides; of the floor there is nothing else."""

    duration_s: float
    batches: int
    samples: int
    digest: str = ""
    cpu: CpuTimes | None = None
    #: Of all processes, after the last epoch.
    pss_bytes: int = 0
    #: In the first epoch timed: when its batches came, at most some fifty of them at equal steps.
    arrivals_s: list[float] = field(default_factory=list)

    @property
    def per_batch_s(self) -> float:
        """Seconds from one batch to the next."""
        return self.duration_s / self.batches


@dataclass(frozen=True)
class Problem:
    """Why there is nothing to show."""

    kind: Literal["missing", "cannot", "failed", "differs"]
    detail: str

    @property
    def is_failure(self) -> bool:
        """A library that is not installed, or is not made for a work, is nobody's fault."""
        return self.kind in ("failed", "differs")


@dataclass(frozen=True)
class Run:
    """A job and its outcome, which is one of the two."""

    job: Job
    measurement: Measurement | None = None
    problem: Problem | None = None


def schedule(
    works: Sequence[str], loaders: Sequence[str], turns: int, num_workers: Sequence[int], quick: bool
) -> list[Job]:
    """Loaders and the floor take turns, so that a change in the machine's mood meets all of them."""
    return [
        Job(work, loader, turn, workers, quick)
        for work in works
        for workers in num_workers
        for turn in range(turns)
        for loader in [*loaders, floor.NAME]
    ]


class Runner:
    """Runs jobs; a loader that could not do a work is not tried on it again."""

    def __init__(self) -> None:
        self._problems: dict[tuple[str, str], Problem] = {}

    def run(self, job: Job) -> Run:
        """Run one job in a fresh process."""
        known = self._problems.get((job.work, job.loader))
        run = Run(job, problem=known) if known else _run(job)
        if run.problem:
            self._problems[job.work, job.loader] = run.problem
        return run


def _run(job: Job) -> Run:
    command = [sys.executable, "-m", "benchmarks.one", json.dumps(asdict(job))]
    limit_s = _TIME_LIMIT_QUICK_S if job.quick else _TIME_LIMIT_S
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        try:
            stdout, stderr = child.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            _end(child.pid)
            return Run(job, problem=Problem("failed", f"did not end within {limit_s} s"))
    if child.returncode:
        said = stderr.strip() or f"ended with status {child.returncode}"
        return Run(job, problem=Problem("failed", said.splitlines()[-1]))
    outcome = json.loads(stdout.splitlines()[-1])
    if "kind" in outcome:
        return Run(job, problem=Problem(**outcome))
    cpu = outcome.pop("cpu")
    return Run(job, Measurement(cpu=CpuTimes(**cpu) if cpu else None, **outcome))


def _end(pid: int) -> None:
    process = psutil.Process(pid)
    for one in [*process.children(recursive=True), process]:
        with suppress(psutil.NoSuchProcess):
            one.kill()
