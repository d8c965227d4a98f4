"""The rows as a table for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich import box
from rich.console import Group
from rich.table import Column, Table
from rich.text import Text

from benchmarks.jobs import Problem
from benchmarks.summary import PEER, Figures, Row

_STYLES = {"missing": "yellow", "cannot": "yellow", "failed": "red", "differs": "red"}


def render(rows: Sequence[Row]) -> Group:
    """A section per work and number of workers, and below the table what went wrong."""
    table = Table(Column(no_wrap=True), box=box.SIMPLE, pad_edge=False, collapse_padding=True)
    for heading in ("a batch", "spread", "CPU", "MiB", "samples/s", f"x {PEER}", "x floor"):
        table.add_column(heading, justify="right", no_wrap=True)
    scaling = len({row.num_workers for row in rows}) > 1
    for (work, num_workers), of_work in groupby(rows, lambda row: (row.work, row.num_workers)):
        table.add_section()
        table.add_row(Text(f"{work}, num_workers={num_workers}" if scaling else work, style="bold"))
        for row in of_work:
            table.add_row(f"  {row.loader}", *_cells(row))
    return Group(table, *_explanations(rows))


def _cells(row: Row) -> list[str | Text]:
    if row.problem:
        return [Text(row.problem.kind, style=_STYLES[row.problem.kind])]
    return [*_figures(row.figures)] if row.figures else []


def _explanations(rows: Sequence[Row]) -> list[Text]:
    # With other numbers of workers it is the same again.
    problems = {(row.work, row.loader): row.problem for row in rows if row.problem}
    return [_explanation(*of, problem) for of, problem in problems.items()]


def _explanation(work: str, loader: str, problem: Problem) -> Text:
    return Text(f"{work}: {loader}: {problem.detail.splitlines()[0]}", style=_STYLES[problem.kind])


def _figures(figures: Figures) -> list[str]:
    return [
        _time(figures.median_s),
        f"{figures.min_s / figures.median_s - 1:+.0%} {figures.max_s / figures.median_s - 1:+.0%}",
        _time(figures.cpu.total_s) if figures.cpu else "",
        f"{figures.pss_bytes / 2**20:,.0f}" if figures.pss_bytes else "",
        f"{figures.samples_per_s:,.0f}",
        _ratio(figures.speed_ratio),
        _ratio(figures.floor_ratio),
    ]


def _ratio(ratio: float | None) -> str:
    if ratio is None:
        return ""
    return f"{ratio:.2f}" if ratio < 100 else f"{ratio:,.0f}"


def _time(seconds: float) -> str:
    for unit, size_s in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= 0.9995 * size_s:  # 999.5 and more would be rounded to 1e+03 of the smaller unit
            return f"{seconds / size_s:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"
