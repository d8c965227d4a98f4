"""Pipes that say more or less than the truth: results after a death, no end-of-file, one without a death."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dataloader import DataLoader, ExitReason, ExitReport
from tests.chaos.storm import POLICY, kill_if_alive
from tests.datasets import die_by_sigkill, first_time
from tests.processes import is_gone, living_descendants, wait_until

pytestmark = pytest.mark.slow

STARTS = pytest.mark.parametrize("start_method", ["fork", "forkserver", "spawn"])
SIZES = pytest.mark.parametrize("numbers", [4, 10_000], ids=["inline", "in slots"])
LENGTH = 20
FAULTY = 3  # the sample at which a fault happens


@dataclass
class Written:
    """Sample i holds the number i; each loading of it leaves a file in ``folder``.

    Parameters:
        fault: called at the first loading of one sample.
    """

    folder: Path
    numbers: int
    fault: Callable[[Path], object] | None = None

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> NDArray[np.float64]:
        (self.folder / f"{index}-{time.monotonic_ns()}").touch()
        if self.fault is not None and index == FAULTY and first_time(self.folder / "fault"):
            self.fault(self.folder)
        return np.full(self.numbers, float(index))

    def loads(self, index: int) -> int:
        """Return how often a sample was loaded."""
        return len(list(self.folder.glob(f"{index}-*")))


def loader_of(dataset: Any, start_method: str = "fork", **arguments: Any) -> DataLoader:
    arguments = {"num_workers": 1, "multiprocessing_context": start_method, "restart": POLICY, **arguments}
    return DataLoader(dataset, **arguments)


def assert_complete(batches: list[Any], first: int = 0) -> None:
    assert [batch[0, 0] for batch in batches] == list(range(first, LENGTH))
    assert all((batch == batch[0, 0]).all() for batch in batches)


def the_death(loader: DataLoader) -> ExitReport:
    (report,) = [report for report in loader.reports if report.is_death]
    return report


# ---- results that a dead worker had sent whole ---------------------------------------------------


@STARTS
@SIZES
def test_what_a_dead_worker_had_sent_is_used(start_method: str, numbers: int, tmp_path: Path) -> None:
    dataset = Written(tmp_path, numbers, lambda _: die_by_sigkill())
    with loader_of(dataset, start_method, prefetch_factor=FAULTY + 1) as loader:
        iterator = iter(loader)
        pid = loader.workers()[0].pid
        # All that the window holds is handed out by now: nobody takes a result until the worker is dead.
        assert wait_until(lambda: is_gone(pid), timeout_s=10.0)
        assert_complete(list(iterator))
        assert the_death(loader).pid == pid
    assert [dataset.loads(index) for index in range(LENGTH)] == [1] * FAULTY + [2] + [1] * (
        LENGTH - FAULTY - 1
    )


# ---- a grandchild that holds the pipe ------------------------------------------------------------


def leave_a_grandchild(folder: Path) -> None:
    """Fork a process that holds all descriptors of this one, in a session of its own, and die."""
    pid = os.fork()
    if pid == 0:
        os.setsid()
        (folder / "grandchild.new").write_text(str(os.getpid()))
        (folder / "grandchild.new").rename(folder / "grandchild")
        while True:
            signal.pause()
    while not (folder / "grandchild").exists():
        time.sleep(0.001)
    die_by_sigkill()


@pytest.fixture
def grandchild(tmp_path: Path) -> Iterator[Callable[[], int]]:
    """Give a function that returns the grandchild's pid; end the grandchild."""

    def pid() -> int:
        return int((tmp_path / "grandchild").read_text())

    yield pid
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        os.kill(pid(), signal.SIGKILL)


@STARTS
@SIZES
def test_a_grandchild_that_holds_the_pipe_hides_no_death(
    start_method: str, numbers: int, tmp_path: Path, grandchild: Callable[[], int]
) -> None:
    dataset = Written(tmp_path, numbers, leave_a_grandchild)
    with loader_of(dataset, start_method, num_workers=2) as loader:
        assert_complete(list(loader))
        report = the_death(loader)
        assert not is_gone(grandchild())
    assert (report.reason, report.sample) == (ExitReason.KILLED, FAULTY)
    assert dataset.loads(FAULTY) == 2


def leave_a_child(folder: Path) -> None:
    """As above, but the child stays in the worker's process group."""
    pid = os.fork()
    if pid == 0:
        (folder / "grandchild").touch()
        while True:
            signal.pause()
    while not (folder / "grandchild").exists():
        time.sleep(0.001)
    die_by_sigkill()


def test_what_a_worker_had_started_ends_with_it(tmp_path: Path) -> None:
    before = set(living_descendants())
    with loader_of(Written(tmp_path, 4, leave_a_child), num_workers=2) as loader:
        assert_complete(list(loader))
    assert wait_until(lambda: set(living_descendants()) <= before, timeout_s=2.0)


# ---- a pipe that ends though its worker lives ----------------------------------------------------


def close_own_pipe() -> None:
    """Close all sockets of this process: a worker has no other than its pipe."""
    for link in list(Path("/proc/self/fd").iterdir()):
        with contextlib.suppress(FileNotFoundError):
            if os.readlink(link).startswith("socket:"):
                os.close(int(link.name))


def close_own_pipe_and_go_on(folder: Path) -> None:
    close_own_pipe()


def close_own_pipe_and_sleep(folder: Path) -> None:
    close_own_pipe()
    time.sleep(60.0)


def close_own_pipe_and_sleep_in_a_grandchilds_shadow(folder: Path) -> None:
    """Nobody sees an end-of-file: a child holds the pipe open. The sample takes as long as it takes."""
    pid = os.fork()
    if pid == 0:
        while True:
            signal.pause()
    close_own_pipe()


@STARTS
@pytest.mark.parametrize(
    ("fault", "reason", "because"),
    [
        (close_own_pipe_and_go_on, ExitReason.EXCEPTION, "it left its exception behind"),
        (close_own_pipe_and_sleep, ExitReason.KILLED, "its pipe had ended though it was alive"),
        (
            close_own_pipe_and_sleep_in_a_grandchilds_shadow,
            ExitReason.EXCEPTION,
            "it left its exception behind",
        ),
    ],
    ids=["goes on", "sleeps", "has a child"],
)
def test_a_worker_that_closed_its_pipe_is_replaced(
    start_method: str, fault: Callable[[Path], object], reason: ExitReason, because: str, tmp_path: Path
) -> None:
    start_s = time.monotonic()
    with loader_of(Written(tmp_path, 4, fault), start_method, num_workers=2) as loader:
        assert_complete(list(loader))
        report = the_death(loader)
    assert report.reason is reason
    assert because in report.evidence
    assert time.monotonic() - start_s < 30.0  # less than the sleep of a minute


# ---- many deaths at once -------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [1, 2, 5])
def test_all_workers_may_die_at_once_again_and_again(num_workers: int, tmp_path: Path) -> None:
    batches = []
    with loader_of(Written(tmp_path, 10_000), num_workers=num_workers) as loader:
        for batch in loader:
            batches.append(batch)
            for worker in loader.workers():
                kill_if_alive(worker.pid)
        assert_complete(batches)
    assert wait_until(lambda: not living_descendants(), timeout_s=2.0)
