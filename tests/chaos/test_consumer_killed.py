"""Nothing of ours outlives the consumer, and workers do not outlive their supervisor."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from dataloader import DataLoader, ExitReason, WorkerDiedError
from tests.processes import is_gone, living_descendants, wait_until

START_METHODS = ["fork", "forkserver", "spawn"]

CONSUMER = """
import sys, time
from dataloader import DataLoader

class Samples:
    def __init__(self, slow_s):
        self.slow_s = slow_s
    def __len__(self):
        return 8
    def __getitem__(self, index):
        time.sleep(self.slow_s)
        return index

start_method, slow_s = sys.argv[1], float(sys.argv[2])
loader = DataLoader(
    Samples(slow_s), num_workers=2, persistent_workers=True, multiprocessing_context=start_method
)
iterator = iter(loader)
if not slow_s:
    list(iterator)
print("ready", flush=True)
if slow_s:
    next(iterator)
time.sleep(60)
"""


@contextmanager
def consumer(start_method: str, slow_s: float) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", CONSUMER, start_method, str(slow_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("slow_s", [0.0, 60.0], ids=["idle", "in a sample"])
@pytest.mark.parametrize("start_method", START_METHODS)
def test_nothing_outlives_a_killed_consumer(start_method: str, slow_s: float) -> None:
    in_shared_memory = set(os.listdir("/dev/shm"))
    with consumer(start_method, slow_s) as process:
        ours = living_descendants(process.pid)
        assert len(ours) == 3  # the supervisor and two workers
        process.kill()
        assert wait_until(lambda: all(is_gone(pid) for pid in ours), timeout_s=1.0)
    assert set(os.listdir("/dev/shm")) == in_shared_memory


class Waits:
    """Samples that take a minute once a file is there."""

    def __init__(self, flag: Path) -> None:
        self.flag = flag

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> int:
        if self.flag.exists():
            time.sleep(60)
        return index


@pytest.mark.parametrize("start_method", START_METHODS)
def test_a_killed_supervisor_is_a_clear_error_and_leaves_no_worker(start_method: str, tmp_path: Path) -> None:
    flag = tmp_path / "wait"
    with DataLoader(Waits(flag), num_workers=2, multiprocessing_context=start_method) as loader:
        iterator = iter(loader)
        next(iterator)
        flag.touch()
        workers = [worker.pid for worker in loader.workers()]
        supervisor_pid = psutil.Process(workers[0]).ppid()
        start_s = time.monotonic()
        os.kill(supervisor_pid, signal.SIGKILL)
        with pytest.raises(WorkerDiedError, match="supervisor process died") as caught:
            list(iterator)
        assert time.monotonic() - start_s < 1.0
        assert caught.value.report.pid == supervisor_pid
        assert caught.value.report.reason is ExitReason.KILLED
        assert wait_until(lambda: all(is_gone(pid) for pid in workers), timeout_s=1.0)
        flag.unlink()
        assert len(list(loader)) == 100
