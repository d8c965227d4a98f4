"""Samples that cannot be loaded, and what the user wants done with them.

    raised in a sample       Failure, and the batch made of the others   \\
    raised in collate        the batch's exception                        >  SampleError -> "raise", "skip"
    ended too many workers   WorkerDiedError, with a report of each end  /

A sample that is skipped leaves its batch shorter; a batch of which nothing is left is left out.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from supervisor import exceptions
from supervisor.report import ExitReport

Decision = Literal["raise", "skip"]


@dataclass(frozen=True)
class SampleError:
    """A sample that could not be loaded, or that ended its worker too often.

    Parameters:
        index: the sample's; a list of indices where it cannot be told which of them it was: an exception in
            ``collate_fn``, or in ``__getitems__`` without a ``__getitem__`` beside it.
        exception: what was raised; a WorkerDiedError where workers died of it.
        traceback: the text of its traceback, or of the last crash; "" if there is none.
        report: the last worker's end, or None where none ended.
        epoch, batch: numbers of the epoch and of the batch in it.

    >>> def only_broken_files(error):
    ...     return "skip" if isinstance(error.exception, OSError) else "raise"
    """

    index: Any
    exception: BaseException
    traceback: str = ""
    report: ExitReport | None = None
    epoch: int = 0
    batch: int = 0

    def __repr__(self) -> str:
        """Return one line, whatever the traceback and the report hold."""
        return f"<{type(self).__name__}: {self}>"

    def __str__(self) -> str:
        what = "samples" if isinstance(self.index, list) else "sample"
        why, *_ = exceptions.describe(self.exception, "was raised").splitlines()
        return f"{what} {reprlib.repr(self.index)} of batch {self.batch}, epoch {self.epoch}: {why}"


OnError = Decision | Callable[[SampleError], Decision]


def decide(on_error: OnError, error: SampleError) -> Decision:
    """Return what is to be done about ``error``.

    Raises:
        ValueError: a callable returned something else than one of the two words.
        Exception: whatever it raises.
    """
    decision = on_error(error) if callable(on_error) else on_error
    if decision not in ("raise", "skip"):
        raise ValueError(f"on_error returned {decision!r}: let it return 'raise' or 'skip'")
    return decision


class Failure(NamedTuple):
    """A sample that raised. ``error``: what it raised, packed where it comes from a worker."""

    position: int
    error: Any


class StreamBroken(RuntimeError):
    """A stream cannot go on: what follows cannot be reached. It is raised whatever ``on_error`` is."""


class Survivors(NamedTuple):
    """A batch of those samples that could be loaded, and the failures of the others."""

    batch: Any
    failures: Sequence[Failure]


def packed_failures(batch: Survivors, where: Callable[[int], str]) -> Survivors:
    """Return ``batch`` with its failures ready to travel. ``where`` tells people what is at a position."""
    packed = [
        Failure(position, exceptions.pack(error, where(position))) for position, error in batch.failures
    ]
    for _, error in batch.failures:
        error.with_traceback(None)  # whose frames hold the samples, and each other
    return batch._replace(failures=packed)
