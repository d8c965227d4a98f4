"""What a pool's user is told, of several things that have gone wrong."""

from __future__ import annotations

from supervisor import exceptions
from supervisor.breakage import Breakage
from supervisor.report import ExitReport, WorkerDiedError
from supervisor.verdict import ExitReason

DEATHS = [ExitReport(0, 4711, ExitReason.KILLED, signal=9)]


def test_an_exception_alone_breaks_nothing() -> None:
    breakage = Breakage()
    breakage.note_exception(exceptions.pack(ValueError("mine")), in_start_up=True)
    assert not breakage.exists
    assert breakage.error(DEATHS, "Worker") is None


def test_who_gave_up_tells_of_the_deaths_and_of_the_last_exception() -> None:
    breakage = Breakage()
    breakage.note_exception(exceptions.pack(KeyError("first")), in_start_up=False)
    breakage.note_exception(exceptions.pack(ValueError("last")), in_start_up=False)
    breakage.gave_up = "It was enough."
    error = breakage.error(DEATHS, "Loader worker")
    assert breakage.exists
    assert isinstance(error, WorkerDiedError)
    assert error.reports == DEATHS
    assert "It was enough." in str(error)
    assert isinstance(error.__cause__, ValueError)


def test_a_start_ups_exception_comes_as_itself() -> None:
    breakage = Breakage()
    breakage.note_exception(exceptions.pack(ValueError("mine")), in_start_up=True)
    breakage.note_exception(exceptions.pack(KeyError("later")), in_start_up=False)
    breakage.gave_up = "Its start-up failed."
    assert isinstance(breakage.error(DEATHS, "Worker"), ValueError)


def test_a_failure_comes_before_all_else() -> None:
    breakage = Breakage()
    breakage.gave_up, breakage.failure = "It was enough.", exceptions.pack(OSError("no more descriptors"))
    assert isinstance(breakage.error(DEATHS, "Worker"), OSError)
