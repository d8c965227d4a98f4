"""The command: ``python -m benchmarks --help``."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from benchmarks import catalog, machine
from benchmarks.charts import draw_all
from benchmarks.jobs import Job, Run, Runner, schedule
from benchmarks.summary import Row, summarise
from benchmarks.table import render

_TURNS = 7
_TURNS_QUICK = 1


def _chosen_from(
    known: tuple[str, ...],
) -> Callable[[click.Context, click.Parameter, tuple[str, ...]], list[str]]:
    def chosen(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> list[str]:
        try:
            return catalog.select(",".join(values).split(",") if values else known, known)
        except ValueError as error:
            raise click.BadParameter(str(error)) from error

    return chosen


def _names(option: str, parameter: str, known: tuple[str, ...]) -> Callable[[Any], Any]:
    return click.option(
        option,
        parameter,
        multiple=True,
        metavar="NAME[,NAME...]",
        callback=_chosen_from(known),
        help=f"Of {', '.join(known)}. May be repeated; all, when not given.",
    )


def _numbers(_: click.Context, __: click.Parameter, value: str) -> list[int]:
    parts = value.split(",")
    if not all(part.isdecimal() and int(part) for part in parts):
        raise click.BadParameter(f"{value!r} is not a number of workers, nor several with commas in between")
    return [int(part) for part in parts]


@click.command()
@_names("--loaders", "loaders", catalog.LOADERS)
@_names("--work", "works", catalog.WORKS)
@click.option(
    "--num-workers",
    metavar="N[,N...]",
    default="2",
    show_default=True,
    callback=_numbers,
    help="Several show how loaders scale.",
)
@click.option(
    "--repeat", type=click.IntRange(min=1), help=f"Turns of each loader. [{_TURNS}; quick: {_TURNS_QUICK}]"
)
@click.option("--quick", is_flag=True, help="Short epochs: shows whether it runs, not how fast.")
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), default="build/benchmarks", show_default=True
)
def main(
    loaders: list[str], works: list[str], num_workers: list[int], repeat: int | None, quick: bool, out: Path
) -> None:
    """Measure data loaders side by side, on the same work, in the same run."""
    description = machine.describe()
    turns = repeat or (_TURNS_QUICK if quick else _TURNS)
    runs = _run_all(schedule(works, loaders, turns, num_workers, quick))
    rows = summarise(runs)
    Console().print(render(rows))
    _write(out / "results.json", description, runs, rows)
    draw_all(out, runs, rows)
    click.echo(f"Everything is in {out}", err=True)
    sys.exit(any(row.problem and row.problem.is_failure for row in rows))


def _run_all(jobs: list[Job]) -> list[Run]:
    runner = Runner()
    runs = []
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("", total=len(jobs))
        for job in jobs:
            progress.update(bar, description=f"{job.work}: {job.loader}")
            runs.append(runner.run(job))
            progress.advance(bar)
    return runs


def _write(path: Path, description: dict[str, Any], runs: list[Run], rows: list[Row]) -> None:
    results = {"machine": description, "rows": [*map(asdict, rows)], "runs": [*map(asdict, runs)]}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
