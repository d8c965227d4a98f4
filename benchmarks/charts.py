"""The results as pictures, a panel for each work: throughput, scaling, and one epoch as it passed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib import colormaps
from matplotlib.figure import Figure

from benchmarks.catalog import LOADERS
from benchmarks.jobs import Run
from benchmarks.summary import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLUMNS = 3
_COLOURS = {name: colormaps["tab20"](number) for number, name in enumerate(LOADERS)}
_FLOOR_COLOUR = "lightgrey"

Draw = Callable[["Axes", Sequence[Any]], None]


def draw_all(folder: Path, runs: Iterable[Run], rows: Sequence[Row]) -> None:
    """Write those of ``throughput.png``, ``scaling.png`` and ``timeline.png`` for which there are figures."""
    measured = [row for row in rows if row.figures]
    most = max((row.num_workers for row in rows), default=0)
    widest = [row for row in measured if row.num_workers == most]
    _draw(folder / "throughput.png", f"samples/s with {most} workers", widest, _throughput)
    if len({row.num_workers for row in measured}) > 1:
        _draw(folder / "scaling.png", "samples/s by number of workers", measured, _scaling)
    timed = [run for run in runs if run.measurement and run.measurement.arrivals_s]
    first = [run for run in timed if run.job.turn == 0 and run.job.num_workers == most]
    _draw(folder / "timeline.png", f"what has come of one epoch with {most} workers", first, _timeline)


def _draw(path: Path, title: str, items: Iterable[Row | Run], draw: Draw) -> None:
    panels = [(work, list(of_work)) for work, of_work in groupby(items, _work)]
    if not panels:
        return
    lines = math.ceil(len(panels) / _COLUMNS)
    figure = Figure(figsize=(5 * _COLUMNS, 3.5 * lines), layout="constrained")
    figure.suptitle(title)
    for number, (work, of_work) in enumerate(panels, start=1):
        axes: Any = figure.add_subplot(lines, _COLUMNS, number)
        axes.set_title(work)
        draw(axes, of_work)
    figure.savefig(path)


def _work(item: Row | Run) -> str:
    return item.job.work if isinstance(item, Run) else item.work


def _colour(loader: str) -> Any:
    return _COLOURS.get(loader, _FLOOR_COLOUR)


def _throughput(axes: Axes, rows: Sequence[Row]) -> None:
    names = [row.loader for row in rows]
    rates = [row.figures.samples_per_s for row in rows if row.figures]
    bars = axes.barh(names, rates, color=[*map(_colour, names)])
    axes.bar_label(bars, fmt="{:,.0f}", padding=3)
    axes.invert_yaxis()
    axes.set_xscale("log")  # Of a cheap work the floor is a hundred times as fast as any loader.
    axes.margins(x=0.3)


def _scaling(axes: Axes, rows: Sequence[Row]) -> None:
    for loader in dict.fromkeys(row.loader for row in rows):
        points = [
            (row.num_workers, row.figures.samples_per_s)
            for row in rows
            if row.loader == loader and row.figures
        ]
        axes.plot(*zip(*points, strict=True), "o-", label=loader, color=_colour(loader))
    axes.set_xticks(sorted({row.num_workers for row in rows}))
    axes.set_yscale("log")
    axes.legend()


def _timeline(axes: Axes, runs: Sequence[Run]) -> None:
    for run in runs:
        arrivals_s = run.measurement.arrivals_s if run.measurement else []
        shares = [number / len(arrivals_s) for number in range(len(arrivals_s) + 1)]
        axes.step(
            [0.0, *arrivals_s], shares, where="post", label=run.job.loader, color=_colour(run.job.loader)
        )
    axes.set_xlabel("s")
    axes.set_ylabel("share of its batches")
    axes.legend()
