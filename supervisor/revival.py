"""What follows when the supervisor dies: its workers are ended, and another takes its place, or none does.

    it dies --> what it had said is read --> its workers are killed --> their deaths are certain
            --> what they had sent whole is read --> a report for each --> another supervisor, when it is due

Here are the decision, which is pure, and the killing. The steps themselves are the pool's: each can be
repeated, so that an interrupt between two of them loses nothing. A supervisor forked from the consumer is not
followed by another, which would see the consumer as it is by then.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import NamedTuple

from supervisor.page import State
from supervisor.policy import RestartPolicy, RestartWindow
from supervisor.pool_worker import PoolWorker
from supervisor.report import ExitReport
from supervisor.verdict import ExitReason

ORPHANS_S = 5.0  # a process in the kernel's hands may not die at once
POLL_S = 0.001


class Demise(NamedTuple):
    """The end of one supervisor.

    Parameters:
        at_s: when it was noticed.
        status: its wait status.
        was_up: it had said something before.
        progressed: one of its last workers had completed a task.
    """

    at_s: float
    status: int
    was_up: bool
    progressed: bool


class Succession:
    """The ends of a pool's supervisors since its workers were started, and what follows from them.

    >>> succession = Succession("spawn", RestartPolicy(max_restarts=1))
    >>> succession.note(4711, Demise(10.0, status=9, was_up=True, progressed=False)); succession.verdict()
    10.0
    >>> succession.note(4712, Demise(11.0, status=9, was_up=True, progressed=False))
    >>> str(succession.verdict()).partition(":")[0]
    'It was not replaced'
    """

    def __init__(self, start_method: str, policy: RestartPolicy | None) -> None:
        self._can_follow = start_method != "fork"
        self._policy = policy
        self._demises: dict[int, Demise] = {}  # by pid

    def note(self, pid: int, demise: Demise) -> None:
        """Take note of an end, at least one before a verdict. What was noted first of a pid is kept."""
        self._demises.setdefault(pid, demise)

    def verdict(self) -> float | str:
        """Return when another supervisor is to be started after the last end, or why none is."""
        last = list(self._demises.values())[-1]
        if not self._can_follow:
            return "Under fork no other takes its place: it would see this process as it is now."
        if self._policy is None:
            return "It was not replaced, because restart=None."
        if not last.was_up and os.WIFEXITED(last.status):
            return "It was not replaced: it ended by itself in its start-up."
        return _due_s(self._policy, list(self._demises.values()))


def _due_s(policy: RestartPolicy, demises: Sequence[Demise]) -> float | str:
    window, delay_s = RestartWindow(policy), None
    for demise in demises:
        if demise.progressed:
            window.progress()
        delay_s = window.allow(demise.at_s)
    return window.why_exhausted() if delay_s is None else demises[-1].at_s + delay_s


def end_orphans(workers: Sequence[PoolWorker]) -> list[PoolWorker]:
    """Kill workers and what they started. Return those whose death is uncertain even after ORPHANS_S."""
    for worker in workers:
        worker.kill()
    end_s = time.monotonic() + ORPHANS_S
    while (living := [worker for worker in workers if not worker.is_gone()]) and time.monotonic() < end_s:
        time.sleep(POLL_S)
    return living


def orphan_report(worker: PoolWorker, *, asked: bool) -> ExitReport:
    """Return the report of a worker that ended with its supervisor, or before that could tell of it.

    ``asked``: the worker had been asked to end.
    """
    state = worker.page.state
    at_work = state in (State.SAMPLE, State.COLLATE, State.SENDING)
    order = ["it had been asked to end"] if asked else []
    return ExitReport(
        worker=worker.worker,
        pid=worker.pid,
        reason=ExitReason.CLOSED if asked else ExitReason.KILLED,
        uptime_s=time.monotonic() - worker.started_s,
        state=state,
        evidence=[*order, "its supervisor died, and with it went this worker's exit status"],
        task=worker.page.task if at_work else None,
        item=worker.page.item if state is State.SAMPLE else None,
    )
