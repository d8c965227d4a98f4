"""What was measured, and how it follows from the notes of a probe. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import numpy as np

from dataloader.arguments import DEFAULT_PREFETCH
from dataloader.bench.probe import BatchNote, SampleNote

SHOWN_SLOWEST = 5


@dataclass(frozen=True)
class Slow:
    """A sample that took long."""

    index: int | str
    seconds: float


@dataclass(frozen=True)
class SampleFigures:
    """What one sample costs, in one worker. The first, which pays for imports and open files, is apart.

    Parameters:
        count: how many were measured.
        first_s: what the first took.
        median_s, mean_s, p99_s: of the others; of the first, where it is the only one.
        cpu_share: CPU time of the process over time; above 1 where samples use several threads.
        size_bytes: the mean of those that were pickled; None where they cannot be.
        slowest: the slowest, slowest first.
    """

    count: int
    first_s: float
    median_s: float
    mean_s: float
    p99_s: float
    cpu_share: float
    size_bytes: int | None
    slowest: tuple[Slow, ...]


@dataclass(frozen=True)
class BatchFigures:
    """What one batch costs beside its samples, in one worker.

    Parameters:
        count: how many were collated. The times are those after a warm-up.
        samples: how many samples it has, in the mean.
        collate_s: the median.
        transfer_s: from the end of its collating to the begin of the next: pickling, copying, waiting for
            the pipe; the median. None where no second one was begun.
        size_bytes: how much of it is moved between processes, in the mean.
    """

    count: int
    samples: float
    collate_s: float
    transfer_s: float | None
    size_bytes: int


@dataclass(frozen=True)
class Point:
    """One run with so many workers.

    Parameters:
        num_workers: 0: without.
        first_s: from ``iter()`` to the first batch, start-up included; None: none came.
        batches, samples: how many came in ``elapsed_s``.
        elapsed_s: the time measured, after a warm-up.
        consumer_s: how much of it this process was busy: its CPU time, and the loop's step.
        worker_bytes: memory of a worker that no other process has (USS); the largest of all workers.
    """

    num_workers: int
    first_s: float | None = None
    batches: int = 0
    samples: float = 0
    elapsed_s: float = 0
    consumer_s: float = 0
    worker_bytes: int | None = None

    @property
    def samples_per_s(self) -> float | None:
        """The throughput; None where too few batches came to tell."""
        return self.samples / self.elapsed_s if self.batches and self.elapsed_s > 0 else None

    @property
    def consumer_share(self) -> float:
        """How much of the time this process was busy."""
        return self.consumer_s / self.elapsed_s if self.elapsed_s > 0 else 0.0


@dataclass(frozen=True)
class Machine:
    """What the machine has for this process.

    Parameters:
        cores: usable: affinity and cgroup quota counted.
        load: the load average of the last minute, before anything was measured.
        available_bytes: memory; no more than the cgroup's limit.
    """

    cores: int
    load: float
    available_bytes: int


@dataclass(frozen=True)
class Measured:
    """All that was measured. ``samples`` and ``batch`` are None where not even one came in time."""

    machine: Machine
    samples: SampleFigures | None
    batch: BatchFigures | None
    points: tuple[Point, ...]


def slots_in_flight(num_workers: int, prefetch_factor: int | None) -> int:
    """Return how many batches come into memory that was never touched before, which takes its time.

    >>> slots_in_flight(2, prefetch_factor=2), slots_in_flight(0, prefetch_factor=None)
    (6, 1)
    """
    return num_workers * ((prefetch_factor or DEFAULT_PREFETCH) + 1) or 1


def warm_up(num_workers: int, slots: int, batches: int) -> int:
    """Return how many of so many batches do not count.

    Those in new memory, but no more than half; and one of each worker, which it began before all were there.

    >>> warm_up(2, slots=6, batches=100), warm_up(2, slots=6, batches=8), warm_up(2, slots=6, batches=3)
    (6, 4, 2)
    """
    return max(1, num_workers, min(slots, batches // 2))


def sample_figures(notes: Sequence[SampleNote]) -> SampleFigures | None:
    """Return what samples cost, of one worker's notes."""
    if not notes:
        return None
    first, rest = notes[0], notes[1:] or notes
    seconds = np.array([note.stop_s - note.start_s for note in rest])
    sizes = [note.size_bytes for note in notes if note.size_bytes is not None]
    slowest = sorted(rest, key=lambda note: note.start_s - note.stop_s)[:SHOWN_SLOWEST]
    return SampleFigures(
        count=len(notes),
        first_s=first.stop_s - first.start_s,
        median_s=float(np.median(seconds)),
        mean_s=float(seconds.mean()),
        p99_s=float(np.percentile(seconds, 99)),
        cpu_share=sum(note.cpu_s for note in rest) / max(float(seconds.sum()), 1e-9),
        size_bytes=round(sum(sizes) / len(sizes)) if sizes else None,
        slowest=tuple(Slow(note.index, note.stop_s - note.start_s) for note in slowest),
    )


def batch_figures(
    samples: Sequence[SampleNote], batches: Sequence[BatchNote], moved_bytes: int, delivered: int
) -> BatchFigures | None:
    """Return what batches cost, of one worker's notes and of how much came in how many batches."""
    if not batches:
        return None
    warm = batches[min(slots_in_flight(1, None), len(batches) // 2) :]
    gaps_s = _gaps_s(samples, warm)
    return BatchFigures(
        count=len(batches),
        samples=sum(note.samples for note in batches) / len(batches),
        collate_s=median(note.stop_s - note.start_s for note in warm),
        transfer_s=median(gaps_s) if gaps_s else None,
        size_bytes=round(moved_bytes / delivered) if delivered else 0,
    )


def _gaps_s(samples: Sequence[SampleNote], batches: Sequence[BatchNote]) -> list[float]:
    """Return the time from each batch's end to the first sample of the next."""
    starts_s = sorted(note.start_s for note in samples)
    gaps_s = []
    for batch, following in pairwise(batches):
        after = int(np.searchsorted(starts_s, batch.stop_s))
        if after < len(starts_s) and starts_s[after] < following.start_s:
            gaps_s.append(starts_s[after] - batch.stop_s)
    return gaps_s
