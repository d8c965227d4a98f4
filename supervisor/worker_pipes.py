"""The consumer's ends of the pipes to its workers: sockets, what the dead have left in them, and which ended.

An end-of-file proves no death: a worker can close its pipe and live on, and a child of a dead one can keep it
open. So it is noted when it came, and whoever is alive some time later is ended, for nobody can reach it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator

from supervisor.channel import QuietSocket, Raw, adopt_socket, discard
from supervisor.pool_worker import PoolWorker

EOF_WITHOUT_DEATH_S = 0.5


class WorkerPipes:
    """The pipes of one pool."""

    def __init__(self) -> None:
        self._sockets: dict[int, QuietSocket] = {}
        self._unread: dict[int, tuple[int, deque[Raw]]] = {}  # by pid: worker, what it left in its pipe
        self._ended: dict[int, float] = {}  # by pid: when its pipe ended, until its death is told

    def adopt(self, fd: int) -> QuietSocket:
        """Return the socket of ``fd``, made and stored within one C call."""
        if fd not in self._sockets:
            self._sockets.update(zip((fd,), map(adopt_socket, (fd,)), strict=False))
        return self._sockets[fd]

    def close(self, worker: PoolWorker) -> None:
        """Close the pipe of a worker that is dead, or that is to end."""
        self._sockets = {fd: sock for fd, sock in self._sockets.items() if sock is not worker.pipe.socket}
        worker.pipe.close()

    def clear(self) -> None:
        """Forget all workers."""
        self._sockets.clear()
        self._ended.clear()

    # ---- what the dead have left -----------------------------------------------------------------

    def keep_unread(self, worker: PoolWorker) -> None:
        """Keep what a dead worker had sent and nobody has taken."""
        if worker.pipe.inbox:
            self._unread[worker.pid] = worker.worker, worker.pipe.inbox.copy()
            worker.pipe.inbox.clear()

    def unread(self, worker: int) -> Iterator[deque[Raw]]:
        """Give what dead workers with that id have left."""
        for number, inbox in list(self._unread.values()):
            if number == worker:
                yield inbox

    def drop_unread(self) -> None:
        for _, inbox in self._unread.values():
            discard(inbox)
        self._unread.clear()

    # ---- which have ended ------------------------------------------------------------------------

    def note_end(self, worker: PoolWorker) -> None:
        """Take note that a pipe has ended."""
        self._ended[worker.pid] = time.monotonic()

    def forget_end(self, pid: int) -> None:
        """Take note that what there was to do about it was done."""
        self._ended.pop(pid, None)

    @property
    def have_ended(self) -> bool:
        """Whether there are pipes that have ended, of workers whose death was not told."""
        return bool(self._ended)

    def overdue(self) -> list[int]:
        """Return the pids of workers whose pipe ended so long ago that their death should have been told."""
        now_s = time.monotonic()
        return [pid for pid, ended_s in self._ended.items() if now_s - ended_s >= EOF_WITHOUT_DEATH_S]
