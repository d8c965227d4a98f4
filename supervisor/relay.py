"""What workers write to standard error: passed on as before, and the end of it kept for their reports.

    worker 0's fd 2 ---pipe---> Source (keeps a tail) ---\
    worker 1's fd 2 ---pipe---> Source ------------------+---> Outlet ---> the supervisor's own fd 2

Invariants:
  - Nothing here waits. The outlet takes what goes at once; the rest waits in it, in order.
  - While something waits in the outlet, no pipe is read: workers then wait in their writes, as they would
    without us. But what a dead worker has left is read at once, for its report.
  - What a worker wrote is passed on in its order, and whole lines of one write of at most PIPE_BUF bytes stay
    whole. Of several workers, and beside their stdout, the order is that of reading.
  - A pipe is read until nobody holds its other end: a process that outlives its worker may write on.

Non-goals: what Python objects in the place of ``sys.stderr`` do, and stdout.
"""

from __future__ import annotations

import contextlib
import os
import select
import stat
import time
from collections import deque

MAX_TAIL_BYTES = 4096
MAX_READ_BYTES = 1 << 16  # all that a pipe can hold
MAX_WAITING_BYTES = 1 << 20  # what the dead have left where nobody reads; more of it is dropped


class Source:
    """The pipe that one worker has as its standard error.

    Attributes:
        fd: the end that is read; None once nobody holds the other.
        tail: the last that was read.
    """

    def __init__(self, fd: int) -> None:
        self.fd: int | None = fd
        self.tail = b""

    def read(self) -> bytes:
        """Return what has arrived, at most what a pipe holds."""
        if self.fd is None:
            return b""
        try:
            data = os.read(self.fd, MAX_READ_BYTES)
        except BlockingIOError:
            return b""
        self.tail = (self.tail + data)[-MAX_TAIL_BYTES:]
        if not data:
            self.close()
        return data

    def close(self) -> None:
        fd, self.fd = self.fd, None
        if fd is not None:
            os.close(fd)


class Outlet:
    """A descriptor that is written to without ever waiting, though others share it.

    It is opened once more where that can be done, so that not waiting is our own affair: the flag for it
    belongs to the opening, which the consumer shares. Elsewhere we ask for room first.

    >>> read_fd, write_fd = os.pipe()
    >>> outlet = Outlet(write_fd)
    >>> outlet.put(b"hello"); os.read(read_fd, 9), outlet.is_stuck
    (b'hello', False)
    """

    def __init__(self, fd: int) -> None:
        self.fd = _opened_once_more(fd)
        self._waiting: deque[bytes] = deque()

    @property
    def is_stuck(self) -> bool:
        """Whether something waits for room."""
        return bool(self._waiting)

    def put(self, data: bytes) -> None:
        """Write ``data``, now or with a later ``flush``."""
        if sum(map(len, self._waiting)) < MAX_WAITING_BYTES:
            self._waiting.extend(pieces(data))
        self.flush()

    def flush(self) -> None:
        """Write what waits, as far as there is room."""
        while self._waiting and self._has_room(0.0):
            written = self._write(self._waiting[0])
            self._waiting[0] = self._waiting[0][written:]
            if not self._waiting[0]:
                self._waiting.popleft()
            elif not written:
                return  # it had no room after all

    def flush_within(self, timeout_s: float) -> None:
        """Write what waits; give up after ``timeout_s``."""
        end_s = time.monotonic() + timeout_s
        while self._waiting and self._has_room(max(0.0, end_s - time.monotonic())):
            self.flush()

    def _has_room(self, timeout_s: float) -> bool:
        poll = select.poll()
        poll.register(self.fd, select.POLLOUT)
        return bool(poll.poll(timeout_s * 1000))

    def _write(self, piece: bytes) -> int:
        """Return how much of a piece is done with: what was written, or all where nothing can be."""
        try:
            return os.write(self.fd, piece)
        except BlockingIOError:
            return 0
        except OSError:  # nobody will ever read it, or the disk is full
            return len(piece)


def pieces(data: bytes) -> list[bytes]:
    """Cut ``data`` into pieces that are written whole, at the ends of lines where there are some.

    >>> [len(piece) for piece in pieces(b"x" * 3000 + b"\\n" + b"y" * 3000)]
    [3001, 3000]
    """
    cut = []
    while data:
        end = len(data)
        if end > select.PIPE_BUF:
            end = data.rfind(b"\n", 0, select.PIPE_BUF) + 1 or select.PIPE_BUF
        cut.append(data[:end])
        data = data[end:]
    return cut


class Relay:
    """All that workers of one supervisor write to their standard error, on its way to ``fd``."""

    def __init__(self, fd: int = 2) -> None:
        self._outlet = Outlet(fd)
        self._sources: list[Source] = []

    def open(self) -> tuple[Source, int]:
        """Return a new source, and the descriptor that its worker is to write to."""
        read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(read_fd, False)
        source = Source(read_fd)
        self._sources.append(source)
        return source, write_fd

    def register(self, poll: select.poll) -> None:
        """Let ``poll`` end when there is something to do."""
        if self._outlet.is_stuck:
            poll.register(self._outlet.fd, select.POLLOUT)
            return
        for fd in self._fds():
            poll.register(fd, select.POLLIN)

    def pass_on(self, ready: set[int]) -> None:
        """Do what there is to do. ``ready``: the descriptors for which ``poll`` ended."""
        self._outlet.flush()
        for source in self._sources:
            if source.fd in ready and not self._outlet.is_stuck:
                self._outlet.put(source.read())
        self._sources = [source for source in self._sources if source.fd is not None]

    def last_words(self, source: Source) -> str:
        """Pass on what a dead worker has left; return the last that it wrote."""
        self._outlet.put(source.read())
        return source.tail.decode(errors="replace")

    def finish(self, timeout_s: float) -> None:
        """Pass on what is left, but give up after ``timeout_s``."""
        for source in self._sources:
            self._outlet.put(source.read())
        self._outlet.flush_within(timeout_s)

    def descriptors(self) -> list[int]:
        """All that a worker must not keep open."""
        return [self._outlet.fd, *self._fds()]

    def _fds(self) -> list[int]:
        return [source.fd for source in self._sources if source.fd is not None]


def _opened_once_more(fd: int) -> int:
    """Return what ``fd`` is open to, opened anew where that is the same: a pipe or a device, not a file."""
    mode = os.fstat(fd).st_mode
    if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
        with contextlib.suppress(OSError):
            flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            return os.open(f"/proc/self/fd/{fd}", flags)
    duplicate = os.dup(fd)
    os.set_inheritable(duplicate, False)
    return duplicate
