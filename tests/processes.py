"""What tests ask about processes and descriptors, and how they wait."""

from __future__ import annotations

import gc
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil


def wait_until(condition: Callable[[], object], timeout_s: float) -> bool:
    """Wait until ``condition`` holds, but no longer than ``timeout_s``; return whether it does."""
    end_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end_s:
            return False
        time.sleep(0.002)
    return True


def kill_and_await_death(pid: int) -> None:
    """Kill a process and wait until its parent could reap it."""
    os.kill(pid, signal.SIGKILL)
    await_death(pid)


def await_death(pid: int) -> None:
    """Wait until the parent of a process could reap it, not only until its first thread has ended."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    died, _, _ = select.select([pidfd], [], [], 5.0)
    os.close(pidfd)
    assert died, f"process {pid} does not die"


def is_gone(pid: int) -> bool:
    """Whether there is no such process, or only its unreaped remains."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def living_descendants(pid: int | None = None) -> list[int]:
    """Return the pids of all living descendants of ``pid``, by default of this process."""
    try:
        descendants = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return [child.pid for child in descendants if not is_gone(child.pid)]


def open_descriptors(pid: int | None = None) -> dict[int, str]:
    """Return what each descriptor of ``pid`` is, by default of this process."""
    descriptors = {}
    for link in Path(f"/proc/{pid or 'self'}/fd").iterdir():
        try:
            descriptors[int(link.name)] = os.readlink(link)
        except FileNotFoundError:
            continue  # the one that listed the others
    return descriptors


def shared_mappings(pid: int | None = None) -> int:
    """Return how many memory files ``pid`` has mapped, by default this process."""
    return sum("memfd:" in line for line in Path(f"/proc/{pid or 'self'}/maps").read_text().splitlines())


def belongings() -> tuple[int, int, int]:
    """Return how many descriptors, memory files and threads this process has, garbage not counted."""
    gc.collect()
    return len(open_descriptors()), shared_mappings(), threading.active_count()
