"""The kernel log, from files that look like it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from supervisor.kernel_log import MACHINES_PIDS, KernelLog, victim_of

KILLED = "3,417,30104241173,-;Memory cgroup out of memory: Killed process {} (python) total-vm:115052kB\n"


@pytest.fixture
def log_file(tmp_path: Path) -> Path:
    file = tmp_path / "kmsg"
    file.write_text(KILLED.format(1))  # before our time
    return file


@pytest.fixture
def machines(tmp_path: Path) -> Path:
    link = tmp_path / "pid"
    link.symlink_to(MACHINES_PIDS)
    return link


def append(file: Path, record: str) -> None:
    with file.open("a") as log:
        log.write(record)


@pytest.mark.parametrize(
    ("record", "pid"),
    [
        (KILLED.format(4711), 4711),
        ("3,1,1,-;Out of memory: Killed process 12 (a (b) c) total-vm:1kB", 12),
        ("3,1,1,-;Out of memory (oom_kill_allocating_task): Killed process 12 (x) total-vm:1kB", 12),
        ("3,1,1,-;Killed process 13 (python) total-vm:1kB", 13),
        ("6,1,1,-;oom_reaper: reaped process 14 (python), now anon-rss:0kB", None),
        ("6,1,1,-;oom-kill:constraint=CONSTRAINT_NONE,task=python,pid=15,uid=0", None),
        ("11,1,1,-;Out of memory: Killed process 16 (whoever may write to the log)", None),
        ("3,1,1,-;usb 1-1: Killed process 17 (x)", None),
        (" SUBSYSTEM=memory", None),
        ("", None),
    ],
)
def test_a_record_names_a_victim_or_none(record: str, pid: int | None) -> None:
    assert victim_of(record) == pid


def test_whom_it_names_after_it_was_opened_was_killed(log_file: Path, machines: Path) -> None:
    log = KernelLog(log_file, machines)
    log.read()
    append(log_file, KILLED.format(4711))
    assert log.names(4711, 0) is False
    log.read()
    assert [log.names(pid, 0) for pid in (4711, 1)] == [True, False]
    log.forget(4711)
    assert log.names(4711, 0) is False


def test_silence_means_nothing_once_records_were_lost(
    log_file: Path, machines: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = KernelLog(log_file, machines)
    answers: list[OSError | bytes] = [
        OSError(errno.EPIPE, "overrun"),
        KILLED.format(4711).encode(),
        OSError(errno.EAGAIN, "no more"),
    ]

    def read(fd: int, count: int) -> bytes:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    with monkeypatch.context() as patch:
        patch.setattr(os, "read", read)
        log.read()
    assert [log.names(pid, 0) for pid in (4711, 12)] == [True, None]
    assert log.names(12, gaps_before=1) is False, "one that started after the gap"


def test_nothing_is_known_of_pids_that_are_not_the_machines(log_file: Path, tmp_path: Path) -> None:
    (tmp_path / "other").symlink_to("pid:[4026532000]")
    log = KernelLog(log_file, tmp_path / "other")
    append(log_file, KILLED.format(4711))
    log.read()
    assert (log.fd, log.names(4711, 0)) == (None, None)


def test_nothing_is_known_without_permission(
    tmp_path: Path, machines: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert KernelLog(tmp_path / "missing", machines).names(12, 0) is None

    def refuse(fd: int, count: int) -> bytes:
        raise PermissionError(errno.EPERM, "dmesg_restrict")

    (tmp_path / "kmsg").touch()
    with monkeypatch.context() as patch:
        patch.setattr(os, "read", refuse)
        log = KernelLog(tmp_path / "kmsg", machines)
    assert log.names(12, 0) is None
