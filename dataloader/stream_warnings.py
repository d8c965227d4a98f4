"""What is said aloud of streams that give more than they should."""

from __future__ import annotations

import warnings

from dataloader.ledger import Epoch
from dataloader.stream_ledger import StreamEpoch, Streams

LEVELS = 4  # from the user's next() to where the warning is given


class StreamWarnings:
    """Warns of a stream that is not shared out, once, and of each batch beyond the length that was stated."""

    def __init__(self, epoch: StreamEpoch) -> None:
        self._epoch = epoch
        self._warned_of = -1  # number of a batch

    @classmethod
    def of(cls, epoch: Epoch) -> StreamWarnings | None:
        """Return what warns of the streams in ``epoch``; None where there are none."""
        return cls(epoch) if isinstance(epoch, StreamEpoch) else None

    def warn(self, number: int, samples: int) -> None:
        """Warn of what is wrong, if anything is, before batch ``number`` is delivered as well.

        ``samples``: how many are delivered with it. Where a filter makes errors of warnings, each comes once
        and instead of no batch.
        """
        streams, unshared = self._epoch.streams, self._epoch.unshared
        if unshared is not None and "unshared" not in streams.warned:
            streams.warned.add("unshared")
            warnings.warn(_unshared(streams, unshared), stacklevel=LEVELS)
        if streams.length is not None and samples > streams.length and number != self._warned_of:
            self._warned_of = number
            warnings.warn(_too_long(streams, samples), stacklevel=LEVELS)


def _unshared(streams: Streams, same: tuple[int, int]) -> str:
    return (
        f"workers {same[0]} and {same[1]} give the same data: each of the {streams.workers} workers iterates "
        f"the whole {streams.name}. Share it out in its __iter__: `info = get_worker_info()`, and where that "
        "is not None yield only every info.num_workers-th sample, from number info.id on"
    )


def _too_long(streams: Streams, samples: int) -> str:
    why = ""
    if streams.workers > 1:
        why = " With several workers each has a copy of the dataset: share it out with get_worker_info()."
    return (
        f"Length of IterableDataset {streams.name} was reported to be {streams.length} (when len(loader) was "
        f"asked for), but {samples} samples have been fetched.{why}"
    )
