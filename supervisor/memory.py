"""Memory readings of processes.

Covers: resident memory, a few times a second, cheap enough (15 us) for every worker. Does not cover: what is
shared with others (that takes 10 ms per GB), limits, and anything about how a process ended.
"""

from __future__ import annotations

from collections import deque

import psutil

KEPT_READINGS = 40


class MemoryLog:
    """The last readings of one process."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._process: psutil.Process | None = None  # made when it is first wanted: many die before
        self._readings: deque[tuple[float, int]] = deque(maxlen=KEPT_READINGS)

    def read(self, now: float) -> bool:
        """Take a reading at ``now`` (seconds), unless the process has gone; return whether it has not."""
        try:
            self._process = self._process or psutil.Process(self._pid)
            resident_bytes = self._process.memory_info().rss
        except psutil.Error:
            return False
        if resident_bytes:  # a process that has ended and is not reaped yet has none
            self._readings.append((now, resident_bytes))
        return resident_bytes > 0

    def before(self, end_s: float) -> list[tuple[float, int]]:
        """Return (seconds before ``end_s``, RSS in bytes) of each reading kept."""
        return [(round(end_s - at, 3), rss_bytes) for at, rss_bytes in self._readings]


def rss_bytes(pid: int) -> int:
    """Return the resident memory of process ``pid`` in bytes; 0 if it has gone."""
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0
