"""The way of standard error: whole, in order, never waiting. Through a supervisor: see test_last_words."""

from __future__ import annotations

import os
import select
import socket
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from supervisor.relay import MAX_TAIL_BYTES, Outlet, Relay, Source, pieces


def read_all(fd: int) -> bytes:
    """Return what is in a pipe now."""
    os.set_blocking(fd, False)
    read = b""
    try:
        while data := os.read(fd, 1 << 20):
            read += data
    except BlockingIOError:
        pass
    return read


@contextmanager
def piped() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    try:
        yield ends
    finally:
        for fd in ends:
            os.close(fd)


def test_pieces_are_whole_lines_that_fit_into_one_write() -> None:
    lines = [b"a" * 100 + b"\n"] * 100
    cut = pieces(b"".join(lines))
    assert b"".join(cut) == b"".join(lines)
    assert all(len(piece) <= select.PIPE_BUF and piece.endswith(b"\n") for piece in cut)
    assert [len(piece) for piece in pieces(b"x" * 10_000)] == [4096, 4096, 1808]
    assert pieces(b"") == []


def test_an_outlet_never_waits_and_keeps_the_order() -> None:
    with piped() as (read_fd, write_fd):
        outlet = Outlet(write_fd)
        for number in range(2000):
            outlet.put(b"%099d\n" % number)
        assert outlet.is_stuck
        read = b""
        while outlet.is_stuck:
            read += read_all(read_fd)
            outlet.flush()
        read += read_all(read_fd)
        assert [int(line) for line in read.splitlines()] == list(range(2000))
        os.close(outlet.fd)


def test_an_outlet_leaves_the_description_that_others_share_as_it_is() -> None:
    with piped() as (_, write_fd):
        outlet = Outlet(write_fd)
        assert os.get_blocking(write_fd)
        assert not os.get_blocking(outlet.fd)
        os.close(outlet.fd)


def test_an_outlet_that_cannot_be_opened_again_does_not_wait_either() -> None:
    left, right = socket.socketpair()
    with left, right:
        outlet = Outlet(left.fileno())
        for _ in range(20):
            outlet.put(b"x" * 60_000)
        assert outlet.is_stuck
        assert right.recv(10) == b"x" * 10
        os.close(outlet.fd)


def test_an_outlet_to_a_file_writes_where_the_consumer_does(tmp_path: Path) -> None:
    with open(tmp_path / "log", "wb", buffering=0) as file:
        outlet = Outlet(file.fileno())
        file.write(b"one ")
        outlet.put(b"two ")
        file.write(b"three")
        os.close(outlet.fd)
    assert (tmp_path / "log").read_bytes() == b"one two three"


def test_an_outlet_that_nobody_reads_drops_what_it_is_given() -> None:
    read_fd, write_fd = os.pipe()
    outlet = Outlet(write_fd)
    os.close(read_fd)
    outlet.put(b"hello")
    assert not outlet.is_stuck
    os.close(outlet.fd)
    os.close(write_fd)


def test_an_outlet_keeps_no_more_than_a_bound() -> None:
    with piped() as (_, write_fd):
        outlet = Outlet(write_fd)
        for _ in range(100):
            outlet.put(b"x" * 60_000)
        assert sum(map(len, outlet._waiting)) < (1 << 20) + 60_000
        os.close(outlet.fd)


def test_a_source_keeps_the_end_of_what_it_read_and_closes_with_its_pipe() -> None:
    read_fd, write_fd = os.pipe()
    os.set_blocking(read_fd, False)
    source = Source(read_fd)
    assert source.read() == b""
    assert source.fd == read_fd
    for data in (b"a" * 5000, b"the end"):
        os.write(write_fd, data)
        source.read()
    os.close(write_fd)
    assert source.read() == b""
    assert source.fd is None
    assert len(source.tail) == MAX_TAIL_BYTES
    assert source.tail.endswith(b"aathe end")


def test_a_relay_reads_nothing_while_its_outlet_is_stuck_but_what_the_dead_have_left() -> None:
    with piped() as (read_fd, write_fd):
        relay = Relay(write_fd)
        living, living_fd = relay.open()
        dead, dead_fd = relay.open()
        while not relay._outlet.is_stuck:
            os.write(living_fd, b"x" * 60_000)
            relay.pass_on({living.fd or -1})
        before = living.tail
        os.write(living_fd, b"later")
        relay.pass_on({living.fd or -1})
        assert living.tail == before
        os.write(dead_fd, b"last \xff words")
        assert relay.last_words(dead) == "last \ufffd words"
        passed = b""
        while relay._outlet.is_stuck:
            passed += read_all(read_fd)
            relay.pass_on(set())
        relay.pass_on({living.fd or -1})
        passed += read_all(read_fd)
        assert passed.lstrip(b"x") == b"last \xff wordslater"
        for fd in (living_fd, dead_fd, *relay.descriptors()):
            os.close(fd)


def test_a_terminal_that_is_stopped_blocks_nobody_but_who_writes() -> None:
    master, slave = os.openpty()
    termios.tcflow(slave, termios.TCOOFF)
    outlet = Outlet(slave)
    outlet.put(b"hello\n")
    assert outlet.is_stuck
    termios.tcflow(slave, termios.TCOON)
    outlet.flush()
    assert os.read(master, 100) == b"hello\r\n"
    for fd in (master, slave, outlet.fd):
        os.close(fd)
