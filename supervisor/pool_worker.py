"""One worker as the consumer sees it."""

from __future__ import annotations

import select

from supervisor.channel import Channel
from supervisor.linux import keep
from supervisor.messages import Started
from supervisor.page import Page


class PoolWorker:
    """A living worker, or one whose death has not been told yet.

    Attributes:
        worker: its id, 0 to num_workers - 1. A replacement has the same.
        pid: its process id.
        restarts: how many workers of this id came before.
        pipe: the pipe to its ``serve`` function.
        page: the record in which it says what it is doing.
        ready: its start-up is over.
    """

    def __init__(self, started: Started, pipe: Channel, page: Page) -> None:
        self.worker = started.worker
        self.pid = started.pid
        self.restarts = started.restarts
        self.pipe = pipe
        self.page = page
        self.ready = False
        self._pidfds: list[select.epoll] = []  # one, or none where there are none

    def keep_pidfd(self, fd: int) -> None:
        """Take over a descriptor of the process. Again is the same as once."""
        keep(fd, self._pidfds)

    def is_surely_dead(self) -> bool:
        """Whether the kernel says that the process has ended; False where there are no pidfds."""
        poller = select.poll()
        for pidfd in self._pidfds:
            poller.register(pidfd, select.POLLIN)
        return bool(poller.poll(0))

    def close(self) -> None:
        """Close our ends; a worker then ends by itself."""
        self.pipe.close()
        for pidfd in self._pidfds:
            pidfd.close()
