"""Whole messages, with descriptors, between two processes.

Guarantees, all from SOCK_SEQPACKET: a message arrives whole or not at all, even when its writer is killed or
stopped in the middle; what a dead process had sent can still be read; the end of the other side is an
end-of-file. Not a guarantee: that an end-of-file means death (a grandchild can keep the other end open).

Two styles of use. A process that serves one pipe calls ``send`` and ``receive``, which block. A process
that must never block calls ``try_send`` and ``drain``; ``drain`` moves what has arrived to ``inbox`` inside
one C call, so that an exception out of a signal handler cannot come between taking a message and keeping
it.
"""

from __future__ import annotations

import _socket
import array
import contextlib
import os
import select
import socket
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain, islice, starmap
from typing import NamedTuple

MAX_MESSAGE_BYTES = 1 << 16
MAX_DESCRIPTORS = 200  # the kernel takes 253

# Plain ints: the flags of the socket module are enums, whose arithmetic would cost more than the call.
_CLOSE_ON_EXEC = int(socket.MSG_CMSG_CLOEXEC)
_NOT_ARRIVED = int(socket.MSG_TRUNC | socket.MSG_CTRUNC)
_SEND = int(socket.MSG_NOSIGNAL)
_TRY_SEND = int(socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
_TRY_RECEIVE = int(socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC)
_DESCRIPTOR_BYTES = array.array("i").itemsize
_ANCILLARY_BYTES = socket.CMSG_SPACE(MAX_DESCRIPTORS * _DESCRIPTOR_BYTES)
_END: Raw = (b"", [], _CLOSE_ON_EXEC, None)

# What recvmsg gives: data, ancillary data, flags, address.
Raw = tuple[bytes, list[tuple[int, int, bytes]], int, None]


class Message(NamedTuple):
    """One message: its bytes and the descriptors that came along, which now belong to the receiver."""

    data: bytes
    descriptors: list[int]


class MessageLost(OSError):
    """A message or its descriptors did not arrive whole."""


class Channel:
    """One end of a message pipe.

    >>> left, right = Channel.pair()
    >>> left.send(b"hello")
    >>> right.receive().data
    b'hello'
    >>> left.close(); right.receive() is None
    True
    """

    __slots__ = ("_arrivals", "ended", "inbox", "socket")

    def __init__(self, sock: QuietSocket) -> None:
        self.socket = sock
        self.ended = False  # the other side is known to have closed
        self.inbox: deque[Raw] = deque()
        self._arrivals = partial(sock.recvmsg, MAX_MESSAGE_BYTES, _ANCILLARY_BYTES, _TRY_RECEIVE)

    @classmethod
    def pair(cls) -> tuple[Channel, Channel]:
        """Return two connected channels. Neither end is inherited by a program that is executed."""
        made = chain.from_iterable(starmap(_socket.socketpair, ((socket.AF_UNIX, socket.SOCK_SEQPACKET),)))
        left, right = map(adopt_socket, map(_socket.socket.detach, made))  # made and owned within one C call
        return cls(left), cls(right)

    @classmethod
    def from_descriptor(cls, fd: int) -> Channel:
        """Return the channel whose descriptor is ``fd``, which then belongs to the channel."""
        return cls(adopt_socket(fd))

    def fileno(self) -> int:
        return self.socket.fileno()

    def send(self, data: bytes, descriptors: Sequence[int] = ()) -> None:
        """Send one message of 1 to 64 KiB, waiting for room. The receiver gets duplicates of ``descriptors``.

        Raises ValueError for a message out of these bounds, BrokenPipeError when the other side has gone.
        """
        self._send(data, descriptors, _SEND)

    def try_send(self, data: bytes, descriptors: Sequence[int] = ()) -> bool:
        """Send one message if there is room for it now; say whether it was sent. Raises as ``send``."""
        try:
            self._send(data, descriptors, _TRY_SEND)
        except BlockingIOError:
            return False
        return True

    def _send(self, data: bytes, descriptors: Sequence[int], flags: int) -> None:
        if not 0 < len(data) <= MAX_MESSAGE_BYTES:
            raise ValueError(
                f"a message has 1 to {MAX_MESSAGE_BYTES} bytes, not {len(data)}: "
                "put larger data into a memory file and send its descriptor"
            )
        try:
            if descriptors:
                self.socket.sendmsg([data], _ancillary(descriptors), flags)
            else:
                self.socket.send(data, flags)
        except (BrokenPipeError, ConnectionResetError) as error:
            self.ended = True
            # One thing, not two: it is a reset where the other side left something of ours unread.
            raise BrokenPipeError(error.errno, "the other side of the pipe has closed") from None

    def receive(self) -> Message | None:
        """Wait for one message; None when the other side has closed and all that it had sent was read."""
        while True:
            try:
                raw = self.socket.recvmsg(MAX_MESSAGE_BYTES, _ANCILLARY_BYTES, _CLOSE_ON_EXEC)
            except ConnectionResetError:
                continue  # the peer died with our messages unread; its own are still to be read
            if raw[0]:
                return opened(raw)
            self.ended = True
            return None

    def drain(self) -> bool:
        """Move all that has arrived to ``inbox``, without waiting. False once the other side has closed."""
        # Asked first, so that no exception ends the loop: one out of a signal handler would be chained to it.
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        while poll.poll(0):
            before = len(self.inbox)
            try:
                self.inbox.extend(islice(iter(self._arrivals, _END), 1))
            except ConnectionResetError:
                continue  # reported once, before what is still to be read
            if len(self.inbox) == before:
                self.ended = True
                return False
        return True

    def close(self) -> None:
        """Close this end, and the descriptors that came with messages which nobody has opened."""
        self.socket.close()
        discard(self.inbox)


class QuietSocket(_socket.socket):
    """A socket that closes itself when it is dropped: in C, so that no signal handler can run inside."""

    __slots__ = ()
    __del__ = _socket.socket.close


def opened(raw: Raw) -> Message:
    """Return the message in what recvmsg gave. Raises MessageLost where a part of it did not arrive."""
    data, ancillary, flags, _ = raw
    if not ancillary and not flags & _NOT_ARRIVED:
        return Message(data, [])
    descriptors = array.array("i")
    for _level, _type, content in ancillary:
        descriptors.frombytes(content[: len(content) - len(content) % _DESCRIPTOR_BYTES])
    if flags & _NOT_ARRIVED:
        close_all(descriptors)
        raise MessageLost(
            "a message did not arrive whole: this process may be out of descriptors (raise `ulimit -n`)"
        )
    return Message(data, descriptors.tolist())


# A callable in C, so that a socket can be made and stored within one C call.
adopt_socket: Callable[[int], QuietSocket] = partial(QuietSocket, socket.AF_UNIX, socket.SOCK_SEQPACKET, 0)


def discard(inbox: deque[Raw]) -> None:
    """Empty an inbox, closing the descriptors in it."""
    while inbox:
        with contextlib.suppress(MessageLost):
            close_all(opened(inbox.popleft()).descriptors)


def close_all(descriptors: Iterable[int]) -> None:
    for fd in descriptors:
        os.close(fd)


def _ancillary(descriptors: Sequence[int]) -> list[tuple[int, int, array.array[int]]]:
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
