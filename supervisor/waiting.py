"""What the consumer waits for: the control pipe and every worker's pipe, with one poll object kept open."""

from __future__ import annotations

import select
from collections.abc import Iterable

from supervisor.channel import Channel
from supervisor.pool_worker import PoolWorker


class PipePoller:
    """Polls a control pipe and the pipes of workers.

    A pipe that has ended would always be ready, and is left out.
    """

    def __init__(self, control: Channel, workers: Iterable[PoolWorker]) -> None:
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)
        self._workers = {worker.pipe.fileno(): worker for worker in workers if not worker.pipe.ended}
        for fd in self._workers:
            self._poll.register(fd, select.POLLIN)

    def wait(self, timeout_s: float | None) -> list[PoolWorker | None]:
        """Return whose pipe has something to read, or has ended; None stands for the control pipe."""
        timeout_ms = None if timeout_s is None else timeout_s * 1000
        return [self._workers.get(fd) for fd, _ in self._poll.poll(timeout_ms)]

    def want_room(self, worker: PoolWorker, wanted: bool) -> None:
        """Let ``wait`` also return when ``worker``'s pipe has room, or no longer."""
        fd = worker.pipe.fileno()
        if fd in self._workers:
            self._poll.modify(fd, select.POLLIN | (select.POLLOUT if wanted else 0))
