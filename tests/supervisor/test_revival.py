"""Whether another supervisor follows a dead one. What then happens: see test_supervisor_deaths."""

from __future__ import annotations

import signal

from supervisor.policy import RestartPolicy
from supervisor.report import supervisor_report
from supervisor.revival import Demise, Succession
from supervisor.verdict import LOST

KILLED, EXITED = int(signal.SIGKILL), 1 << 8


def demise(at_s: float, status: int = KILLED, was_up: bool = True, progressed: bool = False) -> Demise:
    return Demise(at_s, status, was_up, progressed)


def verdict(policy: RestartPolicy | None, *demises: Demise, start_method: str = "forkserver") -> float | str:
    succession = Succession(start_method, policy)
    for pid, one in enumerate(demises):
        succession.note(pid, one)
    return succession.verdict()


def test_the_first_follows_at_once_the_next_after_the_back_off_which_progress_ends() -> None:
    policy = RestartPolicy(backoff=0.5)
    assert verdict(policy, demise(10.0)) == 10.0
    assert verdict(policy, demise(10.0), demise(11.0)) == 11.5
    assert verdict(policy, demise(10.0), demise(11.0), demise(12.0)) == 13.0
    assert verdict(policy, demise(10.0), demise(11.0), demise(12.0, progressed=True)) == 12.0


def test_too_many_within_a_period_are_not_followed() -> None:
    policy = RestartPolicy(max_restarts=1, period=10.0, backoff=0.0)
    assert "death number 2 within 10 s" in str(verdict(policy, demise(10.0), demise(11.0)))
    assert verdict(policy, demise(10.0), demise(21.0)) == 21.0


def test_an_end_that_was_noted_is_not_counted_again() -> None:
    succession = Succession("spawn", RestartPolicy(max_restarts=1))
    for at_s in (10.0, 11.0, 12.0):
        succession.note(4711, demise(at_s))
    assert succession.verdict() == 10.0


def test_none_follows_under_fork_without_a_policy_or_after_an_exit_in_start_up() -> None:
    assert "as it is now" in str(verdict(RestartPolicy(), demise(1.0), start_method="fork"))
    assert "restart=None" in str(verdict(None, demise(1.0)))
    assert "in its start-up" in str(verdict(RestartPolicy(), demise(1.0, EXITED, was_up=False)))
    assert verdict(RestartPolicy(), demise(1.0, EXITED)) == 1.0
    assert verdict(RestartPolicy(), demise(1.0, KILLED, was_up=False)) == 1.0


def test_a_status_that_is_lost_is_not_guessed() -> None:
    report = supervisor_report(4711, LOST)
    assert (report.exit_code, report.signal, report.confidence) == (None, None, "unknown")
    assert "its exit status is lost" in str(report)
