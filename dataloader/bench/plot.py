"""The picture: throughput by number of workers, and where the time of a batch goes. Needs matplotlib."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dataloader.bench.figures import Measured
from dataloader.bench.verdict import Verdict, parts_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INSTALL = 'pip install "supervised-dataloader[plots]"'


def can_plot() -> bool:
    """Whether matplotlib is there."""
    return find_spec("matplotlib") is not None


def plot(path: Path, title: str, measured: Measured, verdict: Verdict) -> None:
    """Write the picture to ``path``, in the format of its suffix.

    Raises:
        OSError: it cannot be written.
        ValueError: there is no such format.
    """
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=(10, 4), layout="constrained")
    figure.suptitle(title)
    left, right = figure.subplots(1, 2)
    _plot_throughput(left, measured, verdict)
    _plot_parts(right, measured)
    figure.savefig(path)


def _plot_throughput(axes: Axes, measured: Measured, verdict: Verdict) -> None:
    points = [point for point in measured.points if point.samples_per_s is not None]
    numbers = [point.num_workers for point in points]
    rates = [point.samples_per_s or 0.0 for point in points]
    axes.plot(numbers, rates, "o-", label="measured")
    alone = next((point.samples_per_s for point in points if point.num_workers == 1), None)
    if alone is not None:
        ideal = [number for number in numbers if number]
        axes.plot(ideal, [alone * number for number in ideal], ":", label="one worker's, multiplied")
    if verdict.num_workers is not None:
        axes.axvline(verdict.num_workers, linestyle="--", linewidth=1, label="recommended")
    axes.set_xlabel("num_workers")
    axes.set_ylabel("samples/s")
    axes.set_ylim(bottom=0)
    axes.set_xticks([point.num_workers for point in measured.points])
    axes.legend()


def _plot_parts(axes: Axes, measured: Measured) -> None:
    axes.set_title("a batch's time in a worker, ms")
    if measured.samples is None or measured.batch is None:
        return
    parts = parts_of(measured.samples, measured.batch)
    named = {"transfer": parts.transfer_s, "collate": parts.collate_s, "samples": parts.samples_s}
    bars = axes.barh([*named], [seconds * 1000 for seconds in named.values()])
    axes.bar_label(bars, fmt="%.3g", padding=3)
    axes.margins(x=0.15)
