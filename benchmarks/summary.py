"""From runs to one row per work and loader."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from statistics import median

from benchmarks import floor
from benchmarks.jobs import Measurement, Problem, Run
from benchmarks.stopwatch import CpuTimes

PEER = "torch"


@dataclass(frozen=True)
class Figures:
    """Times per batch, in the median; ratios are those of a turn, in the median too.

    ``speed_ratio`` is how many times as fast as torch, ``floor_ratio`` how many times as long as the floor.
    """

    median_s: float
    min_s: float
    max_s: float
    samples_per_s: float
    cpu: CpuTimes | None
    pss_bytes: float
    speed_ratio: float | None
    floor_ratio: float | None


@dataclass(frozen=True)
class Row:
    """How one loader did at one work with so many workers, or why it did not."""

    work: str
    num_workers: int
    loader: str
    figures: Figures | None = None
    problem: Problem | None = None


def summarise(runs: Iterable[Run]) -> list[Row]:
    """The rows, in the order in which the runs came."""
    by_work = groupby(runs, lambda run: (run.job.work, run.job.num_workers))
    return [row for _, of_work in by_work for row in _rows(list(of_work))]


def _rows(runs: list[Run]) -> list[Row]:
    by_loader: dict[str, list[Run]] = {}
    for run in runs:
        by_loader.setdefault(run.job.loader, []).append(run)
    expected = _expected_batches([*by_loader.get(PEER, []), *runs])
    return [_row(own, by_loader, expected) for own in by_loader.values()]


def _expected_batches(runs: list[Run]) -> tuple[str, str]:
    """Who sets the standard, and the digest of its batches."""
    measured = [(run.job.loader, run.measurement.digest) for run in runs if run.measurement]
    return next((one for one in measured if one[1]), ("", ""))


def _row(own: list[Run], by_loader: dict[str, list[Run]], expected: tuple[str, str]) -> Row:
    job = own[0].job
    measured = [run.measurement for run in own if run.measurement]
    problem = next((run.problem for run in own if run.problem), None) or _difference(measured, *expected)
    if problem:
        return Row(job.work, job.num_workers, job.loader, problem=problem)
    as_long_as_peer = _ratio(own, by_loader.get(PEER, []))
    speed_ratio = 1 / as_long_as_peer if as_long_as_peer else None
    return Row(
        job.work,
        job.num_workers,
        job.loader,
        _figures(measured, speed_ratio, _ratio(own, by_loader.get(floor.NAME, []))),
    )


def _difference(measured: list[Measurement], reference: str, digest: str) -> Problem | None:
    if all(one.digest in (digest, "") for one in measured):
        return None
    return Problem("differs", f"its batches are not those of {reference}")


def _figures(measured: list[Measurement], speed_ratio: float | None, floor_ratio: float | None) -> Figures:
    per_batch_s = [one.per_batch_s for one in measured]
    return Figures(
        median_s=median(per_batch_s),
        min_s=min(per_batch_s),
        max_s=max(per_batch_s),
        samples_per_s=median(one.samples / one.duration_s for one in measured),
        cpu=_cpu(measured),
        pss_bytes=median(one.pss_bytes for one in measured),
        speed_ratio=speed_ratio,
        floor_ratio=floor_ratio,
    )


def _cpu(measured: list[Measurement]) -> CpuTimes | None:
    per_batch = [
        [used_s / one.batches for used_s in (one.cpu.consumer_s, one.cpu.workers_s, one.cpu.other_s)]
        for one in measured
        if one.cpu
    ]
    return CpuTimes(*map(median, zip(*per_batch, strict=True))) if per_batch else None


def _ratio(own: list[Run], others: list[Run]) -> float | None:
    """How many times as long as the others' own batches take."""
    # Pair by pair: neighbours in time met the same machine, medians of whole columns did not.
    pairs = [(a.measurement, b.measurement) for a, b in zip(own, others, strict=False)]
    ratios = [a.per_batch_s / b.per_batch_s for a, b in pairs if a and b]
    return median(ratios) if ratios else None
