"""A loader and threads: iterating in a second one, in several at once, and closing from another."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataloader import DataLoader, Dataset
from supervisor.page import State
from tests.datasets import Augmented, Recorded
from tests.equality import fingerprint
from tests.processes import belongings, living_descendants, wait_until

pytestmark = pytest.mark.slow

CLOSED = "the DataLoader was closed in the middle of this epoch"
PROMPTLY_S = 5.0
FOREVER_S = 300.0


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Any:
    before = belongings()
    yield
    assert belongings() == before


@dataclass
class Endless(Dataset[int]):
    """Its samples come at once, but sample ``at`` never does."""

    at: int

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> int:
        if index == self.at:
            time.sleep(FOREVER_S)
        return index


def forked(dataset: Any, **arguments: Any) -> DataLoader:
    return DataLoader(dataset, num_workers=2, multiprocessing_context="fork", **arguments)


def at_once(executor: ThreadPoolExecutor, actions: list[Callable[[], Any]]) -> list[Any]:
    """Run all actions side by side and return what they return."""
    barrier = threading.Barrier(len(actions))

    def act(action: Callable[[], Any]) -> Any:
        barrier.wait()
        return action()

    return [future.result(60) for future in [executor.submit(act, action) for action in actions]]


@pytest.fixture
def executor() -> Any:
    with ThreadPoolExecutor(8) as executor:
        yield executor


# ---- iterating -----------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["forkserver", "fork", "spawn"])
def test_a_second_thread_can_do_it_all(method: str, executor: ThreadPoolExecutor) -> None:
    loader = DataLoader(Augmented(), 4, seed=1, num_workers=2, multiprocessing_context=method)
    expected = fingerprint(list(DataLoader(Augmented(), 4, seed=1)))
    assert fingerprint(executor.submit(lambda: list(loader)).result()) == expected
    executor.submit(loader.close).result()


def test_every_batch_may_be_asked_for_by_another_thread() -> None:
    with forked(range(20)) as loader:
        iterator = iter(loader)
        got = []
        for _ in range(20):
            with ThreadPoolExecutor(1) as executor:
                got.append(int(executor.submit(next, iterator).result()[0]))
    assert got == list(range(20))


@pytest.mark.parametrize("persistent", [False, True], ids=["anew", "persistent"])
def test_several_threads_iterate_over_one_loader_at_once(
    persistent: bool, executor: ThreadPoolExecutor
) -> None:
    """Each gets an epoch of its own, and no two the same."""
    alone = DataLoader(Augmented(), 10, shuffle=True, seed=1)
    expected = sorted(fingerprint(list(alone)) for _ in range(4))
    with forked(Augmented(), batch_size=10, shuffle=True, seed=1, persistent_workers=persistent) as loader:
        epochs = at_once(executor, [lambda: list(loader)] * 4)
        assert sorted(fingerprint(epoch) for epoch in epochs) == expected


def test_several_threads_iterate_in_process(executor: ThreadPoolExecutor) -> None:
    loader = DataLoader(np.arange(30), shuffle=True, seed=1)
    alone = DataLoader(np.arange(30), shuffle=True, seed=1)
    epochs = at_once(executor, [lambda: [int(batch[0]) for batch in loader]] * 4)
    assert sorted(epochs) == sorted([int(batch[0]) for batch in alone] for _ in range(4))


def test_asyncio_to_thread() -> None:
    async def main() -> list[int]:
        with forked(range(20)) as loader:
            iterator = await asyncio.to_thread(iter, loader)
            got = []
            while (batch := await asyncio.to_thread(next, iterator, None)) is not None:
                got.append(int(batch[0]))
            return got

    assert asyncio.run(main()) == list(range(20))


# ---- closing -------------------------------------------------------------------------------------


def await_work(loader: DataLoader) -> None:
    def is_at_work() -> bool:
        return State.SAMPLE in {worker.state for worker in loader.workers()}

    assert wait_until(is_at_work, PROMPTLY_S)


def failure_of(future: Future[Any]) -> str:
    with pytest.raises(RuntimeError) as raised:
        future.result(PROMPTLY_S)
    return str(raised.value)


@pytest.mark.parametrize("persistent", [False, True], ids=["anew", "persistent"])
@pytest.mark.parametrize("method", ["forkserver", "fork", "spawn"])
def test_close_makes_a_next_that_waits_raise(
    method: str, persistent: bool, executor: ThreadPoolExecutor
) -> None:
    loader = DataLoader(
        Endless(at=3), num_workers=2, multiprocessing_context=method, persistent_workers=persistent
    )
    iterator = iter(loader)
    assert [int(next(iterator)[0]) for _ in range(3)] == [0, 1, 2]
    waiting = executor.submit(next, iterator)
    await_work(loader)
    loader.close()
    assert CLOSED in failure_of(waiting)
    assert living_descendants() == []
    with pytest.raises(RuntimeError, match=CLOSED):
        next(iterator)


def test_close_ends_the_waiting_for_all_iterators(executor: ThreadPoolExecutor) -> None:
    loader = forked(Endless(at=0))
    waiting = [executor.submit(next, iter(loader)) for _ in range(3)]
    await_work(loader)
    loader.close()
    for future in waiting:
        assert CLOSED in failure_of(future)


def test_two_threads_may_close_at_once(executor: ThreadPoolExecutor) -> None:
    loader = forked(Endless(at=0))
    waiting = executor.submit(next, iter(loader))
    await_work(loader)
    at_once(executor, [loader.close] * 4)
    assert CLOSED in failure_of(waiting)
    assert loader.workers() == []


def test_a_loader_closed_by_another_thread_can_be_iterated_again(
    executor: ThreadPoolExecutor, tmp_path: Path
) -> None:
    loader = forked(Recorded(2000, tmp_path), persistent_workers=True)

    def consume() -> list[int]:
        """Return what came until the loader was closed."""
        got: list[int] = []
        with contextlib.suppress(RuntimeError):
            for batch in loader:
                got.append(int(batch[0]))
                started.set()
        return got

    for _ in range(10):
        started = threading.Event()
        consuming = executor.submit(consume)
        assert started.wait(PROMPTLY_S)
        loader.close()
        got = consuming.result(PROMPTLY_S)
        assert got == list(range(len(got)))
        assert len(got) < 2000
    assert len(list(loader)) == 2000
    loader.close()


def test_an_iterator_may_close_its_loader_while_it_draws_a_batch() -> None:
    """The same thread, in the middle of next(): a lock that is not reentrant would wait for itself."""

    def indices() -> Any:
        yield from range(10)
        loader.close()
        yield from range(90)

    loader = forked(range(100), sampler=indices())
    iterator = iter(loader)
    with pytest.raises(RuntimeError, match=CLOSED):
        list(iterator)
    assert living_descendants() == []
