"""What the consumer waits for: the control pipe and every worker's pipe, with one poll object kept open."""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Iterable

from supervisor.channel import Channel
from supervisor.linux import own
from supervisor.pool_worker import PoolWorker

CLOSING = "the pool is being closed by another thread"


class NotRunning(RuntimeError):
    """A pool has no workers: it was not started, or another thread closes it."""


class Bell:
    """Rung by one thread, it ends the waits of others until it is silenced."""

    def __init__(self) -> None:
        self._owner = own(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))

    def fileno(self) -> int:
        return self._owner.fileno()

    def ring(self) -> None:
        os.eventfd_write(self.fileno(), 1)

    def listen(self, timeout_s: float) -> None:
        """Wait for nothing else. Raises NotRunning when it rings."""
        poll = select.poll()
        poll.register(self, select.POLLIN)
        if poll.poll(timeout_s * 1000):
            raise NotRunning(CLOSING)

    def silence(self) -> None:
        with contextlib.suppress(BlockingIOError):  # it is silent
            os.eventfd_read(self.fileno())


class PipePoller:
    """Polls a control pipe and the pipes of workers.

    A pipe that has ended would always be ready, and is left out.
    """

    def __init__(self, control: Channel, workers: Iterable[PoolWorker], bell: Bell) -> None:
        self._poll = select.poll()
        self._bell_fd = bell.fileno()
        self._poll.register(bell, select.POLLIN)
        self._poll.register(control, select.POLLIN)
        self._workers = {worker.pipe.fileno(): worker for worker in workers if not worker.pipe.ended}
        for fd in self._workers:
            self._poll.register(fd, select.POLLIN)

    def wait(self, timeout_s: float | None) -> list[PoolWorker | None]:
        """Return whose pipe has something to read, or has ended; None stands for the control pipe.

        Raises NotRunning when the bell rings.
        """
        timeout_ms = None if timeout_s is None else timeout_s * 1000
        ready = [fd for fd, _ in self._poll.poll(timeout_ms)]
        if self._bell_fd in ready:
            raise NotRunning(CLOSING)
        return [self._workers.get(fd) for fd in ready]

    def want_room(self, worker: PoolWorker, wanted: bool) -> None:
        """Let ``wait`` also return when ``worker``'s pipe has room, or no longer."""
        fd = worker.pipe.fileno()
        if fd in self._workers:
            self._poll.modify(fd, select.POLLIN | (select.POLLOUT if wanted else 0))
