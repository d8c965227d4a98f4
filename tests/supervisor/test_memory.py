"""Readings are of the process asked for, and of nothing once it is gone."""

from __future__ import annotations

import mmap
import os
import sys

import numpy as np
import pytest

from supervisor.linux import unshared_bytes
from supervisor.memory import KEPT_READINGS, MemoryLog, rss_bytes
from tests.forks import fork
from tests.processes import kill_and_await_death

LARGE_BYTES = 64 << 20


def unreaped_process() -> int:
    """Return the pid of a child that has ended and that nobody has waited for."""
    pid = fork()
    if pid == 0:
        os.kill(os.getpid(), 9)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    return pid


def test_a_reading_sees_memory_that_is_used() -> None:
    log = MemoryLog(os.getpid())
    log.read(1.0)
    with mmap.mmap(-1, LARGE_BYTES) as memory:
        memory.write(bytes(LARGE_BYTES))
        log.read(2.0)
        total = rss_bytes(os.getpid())
    (first_s, first), (second_s, second) = log.before(3.5)
    assert (first_s, second_s) == (2.5, 1.5)
    assert second - first > LARGE_BYTES // 2
    assert abs(total - second) < LARGE_BYTES // 2


def test_only_the_last_readings_are_kept() -> None:
    log = MemoryLog(os.getpid())
    for second in range(KEPT_READINGS + 5):
        log.read(float(second))
    readings = log.before(KEPT_READINGS + 5.0)
    assert [before_s for before_s, _ in readings] == [float(n) for n in range(KEPT_READINGS, 0, -1)]


def test_what_has_ended_and_was_not_reaped_has_no_reading_of_zero() -> None:
    pid = unreaped_process()
    log = MemoryLog(pid)
    log.read(1.0)
    os.waitpid(pid, 0)
    assert log.before(1.0) == []


def test_what_is_gone_has_no_reading() -> None:
    pid = unreaped_process()
    os.waitpid(pid, 0)
    log = MemoryLog(pid)
    log.read(1.0)
    assert log.before(1.0) == []
    assert rss_bytes(pid) == 0


def test_readings_taken_before_the_end_are_kept() -> None:
    pid = fork()
    if pid == 0:
        os.read(os.pipe()[0], 1)
    log = MemoryLog(pid)
    log.read(1.0)
    kill_and_await_death(pid)
    log.read(2.0)
    os.waitpid(pid, 0)
    log.read(3.0)
    assert [before_s for before_s, _ in log.before(3.0)] == [2.0]


def test_what_a_process_had_when_it_was_ready_is_not_charged() -> None:
    had_bytes = unshared_bytes()
    kept = np.ones(LARGE_BYTES, np.uint8)
    log = MemoryLog(os.getpid())
    log.begin_charge(0.0, had_bytes)
    assert log.own_bytes(sys.maxsize, 0.0) == pytest.approx(kept.nbytes, abs=LARGE_BYTES / 8)
    log.begin_charge(0.0, -1)
    assert log.own_bytes(sys.maxsize, 0.0) == 0
