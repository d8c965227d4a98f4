"""The supervisor process as the consumer holds it: start it, tell it things, part from it.

When a handle is dropped its control pipe closes, and the supervisor stops its workers and ends. Its status is
collected when the next supervisor starts, or here at exit: nothing is done when an object is deallocated but
the closing of descriptors.
"""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections import deque

from supervisor import launch, loop
from supervisor.channel import Channel
from supervisor.child import Job
from supervisor.messages import Command, Settings, encode

POLL_S = 0.001

_unreaped: dict[int, int | None] = {}  # status by pid of every supervisor not yet parted from


class SupervisorHandle:
    """A supervisor and the control pipe to it."""

    def __init__(self, pid: int, control: Channel) -> None:
        self.pid = pid
        self.control = control
        self._outbox: deque[tuple[bytes, tuple[int, ...]]] = deque()
        self._numbers = itertools.count(1)
        _unreaped[pid] = None

    @classmethod
    def fork(
        cls, settings: Settings, pages_fd: int, job: Job, control: Channel, theirs: Channel
    ) -> SupervisorHandle:
        """Fork a supervisor whose workers inherit ``job``. ``control`` is known to the after-fork hook."""
        _collect_statuses()

        def run() -> None:
            loop.Supervisor(theirs, pages_fd, settings, job).run()

        pid = launch.fork(run)
        theirs.close()
        return cls(pid, control)

    @classmethod
    def spawn(cls, settings: Settings, pages_fd: int, control: Channel, theirs: Channel) -> SupervisorHandle:
        """Start a supervisor in a fresh interpreter."""
        _collect_statuses()
        descriptors = (theirs.fileno(), pages_fd)
        pid = launch.spawn(loop.supervise_fresh, (*descriptors, settings), descriptors)
        theirs.close()
        return cls(pid, control)

    def send(self, command: Command, descriptors: tuple[int, ...] = ()) -> None:
        """Send a command now or, where there is no room, with a later ``flush``."""
        self._outbox.append((encode(next(self._numbers), command), descriptors))
        self.flush()

    def flush(self) -> None:
        """Send what is waiting. An interrupted sender sends a message twice: it carries a number."""
        while self._outbox:
            data, descriptors = self._outbox[0]
            try:
                if not self.control.try_send(data, descriptors):
                    return
            except (BrokenPipeError, ConnectionResetError):
                self._outbox.clear()
                return
            self._outbox.popleft()

    @property
    def has_unsent(self) -> bool:
        return bool(self._outbox)

    def part(self, timeout_s: float) -> int:
        """Close the pipe and wait for the supervisor's end; kill it if it is late. Return its wait status."""
        self.control.close()
        status = self._wait_until(time.monotonic() + timeout_s)
        if status is None:
            os.kill(self.pid, signal.SIGKILL)
            _, status = os.waitpid(self.pid, 0)
        _unreaped.pop(self.pid, None)
        return status

    def _wait_until(self, end_s: float) -> int | None:
        while (status := _status(self.pid)) is None and time.monotonic() < end_s:
            time.sleep(POLL_S)
        return status


def forget_inherited() -> None:
    """In a forked child: the supervisors are its parent's."""
    _unreaped.clear()


def _collect_statuses() -> None:
    for pid in list(_unreaped):
        _status(pid)


def _status(pid: int) -> int | None:
    """Return the wait status of a supervisor, or None while it lives; 0 if somebody else waited for it."""
    if pid in _unreaped and _unreaped[pid] is not None:
        return _unreaped[pid]
    try:
        reaped, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        reaped, status = pid, 0
    if not reaped:
        return None
    _unreaped[pid] = status
    return status
