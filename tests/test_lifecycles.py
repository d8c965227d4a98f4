"""The loader's workers: when they start and end, and what several iterators, a close or a fork do to them."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from dataloader import DataLoader, ExitReason, WorkerDiedError
from supervisor.page import State
from tests.datasets import Augmented, Faulty, LargeArrays, NotUnpickled, Pid, Recorded, exit_with_code_0
from tests.equality import fingerprint
from tests.forks import in_child
from tests.processes import (
    belongings,
    is_gone,
    kill_and_await_death,
    living_descendants,
    open_descriptors,
    wait_until,
)

START_METHODS = ["forkserver", "fork", "spawn"]
STARTS = pytest.mark.parametrize(
    ("method", "persistent"),
    [("forkserver", False), ("forkserver", True), ("fork", False), ("fork", True), ("spawn", False)],
)
GONE_WITHIN_S = 2.0
IDLE_WITHIN_S = 10.0


def forked(dataset: Any, num_workers: int = 2, **arguments: Any) -> DataLoader:
    """Make a loader with the start method that starts fastest, for tests of what it has no part in."""
    return DataLoader(dataset, num_workers=num_workers, multiprocessing_context="fork", **arguments)


def nothing_lives() -> bool:
    return wait_until(lambda: not living_descendants(), GONE_WITHIN_S)


def await_idle(loader: DataLoader, batches: int) -> None:
    """Wait until the workers have made so many batches and have nothing left to do."""

    def is_idle() -> bool:
        workers = loader.workers()
        done = sum(worker.batches for worker in workers)
        return done == batches and {worker.state for worker in workers} == {State.IDLE}

    assert wait_until(is_idle, IDLE_WITHIN_S), loader.workers()


def kill_and_await_report(pid: int) -> None:
    """Kill a worker and wait until the supervisor has reaped it, which tells of it in the same breath.

    The next ``next()`` then sees the worker's last results and its death at once.
    """
    supervisor = psutil.Process(psutil.Process(pid).ppid())
    kill_and_await_death(pid)
    assert wait_until(lambda: not psutil.pid_exists(pid), IDLE_WITHIN_S)
    assert wait_until(lambda: supervisor.status() == psutil.STATUS_SLEEPING, IDLE_WITHIN_S)


# ---- workers -------------------------------------------------------------------------------------


def test_without_workers_there_are_none() -> None:
    loader = DataLoader(range(5))
    assert len(list(loader)) == 5
    assert loader.workers() == []
    assert loader.reports == []


def test_nothing_starts_before_iter() -> None:
    loader = forked(range(5))
    assert loader.workers() == []
    assert living_descendants() == []


@pytest.mark.parametrize("method", START_METHODS)
def test_workers_can_be_looked_at(method: str) -> None:
    with DataLoader(range(12), 2, num_workers=3, multiprocessing_context=method) as loader:
        iterator = iter(loader)
        await_idle(loader, batches=6)
        workers = loader.workers()
        assert [worker.id for worker in workers] == [0, 1, 2]
        assert {worker.pid for worker in workers} <= set(living_descendants())
        assert [worker.restarts for worker in workers] == [0, 0, 0]
        for worker in workers:
            assert worker.rss_bytes == pytest.approx(psutil.Process(worker.pid).memory_info().rss, rel=0.5)
        assert len(list(iterator)) == 6


@pytest.mark.parametrize("method", START_METHODS)
def test_persistent_workers_stay_and_others_are_new(method: str) -> None:
    arguments: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": method}
    with DataLoader(Pid(), persistent_workers=True, **arguments) as loader:
        first = {int(batch[0]) for batch in loader}
        assert first <= {worker.pid for worker in loader.workers()}
        assert {int(batch[0]) for batch in loader} | first <= {worker.pid for worker in loader.workers()}
    with DataLoader(Pid(), **arguments) as loader:
        first = {int(batch[0]) for batch in loader}
        assert {int(batch[0]) for batch in loader}.isdisjoint(first)


def test_workers_that_do_not_persist_end_with_their_epoch() -> None:
    with forked(range(5)) as loader:
        assert len(list(loader)) == 5
        assert loader.workers() == []
        assert nothing_lives()


def test_every_end_is_reported_an_ordered_one_too() -> None:
    loader = forked(range(10), persistent_workers=True)
    list(loader)
    pids = {worker.pid for worker in loader.workers()}
    assert loader.reports == []
    loader.close()
    assert {report.pid for report in loader.reports} == pids
    assert {(report.reason, report.is_death) for report in loader.reports} == {(ExitReason.CLOSED, False)}
    list(loader)
    loader.close()
    assert len(loader.reports) == 4


# ---- closing -------------------------------------------------------------------------------------


@STARTS
def test_close_ends_everything_and_leaves_nothing(method: str, persistent: bool) -> None:
    before = belongings()
    loader = DataLoader(
        LargeArrays(20), num_workers=2, multiprocessing_context=method, persistent_workers=persistent
    )
    next(iter(loader))
    loader.close()
    assert living_descendants() == []
    assert loader.workers() == []
    loader.close()
    del loader
    assert belongings() == before


def test_with_closes_after_an_exception_too() -> None:
    def fail() -> None:
        with forked(range(10)) as loader:
            for batch in loader:
                batch[0] // 0

    with pytest.raises(FloatingPointError), np.errstate(all="raise"):
        fail()
    assert living_descendants() == []


def test_a_closed_loader_can_be_iterated_again() -> None:
    loader = forked(Augmented(), seed=3, persistent_workers=True)
    alone = DataLoader(Augmented(), seed=3)
    for _ in range(2):
        assert fingerprint(list(loader)) == fingerprint(list(alone))
        loader.close()


def test_an_iterator_of_a_closed_loader_raises_rather_than_end() -> None:
    loader = forked(range(10))
    iterator = iter(loader)
    next(iterator)
    loader.close()
    with pytest.raises(RuntimeError, match="the DataLoader was closed in the middle of this epoch"):
        next(iterator)


def test_batches_outlive_their_loader() -> None:
    loader = forked(LargeArrays(30), persistent_workers=True)
    kept = list(islice(loader, 20))
    loader.close()
    del loader
    gc.collect()
    assert [int(batch[0, 0]) for batch in kept] == list(range(20))
    kept[0][:] = 0
    assert [int(batch[0, -1]) for batch in kept] == list(range(20))


@STARTS
def test_a_dropped_loader_leaves_no_process(method: str, persistent: bool) -> None:
    """Without a close, and without the help of the garbage collector."""
    gc.collect()
    gc.disable()
    try:
        loader = DataLoader(
            range(20), num_workers=2, multiprocessing_context=method, persistent_workers=persistent
        )
        iterator = iter(loader)
        next(iterator)
        assert len(living_descendants()) == 3
        del loader, iterator
        assert nothing_lives()
    finally:
        gc.enable()


def test_an_iterator_outlives_its_loader() -> None:
    iterator = iter(forked(range(20)))
    assert [int(batch[0]) for batch in iterator] == list(range(20))
    assert nothing_lives()


# ---- several iterators ---------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("persistent", [False, True], ids=["anew", "persistent"])
@pytest.mark.parametrize("count", [2, 10])
def test_several_iterators_of_one_loader_live_side_by_side(count: int, persistent: bool) -> None:
    alone = DataLoader(Augmented(), 10, shuffle=True, seed=1)
    expected = [fingerprint(list(alone)) for _ in range(count)]
    before = belongings()
    with forked(Augmented(), 1, batch_size=10, shuffle=True, seed=1, persistent_workers=persistent) as loader:
        epochs = zip(*[iter(loader) for _ in range(count)], strict=True)
        assert [fingerprint(list(epoch)) for epoch in zip(*epochs, strict=True)] == expected
        assert len(list(loader)) == 5
        assert len(living_descendants()) <= 2  # of the others, none is left
    assert belongings() == before


@pytest.mark.slow
@pytest.mark.parametrize("persistent", [False, True], ids=["anew", "persistent"])
def test_a_loop_left_early_again_and_again(persistent: bool) -> None:
    alone = DataLoader(LargeArrays(50), shuffle=True, seed=1)
    descriptors_before = belongings()[0]
    with forked(LargeArrays(50), shuffle=True, seed=1, persistent_workers=persistent) as loader:
        sizes = []
        for stop in [1, 5, 0, 2, 1, 1, 3, 1, 1, 1]:
            assert fingerprint(list(islice(loader, stop))) == fingerprint(list(islice(alone, stop)))
            sizes.append((len(living_descendants()), len(open_descriptors())))
        assert max(processes for processes, _ in sizes) <= 3
        # A slot has two, and so has a worker.
        assert max(descriptors for _, descriptors in sizes) <= descriptors_before + 35
        assert fingerprint(list(loader)) == fingerprint(list(alone))


def test_loops_left_early_leave_no_slots_to_the_garbage_collector() -> None:
    gc.collect()
    gc.disable()
    try:
        before = open_descriptors()
        with forked(LargeArrays(50)) as loader:
            for _ in range(5):
                assert len(list(islice(loader, 7))) == 7
        del loader
        assert len(open_descriptors()) == len(before)
    finally:
        gc.enable()


def test_what_was_left_early_is_worked_on_no_more(tmp_path: Path) -> None:
    recorded = Recorded(1000, tmp_path)
    with forked(recorded, persistent_workers=True) as loader:
        next(iter(loader))
        await_idle(loader, batches=5)
        assert recorded.loads() == [0, 1, 2, 3, 4]


# ---- deaths --------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["forkserver", "fork"])
def test_what_a_dead_worker_had_sent_is_used(method: str, tmp_path: Path) -> None:
    recorded = Recorded(20, tmp_path)
    arguments: dict[str, Any] = {"multiprocessing_context": method, "prefetch_factor": 7}
    with DataLoader(recorded, num_workers=1, **arguments) as loader:
        iterator = iter(loader)
        await_idle(loader, batches=7)
        kill_and_await_report(loader.workers()[0].pid)
        assert [int(batch[0]) for batch in iterator] == list(range(20))
        assert [report.batch for report in loader.reports if report.is_death] == [None]
    assert recorded.loads() == list(range(20))  # each once


def test_without_restarts_nothing_is_sent_to_the_living(tmp_path: Path) -> None:
    recorded = Recorded(20, tmp_path)
    with forked(recorded, persistent_workers=True, restart=None) as loader:
        assert len(list(loader)) == 20
        victim, other = loader.workers()
        kill_and_await_death(victim.pid)
        with pytest.raises(WorkerDiedError) as raised:
            iter(loader)
        assert [report.pid for report in raised.value.reports] == [victim.pid]
        assert is_gone(other.pid)
    assert recorded.loads() == list(range(20))


@pytest.mark.parametrize("num_workers", [1, 2])
def test_without_restarts_iter_raises_a_death_that_the_epoch_survived(num_workers: int) -> None:
    """All batches had been sent when the worker died: the epoch is whole, but the next cannot be."""
    with forked(range(6), num_workers, persistent_workers=True, restart=None, prefetch_factor=6) as loader:
        iterator = iter(loader)
        next(iterator)
        await_idle(loader, batches=6)
        pid = loader.workers()[0].pid
        kill_and_await_report(pid)
        assert len(list(iterator)) == 5
        with pytest.raises(WorkerDiedError, match=f"pid {pid}"):
            iter(loader)
        assert len(list(loader)) == 6


def test_a_dead_workers_exit_code_0_is_a_death_in_an_epoch_as_any(tmp_path: Path) -> None:
    dataset = Faulty(40, at=21, fault=exit_with_code_0, once=tmp_path / "exited")
    with forked(dataset, 3, batch_size=4) as loader:
        assert [n for batch in loader for n in batch] == list(range(40))
        (report,) = [report for report in loader.reports if report.is_death]
    assert (report.reason, report.exit_code, report.batch, report.sample) == (ExitReason.EXITED, 0, 5, 21)


@pytest.mark.slow
def test_after_a_start_up_error_a_mended_dataset_works() -> None:
    def fail() -> None:
        raise LookupError("no such file")

    dataset = NotUnpickled(fail)
    with DataLoader(dataset, num_workers=2) as loader:
        for _ in range(2):
            with pytest.raises(LookupError, match="no such file"):
                iter(loader)
            assert nothing_lives()
        dataset.fault = int
        assert len(list(loader)) == 8


# ---- forks and threads ---------------------------------------------------------------------------


def first_bytes(batch: Any) -> list[int]:
    return [int(number) for number in batch[0, :3]]


def test_a_forked_child_can_read_its_batch_and_disturbs_nobody() -> None:
    with forked(LargeArrays(60)) as loader:
        iterator = iter(loader)
        got = []
        for number, batch in enumerate(iterator):
            got.append(int(batch[0, 0]))
            if number % 20 == 5:
                assert in_child(lambda: first_bytes(batch)) == [number] * 3  # noqa: B023
    assert got == list(range(60))


def test_what_a_child_holds_does_not_change() -> None:
    """The parent goes on through all its slots meanwhile."""
    read_fd, write_fd = os.pipe()
    with forked(LargeArrays(100)) as loader:
        iterator = iter(loader)
        held = [next(iterator)]

        def read_later() -> set[int]:
            os.close(write_fd)
            os.read(read_fd, 1)  # until the parent is through
            return set(held[0].reshape(-1).tolist())

        answers: list[Any] = []
        waiting = threading.Thread(target=lambda: answers.append(in_child(read_later)))
        waiting.start()
        assert wait_until(lambda: len(living_descendants()) == 4, GONE_WITHIN_S)
        held.clear()
        assert [int(batch[0, 0]) for batch in iterator] == list(range(1, 100))
        os.close(write_fd)
        waiting.join()
        os.close(read_fd)
    assert answers == [{0}]


def test_in_a_forked_child_the_loader_raises() -> None:
    with forked(range(40), persistent_workers=True) as loader:
        iterator = iter(loader)
        next(iterator)

        def complaints() -> list[str]:
            return [complaint(lambda: next(iterator)), complaint(lambda: iter(loader))] * 2

        for text in in_child(complaints):
            assert f"belongs to process {os.getpid()}, from which this process was forked" in text
        assert len(list(iterator)) == 39
        assert len(list(loader)) == 40
        assert loader.workers()[0].restarts == 0


def complaint(action: Callable[[], object]) -> str:
    try:
        action()
    except RuntimeError as error:
        return str(error)
    return "nothing was raised"


def test_a_forked_child_can_make_a_loader_of_its_own() -> None:
    with forked(range(10)) as loader:
        iterator = iter(loader)

        def load() -> list[int]:
            with forked(range(5)) as own:
                return [int(batch[0]) for batch in own]

        assert in_child(load) == [0, 1, 2, 3, 4]
        assert len(list(iterator)) == 10


@pytest.mark.parametrize("method", START_METHODS)
def test_an_iterator_goes_on_when_the_thread_that_made_it_has_ended(method: str) -> None:
    made: list[Any] = []
    with DataLoader(range(100), num_workers=2, multiprocessing_context=method) as loader:
        thread = threading.Thread(target=lambda: made.append(iter(loader)))
        thread.start()
        thread.join()
        assert [int(batch[0]) for batch in made[0]] == list(range(100))
        assert not any(report.is_death for report in loader.reports)
