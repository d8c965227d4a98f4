"""An ordered stop: what is sent to all workers at once, and when.

    their pipes close --- close_s ---> SIGTERM --- terminate_s ---> SIGKILL --- AFTER_KILL_S ---> given up

Pure: nobody here looks at a clock or sends a signal.
"""

from __future__ import annotations

import signal
from collections import deque

AFTER_KILL_S = 5.0  # a process in the kernel's hands may not die at once


class OrderedStop:
    """The stop that began at ``now`` (seconds), when the pipes had been closed.

    >>> stop = OrderedStop(now=0.0, close_s=1.0, terminate_s=2.0)
    >>> stop.due(now=0.5), [int(number) for number in stop.due(now=1.5)], stop.next_s
    ([], [15], 3.0)
    >>> stop.due(now=10.0), stop.is_given_up
    ([<Signals.SIGKILL: 9>], True)
    """

    def __init__(self, now: float, close_s: float, terminate_s: float) -> None:
        terminate_at_s = now + close_s
        kill_at_s = terminate_at_s + terminate_s
        self._signals = deque([(terminate_at_s, signal.SIGTERM), (kill_at_s, signal.SIGKILL)])
        self._end_s = kill_at_s + AFTER_KILL_S
        self.is_given_up = False

    @property
    def next_s(self) -> float:
        """When something is due next."""
        return self._signals[0][0] if self._signals else self._end_s

    def due(self, now: float) -> list[signal.Signals]:
        """Return the signals that are to be sent at ``now``, each once."""
        due = []
        while self._signals and self._signals[0][0] <= now:
            due.append(self._signals.popleft()[1])
        self.is_given_up = now >= self._end_s
        return due
