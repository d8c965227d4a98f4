"""``dataloader demo``: photos are loaded as for training while workers are killed, and no byte is lost."""

import hashlib
import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from dataloader import DataLoader, ExitReport, WorkerDiedError
from dataloader._made_photos import cached_photos
from dataloader._photos import PhotoDataset, UnreadablePhotoError, find_photos

LEAST_BATCHES = 4
INTERRUPTED_EXIT_CODE = 128 + signal.SIGINT


@dataclass(frozen=True)
class Settings:
    """What the user chose on the command line."""

    kill: bool
    num_workers: int
    batch_size: int
    seed: int
    start_method: str

    def __str__(self) -> str:
        return f"{self.batch_size} a batch, seed {self.seed}, {self.workers}"

    @property
    def workers(self) -> str:
        """How many workers, in words."""
        return f"{self.num_workers} workers ({self.start_method})" if self.num_workers else "no workers"


@dataclass(frozen=True)
class Run:
    """Two epochs of one loader: how long each took, what came of them, and who died."""

    epochs_s: tuple[float, float]
    digest: str
    deaths: Sequence[ExitReport]


@click.command()
@click.argument("folder", required=False, type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--kill/--no-kill", default=True, show_default=True, help="Kill three workers on the way.")
@click.option("--num-workers", type=click.IntRange(min=0), default=2, show_default=True)
@click.option("--batch-size", type=click.IntRange(min=1), default=32, show_default=True)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option(
    "--start-method",
    type=click.Choice(["forkserver", "fork", "spawn"]),
    default="forkserver",
    show_default=True,
    help="How the supervisor and the workers are started.",
)
def demo(
    folder: Path | None, kill: bool, num_workers: int, batch_size: int, seed: int, start_method: str
) -> None:
    """Load the JPEGs in FOLDER, kill workers on the way, and compare with an undisturbed run.

    Every photo is decoded, randomly cropped, flipped and normalised, in two epochs. A worker is killed with
    SIGKILL in the middle of each epoch, and one between them. The exit code is 1 unless every byte is the
    same as without workers. Without FOLDER, photo-like JPEGs are made, once, and kept in your cache folder.
    """
    if kill and num_workers == 0:
        raise click.UsageError("With --num-workers 0 there is no worker to kill: add --no-kill.")
    settings = Settings(kill, num_workers, batch_size, seed, start_method)
    console = Console()
    try:
        _show(_photos(folder, console), settings, console)
    except KeyboardInterrupt:
        console.print("Interrupted.")
        raise SystemExit(INTERRUPTED_EXIT_CODE) from None
    except (UnreadablePhotoError, WorkerDiedError) as error:
        raise click.ClickException(str(error)) from error


def _photos(folder: Path | None, console: Console) -> PhotoDataset:
    paths = find_photos(folder or _made_folder(console))
    if not paths:
        raise click.BadParameter(f"no JPEG (.jpg, .jpeg) in '{folder}' or below.", param_hint="FOLDER")
    return PhotoDataset(paths)


def _made_folder(console: Console) -> Path:
    def with_a_bar(numbers: Sequence[int]) -> Iterator[int]:
        with _progress(console) as progress:
            yield from progress.track(numbers, description="making photos, once")

    try:
        return cached_photos(with_a_bar)
    except OSError as error:
        raise click.ClickException(
            f"No place for made photos: {error}. Name a FOLDER of JPEGs, or set XDG_CACHE_HOME."
        ) from error


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    )


def _show(photos: PhotoDataset, settings: Settings, console: Console) -> None:
    if settings.kill and len(photos) < LEAST_BATCHES * settings.batch_size:
        raise click.UsageError(
            f"{len(photos)} photos, {settings.batch_size} a batch, are over before a worker is dead: "
            "lower --batch-size, name more photos, or add --no-kill."
        )
    console.print(f"{len(photos)} photos, {settings}")
    with _progress(console) as progress:
        run = _run(photos, settings, progress)
        undisturbed = _run(photos, replace(settings, kill=False, num_workers=0), progress)
    console.print(_epoch_table(run, undisturbed, len(photos)))
    if run.deaths:
        console.print(_death_table(run.deaths))
    console.print(f"digest of all batches    {run.digest}\nundisturbed, no workers  {undisturbed.digest}")
    if run.digest != undisturbed.digest:
        raise click.ClickException("the batches differ from those of the undisturbed run.")
    console.print("[bold green]equal")


def _run(photos: PhotoDataset, settings: Settings, progress: Progress) -> Run:
    digest = hashlib.blake2b(digest_size=16)
    with _loader(photos, settings) as loader:
        disturb = partial(_kill_a_worker, loader, progress.console) if settings.kill else _do_nothing
        first_s = _epoch(loader, disturb, progress, f"epoch 1, {settings.workers}", digest)
        disturb()
        second_s = _epoch(loader, disturb, progress, f"epoch 2, {settings.workers}", digest)
    deaths = [report for report in loader.reports if report.is_death]
    return Run((first_s, second_s), digest.hexdigest(), deaths)


def _loader(photos: PhotoDataset, settings: Settings) -> DataLoader:
    has_workers = settings.num_workers > 0
    return DataLoader(
        photos,
        batch_size=settings.batch_size,
        shuffle=True,
        num_workers=settings.num_workers,
        multiprocessing_context=settings.start_method if has_workers else None,
        persistent_workers=has_workers,
        seed=settings.seed,
    )


def _epoch(
    loader: DataLoader,
    disturb: Callable[[], None],
    progress: Progress,
    label: str,
    digest: hashlib.blake2b,
) -> float:
    task = progress.add_task(label, total=len(loader.dataset))
    start_s = time.perf_counter()
    for number, batch in enumerate(loader):
        if number == len(loader) // 2:
            disturb()
        digest.update(f"{batch.dtype}{batch.shape}".encode())
        digest.update(batch)
        progress.advance(task, len(batch))
    return time.perf_counter() - start_s


def _kill_a_worker(loader: DataLoader, console: Console) -> None:
    victim = random.choice(loader.workers())
    os.kill(victim.pid, signal.SIGKILL)
    console.print(f"SIGKILL to worker {victim.id} (pid {victim.pid})")


def _do_nothing() -> None:
    pass


def _epoch_table(run: Run, undisturbed: Run, samples: int) -> Table:
    table = Table("samples/s", "this run", "undisturbed, no workers")
    labels = ("epoch 1, with start-up", "epoch 2")
    for label, *seconds in zip(labels, run.epochs_s, undisturbed.epochs_s, strict=True):
        table.add_row(label, *(f"{samples / s:,.0f}" for s in seconds))
    return table


def _death_table(deaths: Sequence[ExitReport]) -> Table:
    table = Table("worker", "pid", "reason", "signal", "while", "lived", "replaced in", title="deaths")
    for death in deaths:
        replaced_in = "-" if death.replaced_s is None else f"{death.replaced_s * 1000:.1f} ms"
        table.add_row(
            str(death.worker),
            str(death.pid),
            death.reason.value,
            str(death.signal),
            death.where,
            f"{death.uptime_s:.1f} s",
            replaced_in,
        )
    return table
