"""What a loader has delivered so far, and what that took."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from dataloader.sample_errors import SampleError


class Progress(NamedTuple):
    """How far an iterator is: samples delivered or skipped, and in all, None where that is not known."""

    items: int
    total: int | None


class Delivered(NamedTuple):
    """What an iterator has delivered. An exception counts as the batch that it came instead of."""

    batches: int = 0
    samples: int = 0
    bytes: int = 0
    skipped: int = 0

    def plus(self, samples: int, bytes: int, skipped: int = 0) -> Delivered:
        """Return this with a batch of ``samples`` more, of which ``skipped`` are left out; or all, and it."""
        return Delivered(
            self.batches + (skipped < samples or not samples),
            self.samples + samples - skipped,
            self.bytes + bytes,
            self.skipped + skipped,
        )

    @property
    def items(self) -> int:
        """How many samples are over and done with."""
        return self.samples + self.skipped


class Tally:
    """What one iterator has delivered and skipped, and how long its user waited.

    Figures are one attribute, so that one store counts a batch: no interrupt counts it twice, or not.
    """

    __slots__ = ("delivered", "skipped", "waited_s")

    def __init__(self) -> None:
        self.delivered = Delivered()
        self.skipped: tuple[SampleError, ...] = ()
        self.waited_s = 0.0


@dataclass(frozen=True)
class LoaderStats:
    """Figures of all epochs of a loader so far.

    Parameters:
        batches: how many were delivered.
        samples: how many were in them.
        skipped: how many were left out.
        bytes: how much was moved between processes; 0 without workers.
        waited_s: seconds that ``next()`` waited for a batch, or made it.
        worked_s: by worker id, seconds worked on what was completed.
        deaths: how many workers died.
    """

    batches: int
    samples: int
    skipped: int
    bytes: int
    waited_s: float
    worked_s: dict[int, float]
    deaths: int


def sums(first: dict[int, float], second: dict[int, float]) -> dict[int, float]:
    """Return the sum of both by key.

    >>> sums({0: 1.0}, {0: 2.0, 1: 5.0})
    {0: 3.0, 1: 5.0}
    """
    return {key: first.get(key, 0.0) + second.get(key, 0.0) for key in sorted(first.keys() | second.keys())}
