"""Messages arrive whole or not at all, with their descriptors, and nothing blocks that must not."""

from __future__ import annotations

import os

import pytest

from supervisor.channel import MAX_DESCRIPTORS, MAX_MESSAGE_BYTES, Channel, opened


@pytest.fixture
def ends() -> tuple[Channel, Channel]:
    return Channel.pair()


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
