"""System calls, and what stands in for them. Real refusals by the kernel: see test_fallbacks."""

from __future__ import annotations

import errno
import mmap
import os
import select
import signal
import sys
from pathlib import Path

import pytest

from supervisor import linux
from tests.forks import fork, in_child
from tests.processes import is_gone, kill_and_await_death, open_descriptors, wait_until


class NoFunctions:
    """A C library that has nothing."""


def without_memfd(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if how != "os":
        monkeypatch.delattr(os, "memfd_create")
    if how == "neither":
        monkeypatch.setattr(linux, "_libc", NoFunctions())


@pytest.mark.parametrize("how", ["os", "ctypes", "neither"])
def test_a_memory_file_is_nameless_shared_and_not_inherited(
    how: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    without_memfd(how, monkeypatch)
    fd = linux.create_memory_file("example")
    name = os.readlink(f"/proc/self/fd/{fd}")
    assert "example" in name
    assert name.startswith(str(tmp_path) if how == "neither" else "/memfd:")
    assert not any(tmp_path.iterdir())
    assert not os.get_inheritable(fd)
    os.ftruncate(fd, 8192)
    with mmap.mmap(fd, 8192) as one, mmap.mmap(fd, 8192) as other:
        one[8191] = 7
        assert other[8191] == 7
    os.close(fd)


def test_no_descriptor_left_for_a_memory_file_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "memfd_create", refuse)
    monkeypatch.setattr("tempfile.mkstemp", refuse)
    with pytest.raises(OSError, match="Too many open files"):
        linux.create_memory_file("example")


@pytest.fixture(params=["os", "ctypes"])
def pidfd_source(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "ctypes":
        monkeypatch.delattr(os, "pidfd_open")


@pytest.mark.usefixtures("pidfd_source")
def test_a_pidfd_is_readable_when_the_process_has_ended() -> None:
    pid = fork()
    if pid == 0:
        signal.pause()
    fd = linux.open_pidfd(pid)
    assert fd is not None
    assert not os.get_inheritable(fd)
    assert select.select([fd], [], [], 0.0)[0] == []
    os.kill(pid, signal.SIGKILL)
    assert select.select([fd], [], [], 5.0)[0] == [fd]
    os.waitpid(pid, 0)
    os.close(fd)


@pytest.mark.usefixtures("pidfd_source")
def test_an_unreaped_process_has_a_pidfd_and_one_that_is_gone_has_none() -> None:
    pid = fork()
    if pid == 0:
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    fd = linux.open_pidfd(pid)
    assert fd is not None
    os.close(fd)
    os.waitpid(pid, 0)
    with pytest.raises(ProcessLookupError):
        linux.open_pidfd(pid)


@pytest.mark.parametrize("code", [errno.EPERM, errno.ENOSYS, errno.EMFILE])
def test_a_refused_pidfd_is_none(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "pidfd_open", refuse)
    assert linux.open_pidfd(os.getpid()) is None


def test_an_owner_closes_its_descriptor_when_it_is_dropped() -> None:
    fd = linux.create_memory_file("example")
    owner = linux.own(fd)
    assert owner.fileno() == fd
    del owner
    assert fd not in open_descriptors()


def test_keeping_twice_is_keeping_once() -> None:
    fd = linux.create_memory_file("example")
    owners: list[select.epoll] = []
    linux.keep(fd, owners)
    linux.keep(fd, owners)
    assert [owner.fileno() for owner in owners] == [fd]
    owners.clear()
    assert fd not in open_descriptors()


def test_a_process_that_asked_for_it_dies_with_its_parent() -> None:
    def parent() -> int:
        ready_fd, write_fd = os.pipe()
        child = fork()
        if child == 0:
            linux.die_with_parent(signal.SIGKILL)
            os.write(write_fd, b"x")
            signal.pause()
        os.read(ready_fd, 1)
        return child

    grandchild = in_child(parent)
    assert isinstance(grandchild, int)
    assert wait_until(lambda: is_gone(grandchild), timeout_s=5.0)


def test_a_process_that_did_not_ask_lives_on() -> None:
    def parent() -> int:
        child = fork()
        if child == 0:
            os.closerange(3, 1 << 10)  # whoever waits for the end of a pipe must not wait for us
            signal.pause()
        return child

    grandchild = in_child(parent)
    assert not is_gone(grandchild)
    kill_and_await_death(grandchild)


def test_what_the_kernel_refuses_is_an_error() -> None:
    with pytest.raises(OSError, match="Invalid argument"):
        linux.die_with_parent(9999)


def test_another_system_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    linux.require_linux("a pool of workers")
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(
        RuntimeError, match=r"a pool of workers needs Linux; this is darwin\. Use num_workers=0"
    ):
        linux.require_linux("a pool of workers")


def test_closed_standard_descriptors_become_the_null_device() -> None:
    def close_and_fill() -> list[str]:
        os.closerange(0, 3)
        os.dup2(read_fd, 1)
        linux.fill_standard_descriptors()
        assert all(os.get_inheritable(fd) for fd in (0, 2))
        return [os.readlink(f"/proc/self/fd/{fd}") for fd in (0, 1, 2)]

    read_fd, write_fd = os.pipe()
    pipe = os.readlink(f"/proc/self/fd/{read_fd}")
    assert in_child(close_and_fill) == [os.devnull, pipe, os.devnull]
    os.close(read_fd)
    os.close(write_fd)
