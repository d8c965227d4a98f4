"""How a batch gets to its user, whoever made it.

Iterators are classes, not generators: an exception out of a signal handler ends a generator. They follow one
rule: a batch is made ready, then marked as delivered by a single store, then returned, with no call between
the last two, so that no signal handler can run there; attributes set in a row are one store in this sense.
What strikes before it leaves the batch to the next ``next()``; after it the batch is the caller's, and
counted. What is stored then is worked out here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dataloader.ledger import Job
from dataloader.sample_errors import SampleError
from dataloader.state import Bookmark, Position
from dataloader.stats import Delivered, Progress, Tally
from dataloader.watch import Watch
from supervisor import exceptions


class EpochIterator:
    """What iterators have in common."""

    _watch: Watch
    _bookmark: Bookmark

    @property
    def progress(self) -> Progress:
        """Samples delivered so far, and samples in all."""
        return self._watch.progress

    def become(self, head: Any) -> None:
        """Take over what a loader of another class begins an epoch with: see ``opening.Start``."""

    def __iter__(self) -> Iterator[Any]:
        return self

    def state_dict(self) -> dict[str, Any]:
        """Return where its user is: see DataLoader."""
        return self._bookmark.state_dict()

    def __next__(self) -> Any:
        """Return the next batch."""
        raise NotImplementedError


def fit_to_raise(error: BaseException | None, job: Job) -> BaseException | None:
    """Return ``error``, or a RuntimeError from it where it would end a loop or the program."""
    if not isinstance(error, exceptions.CONTROL_FLOW):
        return error
    wrapped = RuntimeError(exceptions.describe(error, f"in batch {job.number}"))
    wrapped.__cause__ = error
    return wrapped


def counts(tally: Tally, job: Job, moved_bytes: int) -> tuple[Delivered, tuple[SampleError, ...]]:
    """Return what ``tally`` has to say once ``job`` is delivered, or left out."""
    delivered = tally.delivered.plus(len(job.indices), moved_bytes, job.skipped_samples if job.skips else 0)
    return delivered, (*tally.skipped, *job.skips.values()) if job.skips else tally.skipped


def position_after(
    bookmark: Bookmark, job: Job, error: BaseException | None, dataset: Any = None
) -> Position:
    """Return where the user is once ``job`` is delivered, or left out."""
    came = error is None and not (job.skips and job.is_left_out)
    number = job.number if job.of_stream is None else bookmark.position.next
    return bookmark.position.after(number, job.indices, job.mark, dataset, came=came)
