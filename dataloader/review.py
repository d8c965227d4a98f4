"""Asks what becomes of samples that could not be loaded, and notes it on their job."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from dataloader.interrupts import is_interrupt
from dataloader.ledger import Job
from dataloader.sample_errors import Failure, OnError, SampleError, StreamBroken, decide
from supervisor import exceptions
from supervisor.report import ExitReport, WorkerDiedError
from supervisor.verdict import ExitReason

KIND = "DataLoader worker"

logger = logging.getLogger("dataloader")


@dataclass
class Review:
    """What decides about the samples of one epoch.

    Each function notes what is skipped in ``job.skips``, and returns what is to be raised instead of the
    batch, or None. A sample that was decided on is not asked about again.

    Parameters:
        on_error: see DataLoader.
        epoch: number of the epoch.
        max_attempts: how many workers one sample may end.
        timeout_s: how long a worker may be at one batch, 0 for any.
        has_skipped: something was skipped.
    """

    on_error: OnError
    epoch: int
    max_attempts: int = 1
    timeout_s: float = 0
    has_skipped: bool = False

    def of_failures(self, job: Job, failures: Sequence[Failure]) -> BaseException | None:
        """Decide about samples that raised, one by one."""
        for position, error in failures:
            if position not in job.skips:
                raised = self._decide(job, position, error, exceptions.traceback_text(error))
                if raised is not None:
                    return raised
        return None

    def of_batch(self, job: Job, error: BaseException) -> BaseException | None:
        """Decide about a batch that raised as a whole."""
        if self.on_error == "raise" or isinstance(error, StreamBroken):
            return error
        if None in job.skips:
            return None
        return self._decide(job, None, error, exceptions.traceback_text(error))

    def of_accused(self, job: Job, position: int | None, reports: Sequence[ExitReport]) -> None:
        """Decide about a sample that has ended too many workers. What is to be raised is ``job.error``."""
        error = WorkerDiedError(reports, self._story(job, position, reports), KIND)
        if job.of_stream is not None:  # what comes after it cannot be had without it
            job.error = error
            return
        job.error = self._decide(job, position, error, reports[-1].traceback, reports[-1])

    def _decide(
        self,
        job: Job,
        position: int | None,
        error: BaseException,
        text: str,
        report: ExitReport | None = None,
    ) -> BaseException | None:
        sample_error = SampleError(_index(job, position), error, text, report, self.epoch, job.number)
        try:
            if decide(self.on_error, sample_error) == "raise":
                return error
        except Exception as failure:
            if is_interrupt(failure):
                raise
            return _of_function(failure, error)
        job.skips[position] = sample_error
        error.with_traceback(None)  # whose frames hold the batch; the text has it all
        self._log(sample_error)
        return None

    def _log(self, skipped: SampleError) -> None:
        """Log what is left out: the first of an epoch as a warning, for a thousand warnings say no more."""
        level = logging.INFO if self.has_skipped else logging.WARNING
        more = "" if self.has_skipped else "; others in this epoch will be logged as INFO: see loader.skipped"
        self.has_skipped = True
        logger.log(level, "%s is left out%s", skipped, more)

    def _story(self, job: Job, position: int | None, reports: Sequence[ExitReport]) -> str:
        what = _what(job, position)
        count = len(reports)
        story = (
            f"{what} has ended {count} worker{'s' if count > 1 else ''}, and is not tried again: "
            f"RestartPolicy(max_attempts={self.max_attempts})."
        )
        if job.of_stream is not None:
            story += " The stream ends here, for nothing behind it can be had without it."
        elif self.on_error == "raise":
            story += " To go on without it: on_error='skip'."
        hung = reports[-1].reason is ExitReason.HUNG
        return f"DataLoader timed out after {self.timeout_s:g} seconds. {story}" if hung else story


def _of_function(failure: Exception, error: BaseException) -> Exception:
    """Return what ``on_error`` raised, ``error`` as its cause; not such as would end the user's loop."""
    if isinstance(failure, exceptions.CONTROL_FLOW):
        failure = RuntimeError(exceptions.describe(failure, "in on_error"))
    failure.__cause__ = failure.__cause__ or error
    return failure


def _what(job: Job, position: int | None) -> str:
    """Return what has ended workers, at the begin of a sentence."""
    of_stream = "" if job.of_stream is None else f" of stream {job.of_stream}"
    return f"Batch {job.number}" if position is None else f"Sample {job.sample_at(position)!r}{of_stream}"


def _index(job: Job, position: int | None) -> object:
    """Return the index of the sample at ``position``; where it can be any of them, those of all."""
    if position is not None:
        return job.indices[position]
    return job.indices[0] if len(job.indices) == 1 else list(job.indices)
