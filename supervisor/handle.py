"""The supervisor process as the consumer holds it: start it, tell it things, part from it.

When a handle is dropped its control pipe closes, and the supervisor stops its workers and ends. Its status is
collected when the next supervisor starts, or here at exit: nothing is done when an object is deallocated but
the closing of descriptors.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import signal
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from supervisor import launch, loop
from supervisor.channel import Channel
from supervisor.child import Job
from supervisor.linux import create_owned_pipe, own
from supervisor.messages import Command, Settings, Start, encode
from supervisor.payload import Payload
from supervisor.surroundings import Surroundings
from supervisor.verdict import LOST

POLL_S = 0.001

_unreaped: dict[int, int | None] = {}  # status by pid of every supervisor not yet parted from


@dataclass(frozen=True)
class Commission:
    """What a supervisor was given to start workers with, kept so that another can be given the same.

    Parameters:
        start: the whole message, its payload included.
        owners: of the descriptors that go along with it, in their order.
    """

    start: Start
    owners: tuple[select.epoll, ...]

    def has_job(self, payload: Payload) -> bool:
        mine = self.start.payload
        return mine is not None and mine.digest == payload.digest

    def without_job(self) -> Commission:
        """Return it for a supervisor that has the job already."""
        return Commission(replace(self.start, payload=None), self.owners[:2])


class SupervisorHandle:
    """A supervisor and the control pipe to it."""

    def __init__(self, pid: int, control: Channel) -> None:
        self.pid = pid
        self.control = control
        self._outbox: deque[tuple[bytes, Sequence[select.epoll]]] = deque()  # owners of descriptors
        self._numbers = itertools.count(1)
        self._commission: Commission | None = None
        self._lifeline: tuple[int, tuple[int, int]] | None = None  # descriptor, which pipe it is
        _unreaped[pid] = None

    @classmethod
    def fork(cls, settings: Settings, pages_fd: int, job: Job) -> SupervisorHandle:
        """Fork a supervisor whose workers inherit ``job``."""
        _collect_statuses()
        ours, theirs = Channel.pair()

        def run() -> None:
            ours.close()
            loop.supervise(theirs, pages_fd, settings, job)

        pid = launch.fork(run)
        theirs.close()
        return cls(pid, ours)

    @classmethod
    def spawn(cls, settings: Settings, pages_fd: int) -> SupervisorHandle:
        """Start a supervisor in a fresh interpreter."""
        _collect_statuses()
        ours, theirs = Channel.pair()
        descriptors = (theirs.fileno(), pages_fd)
        try:
            pid = launch.spawn(loop.supervise_fresh, (*descriptors, settings), descriptors)
        except BaseException:
            ours.close()  # now: the traceback of an interrupt would keep it open, and what was started alive
            raise
        finally:
            theirs.close()
        return cls(pid, ours)

    def succeed(self, settings: Settings, pages_fd: int, *, resumes: bool) -> SupervisorHandle:
        """Return another supervisor in place of this dead one; with a ``flush`` it starts the same workers.

        ``resumes``: workers of this run were ready before. Raises OSError if it cannot be started.
        """
        commission = self._commission
        assert commission is not None
        successor = SupervisorHandle.spawn(settings, pages_fd)
        successor._lifeline, successor._commission = self._lifeline, commission
        start = replace(commission.start, resumes=resumes)
        successor._outbox.append((encode(next(successor._numbers), start), commission.owners))
        return successor

    def start_workers(self, run: int, num_workers: int, payload: Payload | None) -> select.epoll:
        """Have the workers of run number ``run`` started; return their lifeline.

        When the lifeline is dropped, the workers are stopped. ``payload`` is their job, where they do not
        inherit it; one that is equal to the last is not sent again. Our surroundings go along with it.
        """
        theirs, lifeline = create_owned_pipe()
        self._lifeline = lifeline.fileno(), _identity(lifeline.fileno())
        before, commission = self._commission, _commission(run, num_workers, theirs, payload)
        self._commission = commission
        if before is not None and payload is not None and before.has_job(payload):
            commission = commission.without_job()
        self.send(commission.start, commission.owners)
        return lifeline

    def send(self, command: Command, owners: Sequence[select.epoll] = ()) -> None:
        """Send a command and what is owned by ``owners`` now or, where there is no room, with a ``flush``."""
        self._outbox.append((encode(next(self._numbers), command), owners))
        self.flush()

    def flush(self) -> None:
        """Send what is waiting. An interrupted sender sends a message twice: it carries a number."""
        while self._outbox:
            data, owners = self._outbox[0]
            try:
                if not self.control.try_send(data, [owner.fileno() for owner in owners]):
                    return
            except BrokenPipeError:
                self._outbox.clear()
                return
            self._outbox.popleft()

    @property
    def has_unsent(self) -> bool:
        return bool(self._outbox)

    @property
    def is_parting(self) -> bool:
        """Whether ``part`` has begun: an interrupt may have ended it early."""
        return self.control.fileno() < 0

    def part(self, timeout_s: float) -> int:
        """Close the pipe and wait for the supervisor's end; kill it if it is late. Return its wait status."""
        self.control.close()
        return self.wait_for_end(timeout_s)

    def wait_for_end(self, timeout_s: float) -> int:
        """Wait for the supervisor's end; kill it if it is late. Return its wait status."""
        status = self._wait_until(time.monotonic() + timeout_s)
        if status is None:
            os.kill(self.pid, signal.SIGKILL)
            status = self._wait_until(float("inf"))
        assert status is not None
        return status

    def _wait_until(self, end_s: float) -> int | None:
        while (status := _status(self.pid)) is None and time.monotonic() < end_s:
            time.sleep(POLL_S)
        return status

    def forget_in_child(self) -> None:
        """In a forked child: keep nothing open whose end means something to the supervisor."""
        self.control.close()
        self._commission = None
        if self._lifeline is not None:
            _replace_by_null(*self._lifeline)


def _commission(run: int, num_workers: int, lifeline: select.epoll, payload: Payload | None) -> Commission:
    surroundings = None if payload is None else Payload.pack(Surroundings.capture())
    brought = [part for part in (surroundings, payload) if part is not None]
    owners = [own(fd) for part in brought for fd in part.descriptors()]
    return Commission(Start(run, num_workers, surroundings, payload), (lifeline, *owners))


def forget_inherited() -> None:
    """In a forked child: the supervisors are its parent's."""
    _unreaped.clear()


def _identity(fd: int) -> tuple[int, int]:
    """Return what tells an open file from all others."""
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


def _replace_by_null(fd: int, identity: tuple[int, int]) -> None:
    """Close the file under ``fd``, if it is still that one, and not the number: its owner will close that."""
    with contextlib.suppress(OSError):
        if _identity(fd) == identity:
            null_fd = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            os.dup2(null_fd, fd, inheritable=False)
            os.close(null_fd)


def _collect_statuses() -> None:
    for pid in list(_unreaped):
        _status(pid)


def _status(pid: int) -> int | None:
    """Return the wait status of a supervisor, or None while it lives; LOST if somebody else waited for it."""
    if _unreaped.get(pid) is None:
        try:
            _unreaped.update(map(os.waitpid, (pid,), (os.WNOHANG,)))  # taken and kept within one C call
        except ChildProcessError:
            _unreaped[pid] = LOST
        _unreaped.pop(0, None)  # in place of the pid of one that lives
    return _unreaped.get(pid)
