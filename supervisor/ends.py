"""The ends of a pool's workers, as they are told: one report of each, however often it is heard of."""

from __future__ import annotations

import logging

from supervisor.report import ExitReport
from supervisor.verdict import ExitReason

logger = logging.getLogger("supervisor")


class Ends:
    """What was told.

    Attributes:
        reports: of every end so far, oldest first; ordered stops included.

    >>> ends = Ends()
    >>> ends.reports, ends.deaths()
    ([], [])
    """

    def __init__(self) -> None:
        self.reports: list[ExitReport] = []
        self._told_before = 0  # of earlier runs

    def begin(self) -> None:
        """Begin a run: a pid may be that of an earlier worker from now on."""
        self._told_before = len(self.reports)

    def deaths(self) -> list[ExitReport]:
        """Return the reports of this run that are of no ordered stop."""
        return [report for report in self._of_this_run if report.is_death]

    def of_worker(self, worker: int) -> list[ExitReport]:
        """Return the reports of this run of the workers with that id."""
        return [report for report in self._of_this_run if report.worker == worker]

    @property
    def _of_this_run(self) -> list[ExitReport]:
        return self.reports[self._told_before :]

    def publish(self, report: ExitReport) -> None:
        """Tell of an end, unless it has been told."""
        if any(known.pid == report.pid for known in self.of_worker(report.worker)):
            return
        self.reports.append(report)
        if report.reason is not ExitReason.CLOSED:
            logger.log(_level(report), "%s", report)

    def note_replaced(self, worker: int, pid: int, replaced_s: float) -> None:
        """Tell that the last worker with that id has a successor, whose process is ``pid``, since so long."""
        report = self.of_worker(worker)[-1]
        if report.replaced_s is None:
            report.replaced_s = replaced_s
            text = "worker %d (pid %d) was replaced in %.1f ms: its successor has pid %d"
            logger.log(_level(report), text, worker, report.pid, replaced_s * 1000, pid)


def _level(report: ExitReport) -> int:
    return logging.INFO if report.is_intended else logging.WARNING
