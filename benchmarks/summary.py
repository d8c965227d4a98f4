"""From runs to one row per work and loader."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from statistics import median

from benchmarks.jobs import Measurement, Problem, Run

PEER = "torch"


@dataclass(frozen=True)
class Figures:
    """Times per batch; ``speed_ratio`` is how many times as fast as torch in the same turn, in the median."""

    median_s: float
    min_s: float
    max_s: float
    cpu_s: float
    samples_per_s: float
    speed_ratio: float | None


@dataclass(frozen=True)
class Row:
    """How one loader did at one work, or why it did not."""

    work: str
    loader: str
    figures: Figures | None = None
    problem: Problem | None = None


def summarise(runs: Iterable[Run]) -> list[Row]:
    """The rows, in the order in which the runs came."""
    return [row for _, of_work in groupby(runs, lambda run: run.job.work) for row in _rows(list(of_work))]


def _rows(runs: list[Run]) -> list[Row]:
    by_loader: dict[str, list[Run]] = {}
    for run in runs:
        by_loader.setdefault(run.job.loader, []).append(run)
    peers = by_loader.get(PEER, [])
    expected = _expected_batches([*peers, *runs])
    return [_row(own, peers, expected) for own in by_loader.values()]


def _expected_batches(runs: list[Run]) -> tuple[str, str]:
    """Who sets the standard, and the digest of its batches."""
    return next(((run.job.loader, run.measurement.digest) for run in runs if run.measurement), ("", ""))


def _row(own: list[Run], peers: list[Run], expected: tuple[str, str]) -> Row:
    job = own[0].job
    measured = [run.measurement for run in own if run.measurement]
    problem = next((run.problem for run in own if run.problem), None) or _difference(measured, *expected)
    if problem:
        return Row(job.work, job.loader, problem=problem)
    return Row(job.work, job.loader, _figures(measured, _speed_ratio(own, peers)))


def _difference(measured: list[Measurement], reference: str, digest: str) -> Problem | None:
    if all(one.digest == digest for one in measured):
        return None
    return Problem("differs", f"its batches are not those of {reference}")


def _figures(measured: list[Measurement], speed_ratio: float | None) -> Figures:
    per_batch_s = [one.per_batch_s for one in measured]
    return Figures(
        median_s=median(per_batch_s),
        min_s=min(per_batch_s),
        max_s=max(per_batch_s),
        cpu_s=median(one.cpu_s / one.batches for one in measured),
        samples_per_s=median(one.samples / one.duration_s for one in measured),
        speed_ratio=speed_ratio,
    )


def _speed_ratio(own: list[Run], peers: list[Run]) -> float | None:
    # Pair by pair: neighbours in time met the same machine, medians of whole columns did not.
    pairs = [(a.measurement, b.measurement) for a, b in zip(own, peers, strict=False)]
    ratios = [b.per_batch_s / a.per_batch_s for a, b in pairs if a and b]
    return median(ratios) if ratios else None
