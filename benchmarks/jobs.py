"""What one process is asked to measure, what comes of it, and the way between."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Literal

import psutil

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
    """What the clock said; ``cpu_s`` is user and system time of all processes of the loader."""

    duration_s: float
    cpu_s: float
    batches: int
    samples: int
    digest: str

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
    works: Sequence[str], loaders: Sequence[str], turns: int, num_workers: int, quick: bool
) -> list[Job]:
    """Loaders take turns at a work, so that a change in the machine's mood meets all of them."""
    return [
        Job(work, loader, turn, num_workers, quick)
        for work in works
        for turn in range(turns)
        for loader in loaders
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
        detail = stderr.strip() or f"ended with status {child.returncode}"
        return Run(job, problem=Problem("failed", detail))
    outcome = json.loads(stdout.splitlines()[-1])
    if "kind" in outcome:
        return Run(job, problem=Problem(**outcome))
    return Run(job, Measurement(**outcome))


def _end(pid: int) -> None:
    process = psutil.Process(pid)
    for one in [*process.children(recursive=True), process]:
        with suppress(psutil.NoSuchProcess):
            one.kill()
