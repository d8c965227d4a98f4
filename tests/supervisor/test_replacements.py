"""Who is replaced, and when: by numbers alone."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.messages import Settings
from supervisor.policy import RestartPolicy
from supervisor.replacements import Replacements
from supervisor.report import ExitReport
from supervisor.verdict import ExitReason

KILLED, EXCEPTION, OOM = ExitReason.KILLED, ExitReason.EXCEPTION, ExitReason.OOM_KILLED


def replacements(*, resumes: bool = True, judges: bool = False, **policy: Any) -> Replacements:
    bounds = RestartPolicy(**policy) if policy.pop("restarts", True) else None
    return Replacements(Settings(1, "fork", bounds, 0.25, 0.25, 0.25, judges=judges), resumes=resumes)


def report(worker: int = 0, reason: ExitReason = KILLED, **fields: Any) -> ExitReport:
    return ExitReport(worker, 4711, reason, **fields)


def waiting(ours: Replacements) -> list[tuple[float, int]]:
    return [(restart.due_s, restart.worker) for restart in ours.waiting]


def test_the_first_is_due_at_once_and_the_next_later() -> None:
    ours = replacements(backoff=0.5)
    assert ours.decide(report(0), 0, 10.0, was_ready=True) is None
    assert ours.decide(report(1), 0, 10.0, was_ready=True) is None
    assert waiting(ours) == [(10.0, 0), (10.5, 1)]
    (due,) = ours.take_due(10.4)
    assert (due.worker, due.restarts, due.death_s) == (0, 1, 10.0)
    assert waiting(ours) == [(10.5, 1)]


def test_progress_makes_those_that_wait_due() -> None:
    ours = replacements(backoff=100.0, period=100.0)
    for worker in (0, 1):
        ours.decide(report(worker), 0, 10.0, was_ready=True)
    ours.note_progress(11.0)
    assert [restart.worker for restart in ours.take_due(11.0)] == [0, 1]


def test_who_gives_up_replaces_nobody_and_says_why_once() -> None:
    ours = replacements(max_restarts=1)
    assert ours.decide(report(0), 0, 10.0, was_ready=True) is None
    assert "death number 2" in str(ours.decide(report(1), 0, 10.0, was_ready=True))
    assert ours.waiting == []
    assert ours.decide(report(2), 0, 10.0, was_ready=True) is None
    assert ours.waiting == []


def test_without_a_policy_nobody_is_replaced_but_by_our_choice() -> None:
    ours = replacements(restarts=False)
    assert ours.decide(report(0, ExitReason.MEMORY_LIMIT), 0, 10.0, was_ready=True) is None
    assert waiting(ours) == [(10.0, 0)]
    assert "restart=None" in str(ours.decide(report(1), 0, 10.0, was_ready=True))


@pytest.mark.parametrize(
    ("resumes", "restarts", "reason", "gives_up"),
    [
        (False, 0, KILLED, "before any worker was ready"),
        (False, 0, EXCEPTION, "before any worker was ready"),
        (True, 0, EXCEPTION, "start-up failed"),
        (True, 1, EXCEPTION, None),
        (True, 0, KILLED, None),
    ],
)
def test_a_death_in_a_start_up(
    resumes: bool, restarts: int, reason: ExitReason, gives_up: str | None
) -> None:
    ours = replacements(resumes=resumes)
    why = ours.decide(report(0, reason), restarts, 10.0, was_ready=False)
    assert why is None if gives_up is None else gives_up in str(why)
    assert len(ours.waiting) == (gives_up is None)


def test_a_worker_that_was_ready_changes_what_a_start_up_means() -> None:
    ours = replacements(resumes=False)
    ours.note_ready()
    assert ours.decide(report(), 0, 10.0, was_ready=False) is None


def test_a_death_that_is_held_counts_once_it_is_judged() -> None:
    ours = replacements(judges=True, max_restarts=0)
    assert ours.decide(report(task=3), 0, 10.0, was_ready=True) is None
    assert waiting(ours) == [(10.0, 0)]
    assert ours.judge(4711, 11.0, counts=False) is None
    assert ours.decide(report(task=4), 0, 12.0, was_ready=True) is None
    assert "death number 1" in str(ours.judge(4711, 13.0, counts=True))
    assert ours.judge(4711, 14.0, counts=True) is None


@pytest.mark.parametrize(
    ("shrinks", "reason", "living", "expected"),
    [(True, OOM, 1, True), (True, OOM, 0, False), (True, KILLED, 1, False), (False, OOM, 1, False)],
)
def test_others_go_on_without(shrinks: bool, reason: ExitReason, living: int, expected: bool) -> None:
    ours = replacements(shrink_on_oom=shrinks)
    assert ours.shrinks_after(report(0, reason), living) is expected


def test_one_that_waits_is_another() -> None:
    ours = replacements(shrink_on_oom=True)
    ours.decide(report(1), 0, 10.0, was_ready=True)
    assert ours.shrinks_after(report(0, OOM), 0)
    ours.give_up()
    assert not ours.shrinks_after(report(0, OOM), 1)
