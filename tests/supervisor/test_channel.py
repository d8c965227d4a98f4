"""Messages arrive whole or not at all, with their descriptors, and nothing blocks that must not."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import signal
import sys
from collections.abc import Iterator

import pytest

from supervisor.channel import MAX_DESCRIPTORS, MAX_MESSAGE_BYTES, Channel, MessageLost, opened
from tests.forks import fork
from tests.processes import open_descriptors


@pytest.fixture
def ends() -> tuple[Channel, Channel]:
    return Channel.pair()


@contextlib.contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    """Let this process open ``count`` more descriptors, and no more."""
    hogs: list[int] = []
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(open_descriptors()) + 10, hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                hogs.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        for _ in range(count):
            os.close(hogs.pop())
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in hogs:
            os.close(fd)


def test_messages_keep_their_bounds_and_order(ends: tuple[Channel, Channel]) -> None:
    left, right = ends
    for data in (b"a", b"b" * MAX_MESSAGE_BYTES, b"c"):
        left.send(data)
    assert right.drain()
    assert [opened(raw).data[:1] for raw in right.inbox] == [b"a", b"b", b"c"]
    assert len(right.inbox[1][0]) == MAX_MESSAGE_BYTES


@pytest.mark.parametrize("size", [0, MAX_MESSAGE_BYTES + 1])
def test_a_message_out_of_bounds_is_refused(ends: tuple[Channel, Channel], size: int) -> None:
    with pytest.raises(ValueError, match=f"not {size}"):
        ends[0].send(bytes(size))


def test_descriptors_travel(ends: tuple[Channel, Channel]) -> None:
    left, right = ends
    pipes = [os.pipe() for _ in range(MAX_DESCRIPTORS)]
    left.send(b"here", [read for read, _ in pipes])
    message = right.receive()
    assert message is not None
    for (read, write), received in zip(pipes, message.descriptors, strict=True):
        os.write(write, b"x")
        assert os.read(received, 1) == b"x"
        assert not os.get_inheritable(received)
        for fd in (read, write, received):
            os.close(fd)


def test_a_full_pipe_says_so_and_loses_nothing(ends: tuple[Channel, Channel]) -> None:
    left, right = ends
    sent = 0
    while left.try_send(sent.to_bytes(4, "little") * 5000):
        sent += 1
    assert sent > 1
    assert right.drain()
    numbers = [int.from_bytes(raw[0][:4], "little") for raw in right.inbox]
    assert numbers == list(range(sent))


def test_what_a_closed_side_had_sent_is_still_read(ends: tuple[Channel, Channel]) -> None:
    left, right = ends
    right.send(b"unread by the other side")
    left.send(b"first")
    left.send(b"second")
    left.close()
    assert not right.drain()
    assert right.ended
    assert [opened(raw).data for raw in right.inbox] == [b"first", b"second"]


def test_receive_reads_past_a_reset(ends: tuple[Channel, Channel]) -> None:
    left, right = ends
    right.send(b"unread by the other side")
    left.send(b"last")
    left.close()
    message = right.receive()
    assert message is not None
    assert message.data == b"last"
    assert right.receive() is None


@pytest.mark.parametrize("leave_unread", [False, True])
def test_sending_to_a_closed_side_is_a_broken_pipe(ends: tuple[Channel, Channel], leave_unread: bool) -> None:
    left, right = ends
    if leave_unread:
        right.send(b"never read")
    left.close()
    with pytest.raises(BrokenPipeError):
        right.send(b"too late")
    assert right.ended


def test_a_process_that_is_killed_while_it_sends_leaves_whole_messages(ends: tuple[Channel, Channel]) -> None:
    left, right = ends
    pid = fork()
    if pid == 0:
        for number in range(256):
            left.send(bytes([number]) * MAX_MESSAGE_BYTES)
    received: list[bytes] = []
    while len(received) < 20:
        message = right.receive()
        assert message is not None
        received.append(message.data)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    left.close()
    while (message := right.receive()) is not None:
        received.append(message.data)
    assert received == [bytes([number]) * MAX_MESSAGE_BYTES for number in range(len(received))]


def test_an_open_end_in_another_process_means_no_end(ends: tuple[Channel, Channel]) -> None:
    left, right = ends
    held_fd, release_fd = os.pipe()
    pid = fork()
    if pid == 0:
        os.close(release_fd)
        os.read(held_fd, 1)
        os._exit(0)
    left.close()
    assert right.drain()
    os.close(release_fd)
    os.waitpid(pid, 0)
    os.close(held_fd)
    assert not right.drain()


@pytest.mark.parametrize("left_over", [0, 1])
def test_a_message_whose_descriptors_did_not_all_arrive_is_lost(
    ends: tuple[Channel, Channel], left_over: int
) -> None:
    left, right = ends
    left.send(b"brings two", [left.fileno(), left.fileno()])
    with descriptors_left(left_over):
        assert right.drain()
    before = open_descriptors()
    with pytest.raises(MessageLost, match="ulimit -n"):
        opened(right.inbox[0])
    assert len(before) - len(open_descriptors()) == left_over, "what did arrive is closed"


def test_closing_closes_what_nobody_has_opened(ends: tuple[Channel, Channel]) -> None:
    left, right = ends
    before = len(open_descriptors())
    for _ in range(3):
        left.send(b"brings two", [left.fileno(), left.fileno()])
    with descriptors_left(5):
        right.drain()
    assert len(open_descriptors()) == before + 5
    right.close()
    assert len(open_descriptors()) == before - 1


def test_an_end_is_closed_when_it_is_dropped(ends: tuple[Channel, Channel]) -> None:
    left, right = Channel.pair()
    del left
    assert right.receive() is None


def test_no_end_is_inherited_by_a_program(ends: tuple[Channel, Channel]) -> None:
    assert not any(os.get_inheritable(end.fileno()) for end in ends)


@pytest.fixture
def no_collections() -> Iterator[None]:
    """Collect no garbage: in what it calls back, a weak set's say, an interrupt would be lost."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Alarm(Exception):
    pass


def drain_to_the_end(channel: Channel) -> None:
    """Not a loop within ``try``: CPython 3.13.0 leaves the jump back out of what ``except`` covers."""
    while channel.drain():
        pass


@pytest.mark.usefixtures("no_collections")
def test_drain_handles_no_exception(ends: tuple[Channel, Channel]) -> None:
    """One that a signal handler raised there would show its user two tracebacks."""
    left, right = ends
    left.send(b"one")
    left.send(b"two")
    raised: list[str] = []
    sys.setprofile(lambda frame, event, argument: raised.append(event) if event == "c_exception" else None)
    try:
        is_open = right.drain()
    finally:
        sys.setprofile(None)
    assert (is_open, len(right.inbox), raised) == (True, 2, [])


def test_no_message_is_lost_to_interrupts_of_drain(ends: tuple[Channel, Channel]) -> None:
    """A timer raises again and again while messages are taken in: each arrives once, in order."""
    left, right = ends
    count = 20_000
    pid = fork()
    if pid == 0:
        for number in range(count):
            left.send(number.to_bytes(4, "little"))
        os._exit(0)
    left.close()

    armed = False

    def ring(*_: object) -> None:
        nonlocal armed
        if armed:
            armed = False  # until the interrupt has been dealt with
            raise Alarm

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 0.0003, 0.0003)
    interrupts, alive = 0, True
    while alive:
        try:
            armed = True
            drain_to_the_end(right)
            alive = armed = False
        except Alarm:
            interrupts += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
    os.waitpid(pid, 0)
    assert interrupts > 3
    assert [int.from_bytes(raw[0], "little") for raw in right.inbox] == list(range(count))
