"""How long a worker has been at one task, and when that is too long.

    taken, at work (SAMPLE, COLLATE)             counts
    sent, not taken, waiting for work (IDLE)     counts: it is stopped
    sending a result (SENDING)                   only while it is stopped: its consumer may be slow
    starting up (STARTING)                       only while it is stopped: that has no limit
    nobody looked: the supervisor was stopped    does not

A task that is begun again, as its page says, begins to count again.

Pure: nobody here looks at a clock or sends a signal. Non-goals: why it takes so long; shutdown, which has
bounds of its own.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable

from supervisor.page import Page, State

LONGEST_STEP_S = 1.0  # between two looks; what is longer was not our own doing
SLOW_S = 30.0
SLOW_FACTOR = 10.0
KEPT_DURATIONS = 101


class TaskClock:
    """Counts the seconds that one worker has been at its task, as far as somebody looked.

    >>> from supervisor.page import BEGUN, PageFile
    >>> page = PageFile.create(workers=1).page(0)
    >>> page.begin(task=7); page.enter(State.SAMPLE); page.seconds[BEGUN] = 10.0
    >>> clock = TaskClock(now=10.0)
    >>> clock.look(page, now=10.5), clock.look(page, now=11.0), clock.look(page, now=99.0)
    (0.5, 1.0, 2.0)
    """

    def __init__(self, now: float) -> None:
        self._looked_s = now
        self._at: tuple[int, float | None] | None = None  # which task, and when it was taken
        self._spent_s = 0.0

    def look(self, page: Page, now: float, is_stopped: Callable[[], bool] = lambda: False) -> float:
        """Return the seconds spent, at ``now`` (seconds); 0 where the worker is at no task.

        ``is_stopped`` tells whether the process is, and is asked only where it matters.
        """
        step_s = min(now - self._looked_s, LONGEST_STEP_S)
        self._looked_s = now
        at = _task_of(page)
        if at is None or at != self._at:
            self._at, self._spent_s = at, 0.0
            step_s = min(step_s, now - at[1]) if at is not None and at[1] is not None else 0.0
        if page.state not in (State.SENDING, State.STARTING) or is_stopped():
            self._spent_s += max(0.0, step_s)
        return self._spent_s


def _task_of(page: Page) -> tuple[int, float | None] | None:
    if page.state in (State.SAMPLE, State.COLLATE, State.SENDING):
        return page.task, page.begun_s
    if page.state is State.STARTING or (page.state is State.IDLE and page.has_untaken):
        return page.task, None
    return None


class Durations:
    """What tasks took lately, to tell an unusual one.

    >>> durations = Durations()
    >>> durations.is_slow(29.0), durations.is_slow(31.0)
    (False, True)
    >>> durations.add(worked_s=8.0, tasks=2)
    >>> durations.is_slow(31.0), durations.is_slow(41.0)
    (False, True)
    """

    def __init__(self) -> None:
        self._recent_s: deque[float] = deque(maxlen=KEPT_DURATIONS)

    def add(self, worked_s: float, tasks: int) -> None:
        """Note that ``tasks`` tasks, at least one, took ``worked_s`` seconds together."""
        self._recent_s.append(worked_s / tasks)

    def is_slow(self, spent_s: float) -> bool:
        """Whether a task that is still in hand has taken unusually long."""
        usual_s = statistics.median(self._recent_s) if self._recent_s else 0.0
        return spent_s >= SLOW_S and spent_s >= SLOW_FACTOR * usual_s
