"""Where the kernel refuses pidfds or memory files, everything works by SIGCHLD and temporary files."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.processes import is_gone, living_descendants, wait_until

REFUSED = {"pidfd": ["pidfd_open"], "memfd": ["memfd_create"], "both": ["pidfd_open", "memfd_create"]}

EPOCHS = """
import os, signal, sys
from tests.supervisor.seccomp import refuse
start_method, *names = sys.argv[1:]
refuse(*names)
for name in names:
    try:
        os.memfd_create("x") if name == "memfd_create" else os.pidfd_open(os.getpid())
    except PermissionError:
        continue
    raise AssertionError(f"{name} was not refused")

import numpy as np
from dataloader import DataLoader
from tests.processes import open_descriptors

class Samples:
    def __len__(self):
        return 400
    def __getitem__(self, index):
        return np.full(5000, index)

with DataLoader(
    Samples(), batch_size=4, num_workers=2, persistent_workers=True, multiprocessing_context=start_method
) as loader:
    for epoch in range(2):
        got = []
        for number, batch in enumerate(loader):
            if number == 20:
                os.kill(loader.workers()[0].pid, signal.SIGKILL)
            got += batch[:, -1].tolist()
        assert got == list(range(400)), got
    assert len([report for report in loader.reports if report.is_death]) == 2, loader.reports
    print("all there", flush=True)
    if len(names) == 2 or names == ["pidfd_open"]:
        iterator = iter(loader)
        next(iterator)
        print("ready", flush=True)
        sys.stdin.read()
"""


@pytest.mark.parametrize("start_method", ["fork", "forkserver"])
@pytest.mark.parametrize("names", REFUSED.values(), ids=REFUSED)
def test_the_same_batches_after_deaths(names: list[str], start_method: str) -> None:
    with _script(start_method, names) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "all there\n"
        process.communicate(timeout=10)
        assert process.returncode == 0


@pytest.mark.parametrize("start_method", ["fork", "forkserver", "spawn"])
def test_nothing_outlives_a_killed_consumer(start_method: str) -> None:
    with _script(start_method, REFUSED["pidfd"]) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["all there\n", "ready\n"]
        ours = living_descendants(process.pid)
        assert len(ours) == 3
        process.kill()
        assert wait_until(lambda: all(is_gone(pid) for pid in ours), timeout_s=1.0)


def _script(start_method: str, names: list[str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", EPOCHS, start_method, *names]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
