"""Wall clock, CPU time and memory of a loader, by the part that its processes play."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psutil

from benchmarks.processes import worker_pids


@dataclass(frozen=True)
class CpuTimes:
    """User and system time in seconds; ``other`` are supervisors, daemons and helpers."""

    consumer_s: float
    workers_s: float
    other_s: float

    @property
    def total_s(self) -> float:
        """Of all processes."""
        return self.consumer_s + self.workers_s + self.other_s

    def since(self, earlier: CpuTimes) -> CpuTimes:
        """What has been used in between."""
        return CpuTimes(
            self.consumer_s - earlier.consumer_s,
            self.workers_s - earlier.workers_s,
            self.other_s - earlier.other_s,
        )


class Stopwatch:
    """Runs from construction on; ``loader`` is whose workers are to be told from other processes."""

    def __init__(self, loader: Any = None) -> None:
        # Looking for descendants costs more CPU time than many a batch: before the start, and after the stop.
        workers_s, other_s = _descendants_s(loader)
        self._before = CpuTimes(time.process_time(), workers_s, other_s)
        self.started_s = time.perf_counter()

    def stop(self, loader: Any) -> tuple[float, CpuTimes]:
        """Seconds that have passed, and the CPU time that was used."""
        duration_s = time.perf_counter() - self.started_s
        consumer_s = time.process_time()
        return duration_s, CpuTimes(consumer_s, *_descendants_s(loader)).since(self._before)


def pss_bytes() -> int:
    """Memory of this process and all below it, where a page that several share counts once in all."""
    consumer = psutil.Process()
    return sum(_pss_bytes(process) for process in [consumer, *consumer.children(recursive=True)])


def _descendants_s(loader: Any) -> tuple[float, float]:
    """CPU time of workers and of other processes."""
    workers = set(worker_pids(loader))
    consumer = psutil.Process()
    below = consumer.children(recursive=True)
    # The dead were workers: nothing else ends while the clock runs.
    reaped_s = sum(_reaped_s(process) for process in [consumer, *below])
    workers_s = sum(_own_s(pid) for pid in workers) + reaped_s
    return workers_s, sum(_own_s(process.pid) for process in below if process.pid not in workers)


def _own_s(pid: int) -> float:
    # The kernel's CPU clock of a process (clock_getcpuclockid); /proc counts in hundredths of a second.
    try:
        return time.clock_gettime(~pid << 3 | 2)
    except OSError:
        return 0.0  # It has ended since it was listed.


def _reaped_s(process: psutil.Process) -> float:
    with suppress(psutil.NoSuchProcess):
        times = process.cpu_times()
        return float(times.children_user + times.children_system)
    return 0.0


def _pss_bytes(process: psutil.Process) -> int:
    with suppress(psutil.NoSuchProcess):
        return int(process.memory_full_info().pss)
    return 0
