"""What broke a pool, and the exception that tells its user.

it failed            what went wrong in the supervisor, or on the way from it
it gave up           the dead are no longer replaced: a start-up's own exception if there was one, or else
                     WorkerDiedError, with the reports, from what the last worker raised
"""

from __future__ import annotations

from collections.abc import Sequence

from supervisor import exceptions
from supervisor.report import ExitReport, WorkerDiedError


class Breakage:
    """What is known of one run. Exceptions are packed: see ``exceptions``.

    Attributes:
        failure: what went wrong, or None.
        gave_up: why the dead are no longer replaced, or None.
        last: what a worker, or the supervisor, was ended by last.

    >>> breakage = Breakage()
    >>> breakage.exists, breakage.error([], "Worker")
    (False, None)
    """

    def __init__(self) -> None:
        self.failure: bytes | None = None
        self.gave_up: str | None = None
        self.last: bytes | None = None
        self._start_error: bytes | None = None

    def note_exception(self, packed: bytes, *, in_start_up: bool) -> None:
        """Take note of what ended a worker."""
        self.last = packed
        if in_start_up:
            self._start_error = packed

    @property
    def exists(self) -> bool:
        return self.gave_up is not None or self.failure is not None

    def error(self, deaths: Sequence[ExitReport], kind: str) -> BaseException | None:
        """Return what is to be raised, None if nothing is broken. ``kind``: what to call a worker."""
        if self.failure is not None:
            return exceptions.unpack(self.failure)
        if self.gave_up is None:
            return None
        if self._start_error is not None:
            return exceptions.unpack(self._start_error)
        error = WorkerDiedError(deaths, self.gave_up, kind)
        error.__cause__ = None if self.last is None else exceptions.unpack(self.last)
        error.__suppress_context__ = True
        return error
