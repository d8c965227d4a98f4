"""Each end is told once, in the run that it belongs to."""

from __future__ import annotations

import logging

import pytest

from supervisor.ends import Ends
from supervisor.report import ExitReport
from supervisor.verdict import ExitReason


def report(worker: int, pid: int, reason: ExitReason = ExitReason.KILLED) -> ExitReport:
    return ExitReport(worker, pid, reason)


def test_what_is_heard_twice_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    ends = Ends()
    ends.publish(report(0, 11))
    ends.publish(report(0, 11))
    ends.publish(report(1, 12))
    assert [told.pid for told in ends.reports] == [11, 12]
    assert len(caplog.records) == 2


def test_a_pid_can_be_anothers_in_the_next_run() -> None:
    ends = Ends()
    ends.publish(report(0, 11))
    ends.begin()
    assert ends.deaths() == ends.of_worker(0) == []
    ends.publish(report(0, 11))
    assert [told.pid for told in ends.reports] == [11, 11]
    assert len(ends.deaths()) == len(ends.of_worker(0)) == 1


def test_an_ordered_stop_is_no_death_and_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    ends = Ends()
    with caplog.at_level(logging.INFO):
        ends.publish(report(0, 11, ExitReason.CLOSED))
    assert len(ends.reports) == 1
    assert (ends.deaths(), caplog.records) == ([], [])


def test_a_replacement_is_told_once_of_the_last_end(caplog: pytest.LogCaptureFixture) -> None:
    ends = Ends()
    ends.publish(report(0, 11))
    ends.publish(report(0, 12, ExitReason.MEMORY_LIMIT))
    with caplog.at_level(logging.INFO):
        ends.note_replaced(0, 13, 0.005)
        ends.note_replaced(0, 13, 0.007)
    assert [told.replaced_s for told in ends.reports] == [None, 0.005]
    (*_, record) = caplog.records
    assert (record.levelno, "successor has pid 13" in record.getMessage()) == (logging.INFO, True)
