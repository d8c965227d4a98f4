"""What a user of the loader sees when workers die: before, between and in the middle of epochs."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataloader import DataLoader, ExitReason, RestartPolicy, WorkerDiedError
from supervisor.exceptions import WorkerTraceback
from tests.datasets import first_time
from tests.processes import kill_and_await_death, living_descendants, wait_until

START_METHODS = ["fork", "forkserver", "spawn"]


class Ends:
    """Numbers; whoever loads a certain one for the first time ends."""

    def __init__(self, flag: Path, at: int, end: Callable[[], object]) -> None:
        self.flag = flag
        self.at = at
        self.end = end

    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> Any:
        if index == self.at and first_time(self.flag):
            self.end()
        return index, np.random.rand(4000)


def reference(dataset: Any, **arguments: Any) -> list[Any]:
    return list(DataLoader(dataset, **arguments))


def assert_same(batches: list[Any], expected: list[Any]) -> None:
    assert len(batches) == len(expected)
    for (indices, noise), (expected_indices, expected_noise) in zip(batches, expected, strict=True):
        assert indices.tolist() == expected_indices.tolist()
        assert noise.tobytes() == expected_noise.tobytes()


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGKILL), ExitReason.KILLED),
        (os.abort, ExitReason.CRASHED),
        (lambda: os._exit(0), ExitReason.EXITED),
    ],
    ids=["SIGKILL", "abort", "exit 0"],
)
@pytest.mark.parametrize("start_method", START_METHODS)
def test_a_death_in_a_sample_changes_no_byte(
    start_method: str, end: Callable[[], object], reason: ExitReason, tmp_path: Path
) -> None:
    arguments: dict[str, Any] = {"batch_size": 16, "shuffle": True, "seed": 5}
    (tmp_path / "calm").touch()
    expected = reference(Ends(tmp_path / "calm", 77, end), **arguments)
    dataset = Ends(tmp_path / "ended", 77, end)
    with DataLoader(dataset, num_workers=2, multiprocessing_context=start_method, **arguments) as loader:
        assert_same(list(loader), expected)
        (report,) = [report for report in loader.reports if report.is_death]
    assert (report.reason, report.sample, report.attempt) == (reason, 77, 1)
    assert expected[report.batch or 0][0].tolist().count(77) == 1


def persistent(dataset: Any, **arguments: Any) -> DataLoader:
    return DataLoader(dataset, batch_size=16, num_workers=2, persistent_workers=True, seed=5, **arguments)


@pytest.mark.parametrize("start_method", START_METHODS)
def test_workers_killed_between_epochs_are_replaced_before_anything_is_sent(
    start_method: str, tmp_path: Path
) -> None:
    flag = tmp_path / "calm"
    flag.touch()
    dataset = Ends(flag, 0, os.abort)
    calm = DataLoader(dataset, batch_size=16, seed=5)
    with persistent(dataset, multiprocessing_context=start_method) as loader:
        assert_same(list(loader), list(calm))
        for worker in loader.workers():
            kill_and_await_death(worker.pid)
        iterator = iter(loader)
        assert [worker.restarts for worker in loader.workers()] == [1, 1]
        assert_same(list(iterator), list(calm))
        deaths = [report for report in loader.reports if report.is_death]
        assert [report.batch for report in deaths] == [None, None]


@pytest.mark.parametrize("start_method", START_METHODS)
def test_without_restarts_iter_raises_the_report_and_the_next_iter_works(
    start_method: str, tmp_path: Path
) -> None:
    (tmp_path / "calm").touch()
    dataset = Ends(tmp_path / "calm", 0, os.abort)
    with persistent(dataset, restart=None, multiprocessing_context=start_method) as loader:
        list(loader)
        pid = loader.workers()[1].pid
        kill_and_await_death(pid)
        with pytest.raises(WorkerDiedError, match=rf"^DataLoader worker \(pid {pid}\) is killed") as caught:
            iter(loader)
        assert caught.value.report.pid == pid
        assert len(list(loader)) == len(loader)


def test_without_restarts_a_death_in_an_epoch_is_raised(tmp_path: Path) -> None:
    dataset = Ends(tmp_path / "ended", 77, os.abort)
    loader = DataLoader(dataset, batch_size=16, num_workers=2, restart=None, multiprocessing_context="fork")
    with loader, pytest.raises(WorkerDiedError, match="restart=None") as caught:
        list(loader)
    assert caught.value.report.sample == 77


def test_a_sample_that_ends_every_worker_is_named(tmp_path: Path) -> None:
    class Poison(Ends):
        def __getitem__(self, index: int) -> Any:
            if index == self.at:
                os._exit(9)
            return index

    policy = RestartPolicy(max_restarts=3, backoff=0.0)
    loader = DataLoader(
        Poison(tmp_path, 33, os.abort), num_workers=2, restart=policy, multiprocessing_context="fork"
    )
    with loader, pytest.raises(WorkerDiedError, match="Sample 33 has ended 3 workers") as caught:
        list(loader)
    assert [report.sample for report in caught.value.reports] == [33] * 3
    assert [report.attempt for report in caught.value.reports] == [1, 2, 3]


class FailsToUnpickle:
    def __init__(self, how: str) -> None:
        self.how = how

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index

    def __setstate__(self, state: dict[str, Any]) -> None:
        if state["how"] == "raise":
            raise LookupError("no such file", 3)
        if state["how"] == "import":
            import a_module_that_is_not_there  # type: ignore[import-not-found] # noqa: F401
        os.abort()


@pytest.mark.parametrize("start_method", ["forkserver", "spawn"])
@pytest.mark.parametrize(
    ("how", "error"), [("raise", LookupError), ("import", ModuleNotFoundError), ("crash", WorkerDiedError)]
)
def test_startup_errors_are_raised_by_iter(start_method: str, how: str, error: type[Exception]) -> None:
    loader = DataLoader(FailsToUnpickle(how), num_workers=2, multiprocessing_context=start_method)
    with loader:
        with pytest.raises(error) as caught:
            iter(loader)
        if error is not WorkerDiedError:
            assert isinstance(caught.value.__cause__, WorkerTraceback)
            assert "__setstate__" in str(caught.value.__cause__)
    assert wait_until(lambda: not living_descendants(), timeout_s=1.0)


class Raises:
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int:
        if index == 21:
            raise self.error
        return index


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_exception_in_a_sample_is_raised_and_the_next_batch_is_the_next(num_workers: int) -> None:
    with DataLoader(Raises(ValueError("bad", 21)), batch_size=4, num_workers=num_workers) as loader:
        iterator = iter(loader)
        got = [next(iterator).tolist() for _ in range(5)]
        with pytest.raises(ValueError, match="bad") as caught:
            next(iterator)
        assert caught.value.args == ("bad", 21)
        got += [batch.tolist() for batch in iterator]
    assert got == [list(range(n, n + 4)) for n in range(0, 40, 4) if n != 20]
    if num_workers:
        text = str(caught.value.__cause__)
        assert "batch 5, sample 21" in text
        assert "in __getitem__" in text
        assert not [report for report in loader.reports if report.is_death]


@pytest.mark.parametrize("kind", [StopIteration, SystemExit, KeyboardInterrupt, GeneratorExit])
def test_what_would_end_the_loop_arrives_as_a_runtime_error(kind: type[BaseException]) -> None:
    with DataLoader(Raises(kind()), batch_size=4, num_workers=2) as loader:
        iterator = iter(loader)
        for _ in range(5):
            next(iterator)
        with pytest.raises(RuntimeError, match=kind.__name__):
            next(iterator)
        assert len(list(iterator)) == 4


@pytest.mark.parametrize("persistent", [False, True], ids=["in the middle of an epoch", "between epochs"])
@pytest.mark.parametrize("start_method", ["fork", "forkserver"])
def test_who_died_and_who_came_is_known_before_the_next_batch(start_method: str, persistent: bool) -> None:
    with DataLoader(
        range(100),
        num_workers=2,
        multiprocessing_context=start_method,
        persistent_workers=persistent,
        restart=RestartPolicy(backoff=0.0),
    ) as loader:
        iterator = iter(loader)
        numbers = [int(batch[0]) for batch in iterator] if persistent else [int(next(iterator)[0])]
        dead = loader.workers()[1].pid
        kill_and_await_death(dead)
        wait_until(lambda: [report.pid for report in loader.reports] == [dead], 10)
        wait_until(lambda: len(loader.workers()) == 2, 10)
        assert loader.stats().deaths == 1
        os.kill(loader.workers()[1].pid, 0)
        numbers += [int(batch[0]) for batch in iterator]
        assert numbers == list(range(100))
