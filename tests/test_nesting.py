"""Loaders among other processes: inside workers and daemons, and beside whatever else the consumer starts."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.queues import SimpleQueue

import pytest

from dataloader import DataLoader, Dataset
from tests.datasets import LargeArrays
from tests.forks import in_child
from tests.processes import belongings, living_descendants, wait_until

pytestmark = pytest.mark.slow

START_METHODS = ["forkserver", "fork", "spawn"]
GONE_WITHIN_S = 2.0
FORK = multiprocessing.get_context("fork")  # with others, the standard library starts a process that stays


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    before = belongings()
    yield
    assert belongings() == before


@contextmanager
def quiet_forks() -> Iterator[None]:
    """Fork without the warning of Python 3.12 and later that threads (numpy's, idle) do not come along."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def loaded(method: str, count: int = 6) -> list[int]:
    """Return what a loader of this process delivers."""
    with DataLoader(range(count), num_workers=2, multiprocessing_context=method) as loader:
        return [int(batch[0]) for batch in loader]


@dataclass
class Nested(Dataset[list[int]]):
    """Sample ``index`` is what a loader delivers in the worker; ``left_open``: it is not closed."""

    method: str
    left_open: bool = False

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> list[int]:
        if not self.left_open:
            return loaded(self.method)
        loader = DataLoader(
            range(100), num_workers=1, multiprocessing_context=self.method, persistent_workers=True
        )
        self.kept = iter(loader), loader
        return [int(next(self.kept[0])[0])]


# ---- where a loader is ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outer", "inner"),
    [("fork", "fork"), ("fork", "spawn"), ("forkserver", "forkserver"), ("spawn", "fork")],
)
def test_a_loader_inside_a_worker_of_another(outer: str, inner: str) -> None:
    with DataLoader(Nested(inner), None, num_workers=2, multiprocessing_context=outer) as loader:
        assert list(loader) == [list(range(6))] * 4
        assert not any(report.is_death for report in loader.reports)
    assert living_descendants() == []


@pytest.mark.parametrize("inner", ["forkserver", "fork"])
def test_a_loader_left_open_inside_a_worker_ends_with_it(inner: str) -> None:
    nested = Nested(inner, left_open=True)
    with DataLoader(nested, None, num_workers=1, multiprocessing_context="fork") as loader:
        assert list(loader) == [[0]] * 4
    assert wait_until(lambda: not living_descendants(), GONE_WITHIN_S)


def put_loaded(queue: SimpleQueue[list[int]], method: str) -> None:
    assert multiprocessing.current_process().daemon
    queue.put(loaded(method))


@pytest.mark.parametrize("method", START_METHODS)
def test_a_loader_in_a_daemonic_process(method: str) -> None:
    """Such a process may not have children of ``multiprocessing``."""
    queue: SimpleQueue[list[int]] = FORK.SimpleQueue()
    process = FORK.Process(target=put_loaded, args=(queue, method), daemon=True)
    with quiet_forks():
        process.start()
    assert queue.get() == list(range(6))
    process.join()
    assert process.exitcode == 0
    process.close()
    queue.close()


# ---- what else the consumer starts ---------------------------------------------------------------


@pytest.fixture
def epoch() -> Iterator[Iterator[int]]:
    """Sample after sample of a loader whose batches lie in slots; in the end all must have come."""
    with DataLoader(LargeArrays(60), num_workers=2, multiprocessing_context="fork") as loader:
        numbers = (int(batch[0, 0]) for batch in loader)
        assert next(numbers) == 0
        yield numbers
        assert list(numbers) == list(range(2, 60))
        assert not any(report.is_death for report in loader.reports)


def test_subprocesses_beside_an_epoch(epoch: Iterator[int]) -> None:
    command = [sys.executable, "-c", "print('from a subprocess')"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, close_fds=False) as process:
        assert next(epoch) == 1
        assert process.stdout is not None
        assert process.stdout.read() == "from a subprocess\n"
    assert process.returncode == 0


def double(number: int) -> int:
    return 2 * number


def test_processes_of_multiprocessing_beside_an_epoch(epoch: Iterator[int]) -> None:
    with quiet_forks(), ProcessPoolExecutor(2, mp_context=FORK) as executor:
        assert next(epoch) == 1
        assert list(executor.map(double, range(10))) == list(range(0, 20, 2))
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("method", ["forkserver", "fork"])
def test_another_loader_beside_an_epoch(method: str, epoch: Iterator[int]) -> None:
    assert loaded(method) == list(range(6))
    assert next(epoch) == 1
    assert in_child(lambda: loaded(method)) == list(range(6))


def test_a_child_forked_by_one_thread_while_another_waits_is_told_whose_the_loader_is() -> None:
    """What the other thread had locked is free in the child, where that thread is not."""
    with DataLoader(Blocked(), num_workers=2, multiprocessing_context="fork") as loader:
        iterator = iter(loader)
        waiting = threading.Thread(target=complaint, args=(iterator.__next__,))
        waiting.start()

        def complaints() -> list[str]:
            told = [complaint(iterator.__next__), complaint(loader.__iter__)]
            loader.close()
            return told

        for text in in_child(complaints):
            assert "from which this process was forked" in text
        loader.close()
        waiting.join()


def complaint(action: Callable[[], object]) -> str:
    with pytest.raises(RuntimeError) as raised:
        action()
    return str(raised.value)


class Blocked(Dataset[int]):
    """Its samples never come."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> int:
        threading.Event().wait()
        return index
