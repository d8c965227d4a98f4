"""Memory cgroups for tests: with a limit, below our own, and gone afterwards."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from supervisor.kernel_log import KernelLog
from supervisor.memory_cgroup import V1, MemoryCgroup, find
from tests.processes import wait_until


@contextmanager
def limited_cgroup(limit_bytes: int) -> Iterator[Path]:
    """Give the folder of an empty memory cgroup; skip the test where none can be made."""
    around = find(os.getpid())
    if around is None:
        pytest.skip("which memory cgroup this process is in cannot be told")
    for stale in around.stale_children():
        stale.remove()
    try:
        group = around.make_child(0)
    except OSError as error:
        pytest.skip(f"no memory cgroup can be made here: {error}")
    try:
        _set_limit(group, limit_bytes)
        yield group.folder
    finally:
        assert wait_until(lambda: _remove(group.folder), timeout_s=5.0), "a process or a group is left"


def _set_limit(group: MemoryCgroup, limit_bytes: int) -> None:
    (group.folder / group.files.limit).write_text(str(limit_bytes))
    with suppress(OSError):  # where swapping is not accounted for
        name, value = (
            ("memory.memsw.limit_in_bytes", limit_bytes) if group.files is V1 else ("memory.swap.max", 0)
        )
        (group.folder / name).write_text(str(value))


def _remove(folder: Path) -> bool:
    with suppress(OSError):
        os.rmdir(folder)
    return not folder.exists()


def require_kernel_log() -> None:
    """Skip the test where the kernel log may not be read."""
    log = KernelLog()
    if log.fd is None:
        pytest.skip("the kernel log may not be read here, or its pids are not ours")
    os.close(log.fd)
