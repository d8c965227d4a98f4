"""Whom the kernel, out of memory, has killed, by its own log.

    /dev/kmsg, from where it was when we opened it --- read() four times a second and at a death ---> pids

The kernel writes "Killed process 4711 (python) ..." before its victim can end (it holds the victim's lock
meanwhile), so once a worker has ended the log names it, or another killed it. The silence of the log counts
only while we have read all of it: it is a ring, and what we were too late for is a gap. The log gives the
pids of the machine, so in a container with pids of its own it tells nothing; and it takes permission to read.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

LOG = Path("/dev/kmsg")
PID_NAMESPACE = Path("/proc/self/ns/pid")
MACHINES_PIDS = "pid:[4026531836]"  # PROC_PID_INIT_INO, the same everywhere
MAX_RECORD_BYTES = 8192
MAX_RECORDS = 20_000  # at a time

_VICTIM = re.compile(r"(?:(?:Memory cgroup out|Out) of memory[^:]*: )?Killed process (\d+) \(")


class KernelLog:
    """The log from now on.

    Attributes:
        fd: its descriptor, None where it may not be read.
        gaps: how often records were lost to us.
    """

    def __init__(self, log: Path = LOG, pid_namespace: Path = PID_NAMESPACE) -> None:
        self.fd = _open(log) if _has_machines_pids(pid_namespace) else None
        self.gaps = 0
        self._killed: set[int] = set()

    def read(self) -> None:
        """Take in what is new. Costs 2 us where nothing is."""
        if self.fd is None:
            return
        for _ in range(MAX_RECORDS):
            try:
                record = os.read(self.fd, MAX_RECORD_BYTES)
            except BlockingIOError:
                return
            except BrokenPipeError:
                self.gaps += 1
                continue
            except OSError:
                self.gaps += 1
                return
            if not record:
                return
            self._take(record.decode(errors="replace"))
        self.gaps += 1  # there is more than we have time for

    def _take(self, record: str) -> None:
        pid = victim_of(record)
        if pid is not None:
            self._killed.add(pid)

    def forget(self, pid: int) -> None:
        """Forget what a process that had this pid before went through."""
        self._killed.discard(pid)

    def names(self, pid: int, gaps_before: int) -> bool | None:
        """Return whether ``pid`` was killed; None: not known, of one that started at ``gaps_before`` gaps."""
        if pid in self._killed:
            return True
        return None if self.fd is None or self.gaps > gaps_before else False


def victim_of(record: str) -> int | None:
    """Return the pid that a record says was killed for want of memory.

    >>> victim_of("3,417,30104241173,-;Memory cgroup out of memory: Killed process 7824 (python)")
    7824
    >>> victim_of("12,418,30104241180,-;Out of memory: Killed process 1 (a user wrote this)") is None
    True
    """
    head, _, text = record.partition(";")
    level = head.split(",")[0]
    if not level.isdecimal() or int(level) >> 3:  # not the kernel's own
        return None
    match = _VICTIM.match(text)
    return int(match[1]) if match else None


def _has_machines_pids(namespace: Path) -> bool:
    try:
        return os.readlink(namespace) == MACHINES_PIDS
    except OSError:
        return False


def _open(log: Path) -> int | None:
    try:
        fd = os.open(log, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        os.lseek(fd, 0, os.SEEK_END)
        os.read(fd, MAX_RECORD_BYTES)  # only this tells, on some kernels, that it may not be read
    except BlockingIOError:
        return fd
    except OSError:
        os.close(fd)
        return None
    return fd
