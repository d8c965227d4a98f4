"""The figures and the verdict: for people, and for programs."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
from rich import box
from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from dataloader.bench.figures import Measured, Point, SampleFigures
from dataloader.bench.measure import Bounds
from dataloader.bench.subject import Subject
from dataloader.bench.verdict import Parts, Verdict, parts_of

SCHEMA = 1
"""Of the JSON; grows when a name changes its meaning or goes."""


def as_dict(subject: Subject, measured: Measured, verdict: Verdict, step_s: float) -> dict[str, Any]:
    """Return everything as JSON can have it: docs/bench.md says what the names mean."""
    points = [{**asdict(point), "samples_per_s": point.samples_per_s} for point in measured.points]
    return {
        "schema": SCHEMA,
        "target": subject.name,
        "length": subject.length,
        "batch_size": subject.batch_size,
        "start_method": subject.start_method,
        "seed": subject.options.seed,
        "step_s": step_s,
        "machine": {**asdict(measured.machine), **_versions()},
        "samples": asdict(measured.samples) if measured.samples else None,
        "batch": asdict(measured.batch) if measured.batch else None,
        "points": points,
        "verdict": {**asdict(verdict), "bound": verdict.bound and verdict.bound.value},
    }


def _versions() -> dict[str, str | None]:
    try:
        ours: str | None = version("supervised-dataloader")
    except PackageNotFoundError:
        ours = None
    return {"python": platform.python_version(), "numpy": np.__version__, "supervised-dataloader": ours}


# ---- for people ----------------------------------------------------------------------------------


def headline(subject: Subject, cores: int, bounds: Bounds) -> str:
    """Return what is measured, and how long that takes."""
    samples = "a stream" if subject.length is None else f"{subject.length:,} samples"
    size = "" if subject.batch_size is None else f", {subject.batch_size} a batch"
    has = f"{cores} usable core{'s'[: cores != 1]}"
    return (
        f"{subject.name}: {samples}{size}, {subject.start_method}, {has}\n"
        f"It takes {bounds.seconds:g} s at most, and what ending a slow worker takes."
    )


def render(measured: Measured, verdict: Verdict) -> RenderableType:
    """Return what is shown in a terminal."""
    parts: list[RenderableType] = []
    if measured.samples is not None:
        parts += [_costs(measured, measured.samples), Text(_about(measured.samples))]
    parts.append(_throughputs(measured.points))
    parts += [Text(line) for line in conclusions(measured, verdict)]
    return Group(*parts)


def conclusions(measured: Measured, verdict: Verdict) -> list[str]:
    """Return the verdict in sentences."""
    lines = []
    if verdict.bound is not None and measured.samples and measured.batch:
        parts = parts_of(measured.samples, measured.batch)
        lines.append(f"Bound by: {verdict.bound.value}{_shares(parts)}")
    if verdict.num_workers is not None:
        lines.append(f"Set:      {_settings(verdict)}")
    return [*lines, *verdict.advice]


def _shares(parts: Parts) -> str:
    whole_s = parts.samples_s + parts.collate_s + parts.transfer_s
    named = {"samples": parts.samples_s, "collate": parts.collate_s, "transfer": parts.transfer_s}
    shares = [f"{name} {part_s / whole_s:.0%}" for name, part_s in named.items()] if whole_s else []
    return f" (of a batch's time in a worker: {', '.join(shares)})" if shares else ""


def _settings(verdict: Verdict) -> str:
    words = f"num_workers={verdict.num_workers}"
    if verdict.prefetch_factor is not None:
        words += f", prefetch_factor={verdict.prefetch_factor}"
    words += f"; batches take {size_text(verdict.batches_bytes)}"
    if verdict.workers_bytes:
        words += f", the workers {size_text(verdict.workers_bytes)} of their own"
    return words


def _costs(measured: Measured, samples: SampleFigures) -> Table:
    table = _table("", "median", "99% within", "the first", "size")
    times = (samples.median_s, samples.p99_s, samples.first_s)
    table.add_row("a sample", *map(time_text, times), size_text(samples.size_bytes))
    batch = measured.batch
    if batch is not None:
        table.add_row(f"collate ({batch.samples:.4g})", time_text(batch.collate_s))
        table.add_row("transfer", time_text(batch.transfer_s), "", "", size_text(batch.size_bytes))
    return table


def _about(samples: SampleFigures) -> str:
    slowest = ", ".join(f"{slow.index}: {time_text(slow.seconds)}" for slow in samples.slowest)
    first = f"Of {samples.count:,} samples the slowest, by index: {slowest}."
    return f"{first}\nThey compute {min(1.0, samples.cpu_share):.0%} of the time."


def _throughputs(points: Sequence[Point]) -> Table:
    table = _table("workers", "samples/s", "x one", "first batch", "consumer", "a worker's own")
    alone = next((point.samples_per_s for point in points if point.num_workers == 1), None)
    for point in points:
        rate = point.samples_per_s
        table.add_row(
            str(point.num_workers),
            "too slow" if rate is None else f"{rate:,.4g}" if rate < 1000 else f"{rate:,.0f}",
            f"{rate / alone:.2f}" if rate and alone else "-",
            time_text(point.first_s),
            f"{point.consumer_share:.0%} busy",
            size_text(point.worker_bytes),
        )
    return table


def _table(first: str, *others: str) -> Table:
    table = Table(Column(first, no_wrap=True), box=box.SIMPLE, pad_edge=False)
    for heading in others:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def time_text(seconds: float | None) -> str:
    """Return a time in words.

    >>> time_text(0.0123), time_text(2e-6), time_text(3.5), time_text(None)
    ('12.3 ms', '2 us', '3.5 s', '-')
    """
    if seconds is None:
        return "-"
    for unit, size_s in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size_s:
            return f"{seconds / size_s:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def size_text(size_bytes: int | None) -> str:
    """Return a size in words.

    >>> size_text(100), size_text(602_112), size_text(3 << 30), size_text(None)
    ('100 B', '588 KiB', '3 GiB', '-')
    """
    if size_bytes is None:
        return "-"
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    power = min(len(units) - 1, max(0, size_bytes.bit_length() - 1) // 10)
    return f"{size_bytes / 1024**power:.{3 if size_bytes < 1000 * 1024**power else 4}g} {units[power]}"
