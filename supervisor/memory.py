"""Memory readings of processes, and the limit on a worker's own memory.

Covers: resident memory, a few times a second, cheap enough (15 us) for every worker; and what a worker has
gathered since it was ready, measured against a limit. What it inherited is not charged, nor is what it shares
with others: slots, files. Does not cover: how a process ended.
"""

from __future__ import annotations

import time
from collections import deque
from enum import Enum

import psutil

KEPT_READINGS = 40
UNREADABLE = (psutil.Error, OSError)  # it has gone, or we are out of descriptors
KILL_FACTOR = 1.5
USS_SHARE = 0.01  # of the time, at most, is spent on exact readings: they take 10 ms per GB


class Excess(Enum):
    """How far a worker is above its limit."""

    NONE = 0
    ABOVE = 1
    FAR_ABOVE = 2


def excess(own_bytes: int, limit_bytes: int) -> Excess:
    """Return how far above its limit a worker is that has so much memory of its own.

    >>> excess(100, 100), excess(101, 100), excess(151, 100)
    (<Excess.NONE: 0>, <Excess.ABOVE: 1>, <Excess.FAR_ABOVE: 2>)
    """
    if own_bytes <= limit_bytes:
        return Excess.NONE
    return Excess.ABOVE if own_bytes <= KILL_FACTOR * limit_bytes else Excess.FAR_ABOVE


class MemoryLog:
    """The last readings of one process."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._process: psutil.Process | None = None  # made when it is first wanted: many die before
        self._readings: deque[tuple[float, int]] = deque(maxlen=KEPT_READINGS)
        self._unshared_bytes = 0  # at the last reading
        self._inherited_bytes: int | None = None
        self._exact_from_s = 0.0
        self._not_private_bytes = 0  # of what it has gathered, at the last exact reading

    def read(self, now: float) -> bool:
        """Take a reading at ``now`` (seconds), unless the process has gone; return whether it has not."""
        try:
            self._process = self._process or psutil.Process(self._pid)
            memory = self._process.memory_info()
        except UNREADABLE:
            return False
        if memory.rss:  # a process that has ended and is not reaped yet has none
            self._readings.append((now, memory.rss))
            self._unshared_bytes = memory.rss - memory.shared
        return bool(memory.rss)

    @property
    def status(self) -> str:
        """What the kernel says of the process, as one of psutil's words; "" if it has gone."""
        try:
            self._process = self._process or psutil.Process(self._pid)
            return str(self._process.status())
        except UNREADABLE:
            return ""

    def begin_charge(self, now: float, inherited_bytes: int) -> None:
        """Charge the process for what it has more than when it was ready, for it may be at work by now.

        ``inherited_bytes``: what it had then; below 0: it could not tell, and what it has now is taken.
        """
        self.read(now)
        self._inherited_bytes = self._unshared_bytes if inherited_bytes < 0 else inherited_bytes

    def own_bytes(self, limit_bytes: int, now: float) -> int:
        """Return how much memory of its own the process has.

        Above ``limit_bytes`` that is what is private to it, if that is less. Such a reading is dear, and is
        not taken again before a hundred times as long has passed: meanwhile what was not private stays so.
        """
        if self._inherited_bytes is None:
            return 0
        gathered_bytes = self._unshared_bytes - self._inherited_bytes
        if gathered_bytes > limit_bytes and now >= self._exact_from_s:
            self._not_private_bytes = max(0, gathered_bytes - self._private_bytes(now))
        return gathered_bytes - min(gathered_bytes, self._not_private_bytes)

    def _private_bytes(self, now: float) -> int:
        assert self._process is not None
        start_s = time.thread_time()
        try:
            return int(self._process.memory_full_info().uss)
        except UNREADABLE:
            return 0
        finally:
            self._exact_from_s = now + (time.thread_time() - start_s) / USS_SHARE

    def before(self, end_s: float) -> list[tuple[float, int]]:
        """Return (seconds before ``end_s``, RSS in bytes) of each reading kept."""
        return [(round(end_s - at, 3), rss_bytes) for at, rss_bytes in self._readings]


def rss_bytes(pid: int) -> int:
    """Return the resident memory of process ``pid`` in bytes; 0 if it has gone."""
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except UNREADABLE:
        return 0
