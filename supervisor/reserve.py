"""A worker process in reserve: forked before anybody needs it, told which worker it is when one dies.

    a death ----> its replacement is taken from here, or forked ----> a spare is forked, once all are at work
    RESERVE_S without a death, a stop, an OOM kill ----> the spare is ended

A fork, and what a new process does before it can work, take about 10 ms, for which its place stands empty.
One death often comes with others, so from the first on a spare is kept for a while. Where nobody dies there
is none, and it costs nothing.

Non-goals: a spare is nobody's worker. It is not read, not reported, and not missed when it dies.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

from supervisor.channel import Channel
from supervisor.linux import open_pidfd
from supervisor.relay import Source
from supervisor.worker import Remains

RESERVE_S = 10.0  # after the last death


@dataclass(frozen=True)
class Newborn:
    """A process that is to be a worker, and has not been told which.

    Parameters:
        pid: its process id.
        pipe: our end of its pipe. What is sent first tells it which worker it is.
        remains: the memory files that outlive it.
        stderr: what it writes to standard error.
    """

    pid: int
    pipe: Channel
    remains: Remains
    stderr: Source

    def has_exited(self) -> bool:
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def let_go(self) -> list[int]:
        """In a sibling: return what it must close, but for what the relay knows of."""
        return [self.pipe.socket.detach(), self.remains.stack, self.remains.words]


class Reserve:
    """The spare of one supervisor, and those that were ended and are not reaped yet."""

    def __init__(self) -> None:
        self._spare: Newborn | None = None
        self._wanted_until_s = float("-inf")
        self._ended: dict[int, int | None] = {}  # pidfd by pid

    def want(self, now: float) -> None:
        """Note that a worker has died, and others may."""
        self._wanted_until_s = now + RESERVE_S

    def lacks(self, now: float) -> bool:
        """Whether there should be a spare and is none."""
        return self._spare is None and now < self._wanted_until_s

    def put(self, spare: Newborn) -> None:
        self._spare = spare

    def take(self) -> Newborn | None:
        """Return the spare, if there is one that lives."""
        if self._spare is not None and self._spare.has_exited():
            self._end_spare()
        spare, self._spare = self._spare, None
        return spare

    def dismiss(self) -> None:
        """Want none, and end the one there is."""
        self._wanted_until_s = float("-inf")
        self._end_spare()

    def sweep(self, now: float) -> None:
        """End a spare that nobody has needed, and reap what has ended."""
        if now >= self._wanted_until_s:
            self._end_spare()
        for pid in [pid for pid in self._ended if os.waitpid(pid, os.WNOHANG) != (0, 0)]:
            pidfd = self._ended.pop(pid)
            if pidfd is not None:
                os.close(pidfd)

    @property
    def is_empty(self) -> bool:
        return self._spare is None and not self._ended

    @property
    def pidfds(self) -> list[int]:
        """Of those who are to be reaped soon."""
        return [pidfd for pidfd in self._ended.values() if pidfd is not None]

    def let_go(self) -> list[int]:
        """In a worker: return all that it must close."""
        return [*self.pidfds, *([] if self._spare is None else self._spare.let_go())]

    def _end_spare(self) -> None:
        spare, self._spare = self._spare, None
        if spare is None:
            return
        spare.pipe.close()
        spare.remains.close()
        os.kill(spare.pid, signal.SIGKILL)  # it is there, if only to be reaped
        self._ended[spare.pid] = open_pidfd(spare.pid)
