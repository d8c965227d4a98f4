"""What follows from the figures: what bounds loading, and what to set. Pure: no clock, no process.

bound       the consumer, if it is busy nearly all the time; else what costs a worker most of a batch's time
workers     the fewest that come close to the best throughput measured, and fit in memory; none, where
            receiving a batch costs the loop as much as making it
prefetch    enough batches ahead that a slow one does not hold up the loop, and that fit in memory
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import product

from dataloader.arguments import DEFAULT_PREFETCH
from dataloader.bench.figures import BatchFigures, Machine, Measured, Point, SampleFigures

CLOSE = 0.95  # of the best throughput is as good
BUSY = 0.8  # of the time: nothing more can be asked of a process
COMPUTES, WAITS = 0.7, 0.5  # CPU time over time: above it samples compute, below it they mostly wait
THREADED = 1.5  # CPU time over time: above it samples use several threads
MAX_PREFETCH = 8
MEMORY_SHARE = 0.8  # of what is available may be taken
BATCHES_IN_HAND = 2  # beside those ahead: the one that the loop has, and the one that is under way
SMALL_BYTES = 1 << 16  # to move so much, or to stack it, takes no time to speak of
NOISY_LOAD = 0.5  # load average per core, from which on other processes disturb


class Bound(str, Enum):
    """What limits the throughput."""

    SAMPLES = "samples"
    COLLATE = "collate"
    TRANSFER = "transfer"
    CONSUMER = "consumer"


@dataclass(frozen=True)
class Parts:
    """Where the time of one batch goes in a worker, in seconds."""

    samples_s: float
    collate_s: float
    transfer_s: float

    def largest(self) -> Bound:
        """Return which part is the largest."""
        parts = {
            Bound.SAMPLES: self.samples_s,
            Bound.COLLATE: self.collate_s,
            Bound.TRANSFER: self.transfer_s,
        }
        return max(parts, key=lambda bound: parts[bound])


@dataclass(frozen=True)
class Verdict:
    """What to do.

    Parameters:
        bound: what limits the throughput; None where too little was measured to tell.
        num_workers, prefetch_factor: what to set; None: cannot be told; no prefetch_factor without workers.
        batches_bytes: what batches take then, those ahead and those in hand.
        workers_bytes: what the workers take of their own then; None: not known.
        advice: sentences.
    """

    bound: Bound | None
    num_workers: int | None
    prefetch_factor: int | None
    batches_bytes: int
    workers_bytes: int | None
    advice: tuple[str, ...]


def ladder(cores: int) -> tuple[int, ...]:
    """Return the numbers of workers that are worth measuring.

    >>> ladder(1), ladder(6)
    ((0, 1), (0, 1, 2, 4, 6))
    """
    doublings = [2**power for power in range(cores.bit_length()) if 2**power < cores]
    return (0, *doublings, cores)


def judge(measured: Measured, wanted_batch_size: int | None = None) -> Verdict:
    """Return what follows from what was measured.

    ``wanted_batch_size``: of the loader, where too little came to know how many samples a batch has.
    """
    samples, batch, best = measured.samples, measured.batch, best_point(measured.points)
    if best is None or samples is None or batch is None:
        return Verdict(None, None, None, 0, None, (_too_slow(samples, wanted_batch_size),))
    room_bytes = int(MEMORY_SHARE * measured.machine.available_bytes)
    wanted = prefetch_for(samples, batch.samples)
    chosen, prefetch = that_fit(measured.points, best, wanted, batch.size_bytes, room_bytes)
    bound = bound_of(parts_of(samples, batch), chosen)
    advice = [
        _advice(measured, samples, chosen, bound),
        "" if chosen is best else SHORT_OF_MEMORY,
        _doubt(measured.machine),
    ]
    return Verdict(
        bound=bound,
        num_workers=chosen.num_workers,
        prefetch_factor=prefetch if chosen.num_workers else None,
        batches_bytes=batches_bytes(chosen.num_workers, prefetch, batch.size_bytes),
        workers_bytes=_workers_bytes(chosen),
        advice=tuple(sentence for sentence in advice if sentence),
    )


# ---- what bounds it ------------------------------------------------------------------------------


def parts_of(samples: SampleFigures, batch: BatchFigures) -> Parts:
    """Return where the time of a batch goes in a worker."""
    return Parts(samples.mean_s * batch.samples, batch.collate_s, batch.transfer_s or 0.0)


def bound_of(parts: Parts, point: Point) -> Bound:
    """Return what limits the throughput at ``point``."""
    if point.num_workers == 0:  # nothing is sent
        return replace(parts, transfer_s=0.0).largest()
    return Bound.CONSUMER if point.consumer_share >= BUSY else parts.largest()


# ---- what to set ---------------------------------------------------------------------------------


def best_point(points: Sequence[Point]) -> Point | None:
    """Return the point with the fewest workers that comes close to the best throughput; None: no figures.

    That without workers is it only if a batch holds up the loop for no longer than receiving one would: the
    loop of a training goes on while workers load.
    """
    told = [point for point in points if point.samples_per_s]
    most = max((_rate(point) for point in told if point.num_workers), default=0.0)
    close = [point for point in told if point.num_workers and _rate(point) >= CLOSE * most]
    chosen = min(close, key=lambda point: point.num_workers, default=None)
    alone = next((point for point in told if point.num_workers == 0), None)
    if alone is None or chosen is None:
        return alone or chosen
    return alone if alone.elapsed_s / alone.batches <= chosen.consumer_s / chosen.batches else chosen


def _rate(point: Point) -> float:
    return point.samples_per_s or 0.0


def prefetch_for(samples: SampleFigures, batch_samples: float) -> int:
    """Return how many batches ahead per worker keep one slow sample from holding up the loop.

    A batch with a sample as slow as the 99th percentile takes so many times as long as others.
    """
    usual_s = samples.mean_s * batch_samples
    slow_s = usual_s + max(0.0, samples.p99_s - samples.mean_s)
    ahead = math.ceil(slow_s / usual_s) if usual_s > 0 else 1
    return max(DEFAULT_PREFETCH, min(MAX_PREFETCH, ahead))


def batches_bytes(num_workers: int, prefetch: int, batch_bytes: int) -> int:
    """Return what batches take.

    >>> batches_bytes(num_workers=4, prefetch=2, batch_bytes=100)
    1000
    """
    ahead = num_workers * prefetch + BATCHES_IN_HAND if num_workers else 1
    return ahead * batch_bytes


def that_fit(
    points: Sequence[Point], best: Point, prefetch: int, batch_bytes: int, room_bytes: int
) -> tuple[Point, int]:
    """Return ``best`` and ``prefetch``, or as much as there is memory for: less prefetch, then fewer workers.

    Where no memory is enough it is the point with the fewest workers.
    """
    if best.num_workers == 0:
        return best, prefetch
    told = [point for point in points if point.samples_per_s and 0 < point.num_workers <= best.num_workers]
    fewest_last = sorted(told, key=lambda point: -point.num_workers)
    for point, ahead in product(fewest_last, range(prefetch, 0, -1)):
        taken_bytes = batches_bytes(point.num_workers, ahead, batch_bytes) + (_workers_bytes(point) or 0)
        if taken_bytes <= room_bytes:
            return point, ahead
    return fewest_last[-1], 1


def _workers_bytes(point: Point) -> int | None:
    return None if point.worker_bytes is None else point.num_workers * point.worker_bytes


# ---- what to say ---------------------------------------------------------------------------------

SHORT_OF_MEMORY = "More workers would be faster, but memory is short: give each less, or shrink batches."


def _advice(measured: Measured, samples: SampleFigures, chosen: Point, bound: Bound) -> str:
    if bound is Bound.SAMPLES:
        return _sample_advice(measured, samples, chosen)
    if (
        bound in (Bound.COLLATE, Bound.TRANSFER)
        and measured.batch
        and measured.batch.size_bytes < SMALL_BYTES
    ):
        return (
            "A batch is small, so that it is not its bytes that take time but that there is a batch at all: "
            "make batches larger, if the job allows it, or try num_workers=0."
        )
    if bound is Bound.COLLATE:
        return (
            "Collating takes most of a batch's time: return smaller types (uint8 rather than float32), and "
            "let a collate_fn of your own write into dataloader.empty()."
        )
    if bound is Bound.TRANSFER:
        return (
            "Moving batches between processes takes most of their time: return smaller types (uint8 rather "
            "than float32), and let a collate_fn of your own write into dataloader.empty()."
        )
    return "The process that receives batches is busy nearly all the time: more workers do not help."


def _sample_advice(measured: Measured, samples: SampleFigures, chosen: Point) -> str:
    cores = measured.machine.cores
    if samples.cpu_share > THREADED:
        return (
            f"Samples use {samples.cpu_share:.1f} threads each, and workers get into each other's way: set "
            "OMP_NUM_THREADS=1, or the like."
        )
    if samples.cpu_share < WAITS:
        most = max(cores, *(point.num_workers for point in measured.points))
        return (
            f"Samples wait {1 - samples.cpu_share:.0%} of their time (disk, network, other processes), so "
            f"more workers than cores may pay: measure --num-workers {most},{2 * most},{4 * most}."
        )
    if chosen.num_workers >= cores and samples.cpu_share > COMPUTES:
        return f"Samples compute, and all {cores} usable cores are at it: make samples cheaper."
    return ""


def _doubt(machine: Machine) -> str:
    if machine.load <= NOISY_LOAD * machine.cores:
        return ""
    return (
        f"Other processes use this machine (load average {machine.load:.1f}, {machine.cores} usable cores): "
        "repeat when it is quiet."
    )


def _too_slow(samples: SampleFigures | None, batch_size: int | None) -> str:
    if samples is None:
        return "Not one sample came in time, which workers need to start, too: raise --seconds."
    took = f"Too few batches came in time: a sample takes {samples.mean_s:.3g} s"
    if batch_size is None:
        return f"{took}. Raise --seconds."
    batch_s = samples.mean_s * batch_size
    return f"{took}, a batch about {batch_s:.3g} s. Raise --seconds, or lower --batch-size."
