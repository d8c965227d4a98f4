"""The command ``dataloader bench``: options, files, and what is said when something fails."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from dataloader.bench import plot, report
from dataloader.bench.figures import Measured
from dataloader.bench.measure import Bounds, measure, this_machine
from dataloader.bench.probe import PROBED
from dataloader.bench.subject import Options, Subject
from dataloader.bench.target import TargetError, TargetRaisedError, find_target
from dataloader.bench.verdict import judge, ladder
from supervisor import exceptions
from supervisor.exceptions import WorkerTraceback
from supervisor.payload import PayloadError
from supervisor.pool import START_METHODS
from supervisor.report import WorkerDiedError

INTERRUPTED_EXIT_CODE = 128 + signal.SIGINT
STDOUT = "-"
SECONDS_PER_RUN = 10


def _numbers(_: click.Context, __: click.Parameter, text: str | None) -> list[int] | None:
    if text is None:
        return None
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() for word in words):
        raise click.BadParameter(f"{text!r}: write numbers of workers, such as 0,1,2,4")
    return sorted({int(word) for word in words})


def _writable(_: click.Context, __: click.Parameter, name: str | None) -> str | None:
    """Refuse now what could not be written when all has been measured."""
    if name is None or name == STDOUT:
        return name
    folder = Path(name).absolute().parent
    if Path(name).is_dir() or not os.access(folder, os.W_OK):
        raise click.BadParameter(f"'{name}' cannot be written: name a file in a folder that is there")
    return name


def _plottable(context: click.Context, parameter: click.Parameter, name: str | None) -> str | None:
    if name is not None and not plot.can_plot():
        raise click.BadParameter(f"matplotlib is not installed. Try: {plot.INSTALL}")
    if name is not None and Path(name).suffix.lower() not in (".png", ".svg", ".pdf"):
        raise click.BadParameter(f"'{name}': write a name that ends in .png, .svg or .pdf")
    return _writable(context, parameter, name)


@click.command()
@click.argument("target")
@click.option(
    "--num-workers",
    metavar="N[,N...]",
    callback=_numbers,
    help="Numbers of workers to measure.  [default: 0,1,2,4 ... up to the usable cores]",
)
@click.option(
    "--batch-size", type=click.IntRange(min=1), help="Of a dataset 32 by default; of a loader its own."
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=1),
    help=f"At most, for everything.  [default: {SECONDS_PER_RUN} for each measurement]",
)
@click.option("--samples", type=click.IntRange(min=1), help="At most, in each measurement.")
@click.option(
    "--step",
    "step_s",
    type=click.FloatRange(min=0),
    default=0,
    help="Seconds that your loop takes for a batch: are the workers as fast as that?",
)
@click.option("--start-method", type=click.Choice(START_METHODS), help="How workers are started.")
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Decides which samples come."
)
@click.option(
    "--json",
    "json_name",
    is_flag=False,
    flag_value=STDOUT,
    metavar="[FILE]",
    callback=_writable,
    help="Write all figures to FILE, or to stdout.",
)
@click.option("--plot", "plot_name", metavar="FILE.png", callback=_plottable, help="Draw a picture.")
def bench(
    target: str,
    num_workers: list[int] | None,
    batch_size: int | None,
    seconds: float | None,
    samples: int | None,
    step_s: float,
    start_method: str | None,
    seed: int,
    json_name: str | None,
    plot_name: str | None,
) -> None:
    """Measure what loading TARGET costs, and what to set.

    TARGET is module:object or FILE.py:object: a dataset, a loader (of this package or torch's), or a
    function without arguments that returns one. In FILE.py alone it is what is called loader, dataset,
    make_loader or make_dataset, whichever is there first.

    The exit code is 1 if a sample raises or a worker dies, which is then shown.
    """
    logging.getLogger("supervisor").addHandler(logging.NullHandler())  # the report is shown once, below
    cores = this_machine().cores
    numbers = num_workers or [*ladder(cores)]
    bounds = Bounds(seconds or SECONDS_PER_RUN * (len(numbers) + 1), samples, step_s)
    console = Console(stderr=json_name == STDOUT)
    with _stdout_for_json(json_name == STDOUT), _explained(console):
        subject = Subject(target, find_target(target), Options(batch_size, start_method, seed))
        console.print(report.headline(subject, cores, bounds), highlight=False)
        measured = _measure(subject, numbers, bounds)
        verdict = judge(measured, subject.batch_size)
        console.print(report.render(measured, verdict))
    if plot_name is not None:
        plot.plot(Path(plot_name), target, measured, verdict)
    if json_name is not None:
        text = json.dumps(report.as_dict(subject, measured, verdict, step_s), indent=1)
        _write(json_name, text + "\n")


def _measure(subject: Subject, numbers: list[int], bounds: Bounds) -> Measured:
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    bar = Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False)  # no thread
    with bar:
        task, done = bar.add_task("", total=len(numbers) + 1), itertools.count()

        def tell(doing: str) -> None:
            bar.update(task, completed=next(done), description=doing, refresh=True)

        return measure(subject, numbers, bounds, tell)


def _write(name: str, text: str) -> None:
    if name == STDOUT:
        click.echo(text, nl=False)
    else:
        Path(name).write_text(text)


@contextlib.contextmanager
def _stdout_for_json(is_wanted: bool) -> Iterator[None]:
    """Let what the user's code prints, here and in workers, go to stderr: stdout is for JSON alone."""
    if not is_wanted:
        yield
        return
    sys.stdout.flush()
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)


# ---- what is said when something fails -----------------------------------------------------------


@contextlib.contextmanager
def _explained(console: Console) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        console.print("Interrupted.")
        raise SystemExit(INTERRUPTED_EXIT_CODE) from None
    except TargetError as error:
        raise click.BadParameter(str(error), param_hint="TARGET") from error
    except TargetRaisedError as error:
        raise click.ClickException(str(error)) from error
    except PayloadError as error:
        text = str(error).replace(f".{PROBED}", "")  # which is not the user's
        raise click.ClickException(f"{text}\n(here: --start-method fork)") from error
    except WorkerDiedError as error:
        raise click.ClickException(f"a worker died.\n\n{error}") from error
    except Exception as error:
        raise click.ClickException(_explanation(error)) from error


def _explanation(error: Exception) -> str:
    """Return which sample raised what: a worker's text opens with that."""
    cause = error.__cause__
    if isinstance(cause, WorkerTraceback):
        return f"loading fails {cause.text.rstrip()}"
    return f"measuring raised\n\n{exceptions.traceback_text(error).rstrip()}"
