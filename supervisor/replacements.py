"""Who is replaced, and when. Decisions only: no process is started or ended here, and no clock is read.

a death  -->  by the policy's window and back-off: a successor is due, now or later
         -->  for want of memory, with shrink_on_oom: none, and the others go on
         -->  otherwise: nobody is replaced any more, and why
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from supervisor.messages import Settings
from supervisor.policy import RestartWindow
from supervisor.report import ExitReport
from supervisor.verdict import ExitReason


@dataclass(frozen=True)
class Restart:
    """A replacement that is due at some time, for a worker whose death was noticed at another."""

    due_s: float
    worker: int
    restarts: int
    death_s: float


class Replacements:
    """The replacements of one run.

    Parameters:
        settings: see Settings.
        resumes: workers of this run were ready before, under another supervisor.

    Attributes:
        waiting: those that are not due yet, or were not taken.
    """

    def __init__(self, settings: Settings, *, resumes: bool = False) -> None:
        self._policy = settings.policy
        self._judges = settings.judges
        self._window = None if settings.policy is None else RestartWindow(settings.policy)
        self._someone_was_ready = resumes
        self._gave_up = False
        self.waiting: list[Restart] = []

    def shrinks_after(self, report: ExitReport, living: int) -> bool:
        """Whether the others go on without a replacement: never without any of them."""
        shrinks = self._policy is not None and self._policy.shrink_on_oom
        others = living + len(self.waiting)
        return shrinks and report.reason is ExitReason.OOM_KILLED and others > 0 and not self._gave_up

    def decide(self, report: ExitReport, restarts: int, now_s: float, *, was_ready: bool) -> str | None:
        """Have a dead worker replaced, or give up and return why.

        Parameters:
            report: of its end.
            restarts: how many came before it.
            now_s: when the death was noticed.
            was_ready: it had completed its start-up.
        """
        why = self._why_not_replace(report, restarts, now_s, during_startup=not was_ready)
        if isinstance(why, str):
            return why if self.give_up() else None
        if not self._gave_up:
            self.waiting.append(Restart(now_s + why, report.worker, restarts + 1, now_s))
        return None

    def _why_not_replace(
        self, report: ExitReport, restarts: int, now_s: float, *, during_startup: bool
    ) -> float | str:
        """Return after how many seconds to replace, or why not to."""
        if report.reason is ExitReason.MEMORY_LIMIT:
            return 0.0  # it was our choice
        if self._window is None:
            return "It was not replaced, because restart=None."
        if self._judges and report.task is not None:
            self._window.hold(report.pid, now_s, reason=report.reason.value)
            return 0.0
        if during_startup and not self._someone_was_ready:
            return "It died in its start-up, before any worker was ready."
        if during_startup and restarts == 0 and report.reason is ExitReason.EXCEPTION:
            return "Its start-up failed."
        # A kill from outside says nothing of the start-up: it counts in the window alone.
        fails = during_startup and report.reason is not ExitReason.KILLED
        delay_s = self._window.allow(now_s, during_startup=fails, reason=report.reason.value)
        return self._window.why_exhausted() if delay_s is None else delay_s

    def judge(self, pid: int, now_s: float, *, counts: bool) -> str | None:
        """Let a death count, or not, that was held until now; return why nobody is replaced from now on."""
        if self._window is None:
            return None
        self._window.judge(pid, counts=counts, now=now_s)
        return self._window.why_exhausted() if self._window.is_exhausted and self.give_up() else None

    def give_up(self) -> bool:
        """Replace nobody from now on; return whether that is new."""
        is_new, self._gave_up = not self._gave_up, True
        self.waiting.clear()
        return is_new

    def take_due(self, now_s: float) -> list[Restart]:
        """Return those that are due, which then wait no longer."""
        due = [restart for restart in self.waiting if restart.due_s <= now_s]
        self.waiting = [restart for restart in self.waiting if restart.due_s > now_s]
        return due

    def note_progress(self, now_s: float) -> None:
        """A completed task resets the back-off, also of replacements that are waiting."""
        if self._window is not None:
            self._window.progress()
            self.waiting = [replace(restart, due_s=min(restart.due_s, now_s)) for restart in self.waiting]

    def note_ready(self) -> None:
        """Take note that a worker has completed its start-up."""
        self._someone_was_ready = True
        if self._window is not None:
            self._window.startup_succeeded()
