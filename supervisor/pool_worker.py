"""One worker as the consumer sees it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time

import psutil

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
        started_s: when we heard of it.
    """

    def __init__(self, started: Started, pipe: Channel, page: Page, restarts_before: int = 0) -> None:
        self.worker = started.worker
        self.pid = started.pid
        self.restarts = started.restarts + restarts_before  # under supervisors that have died
        self.pipe = pipe
        self.page = page
        self.ready = False
        self.started_s = time.monotonic()
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

    def kill(self) -> None:
        """Send SIGKILL to it and to what it started. For when there is no supervisor who would."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        if not self.is_surely_dead():  # user code may have moved it to another group
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, signal.SIGKILL)

    def is_gone(self) -> bool:
        """Whether it has certainly ended, also where there are no pidfds. Reaps it where it became our child.

        That is where we are process 1 of a container, to which orphans are given.
        """
        is_gone = self.is_surely_dead() if self._pidfds else _is_gone(self.pid)
        if is_gone:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.pid, os.WNOHANG)
        return is_gone

    def close(self) -> None:
        """Close our ends; a worker then ends by itself."""
        self.pipe.close()
        for pidfd in self._pidfds:
            pidfd.close()


def _is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
