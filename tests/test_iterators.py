"""Iterators: in process and with toys for workers; what an exception leaves behind."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from dataloader import default_collate
from dataloader.in_process_iterator import InProcessIterator
from dataloader.pace import Pace
from dataloader.recipe import Recipe
from dataloader.review import Review
from dataloader.source import Source
from dataloader.worker_iterator import WorkerIterator
from supervisor.payload import PayloadError
from tests.datasets import Augmented, Unloadable
from tests.equality import fingerprint
from tests.toy_pool import Interrupt, ToyPool, interrupt, unwatched

BATCHES = [[0, 1], [2, 3], [4, 5]]


class Samples:
    """A dataset whose sample 2 calls ``action``."""

    def __init__(self, action: Callable[[], Any]) -> None:
        self.action = action

    def __getitem__(self, index: int) -> Any:
        return self.action() if index == 2 else index


def in_process(
    dataset: Any, collate: Any = list, batches: Any = BATCHES, epoch: int = 0
) -> InProcessIterator:
    return InProcessIterator(
        Recipe(dataset, collate), Source(batches), seed=5, watch=unwatched(), review=Review("raise", epoch)
    )


def with_toys(dataset: Any, collate: Any = list, batches: Any = BATCHES, epoch: int = 0) -> WorkerIterator:
    pool = ToyPool(Recipe(dataset, collate), num_workers=2, prefetch=2)
    return WorkerIterator(
        pool,
        Source(batches),
        seed=5,
        pace=Pace(2, 2),
        in_order=True,
        keep_workers=True,
        watch=unwatched(),
        review=Review("raise", epoch),
    )


BOTH = pytest.mark.parametrize("make", [in_process, with_toys])


def fail() -> Any:
    raise KeyError("colour")


@pytest.fixture
def handler() -> Iterator[None]:
    previous = signal.signal(signal.SIGUSR1, interrupt)
    yield
    signal.signal(signal.SIGUSR1, previous)


# ---- both kinds ----------------------------------------------------------------------------------


@BOTH
def test_every_batch_comes_once_in_order(make: Any) -> None:
    iterator = make(range(10))
    assert iter(iterator) is iterator
    assert list(iterator) == BATCHES
    assert list(iterator) == []


@BOTH
def test_an_empty_epoch_is_over_at_once(make: Any) -> None:
    assert list(make([], batches=[])) == []


def test_both_give_the_same_bytes() -> None:
    batches = [list(range(start, start + 20)) for start in range(0, 60, 20)]

    def run(make: Any, epoch: int) -> Any:
        return fingerprint(list(make(Augmented(), default_collate, batches, epoch)))

    assert run(in_process, 3) == run(with_toys, 3)
    assert run(in_process, 3) != run(in_process, 4)


@BOTH
@pytest.mark.parametrize("place", ["sample", "collate"])
def test_after_an_exception_comes_the_next_batch(make: Any, place: str) -> None:
    def collate(samples: list[int]) -> list[int]:
        return fail() if place == "collate" and 2 in samples else samples

    iterator = make(Samples(fail if place == "sample" else lambda: 2), collate)
    assert next(iterator) == [0, 1]
    with pytest.raises(KeyError) as raised:
        next(iterator)
    assert raised.value.args == ("colour",)
    assert list(iterator) == [[4, 5]]


@BOTH
def test_a_stop_iteration_does_not_end_the_epoch(make: Any) -> None:
    iterator = make(Samples(lambda: next(iter(()))))
    assert next(iterator) == [0, 1]
    with pytest.raises(RuntimeError, match="StopIteration"):
        next(iterator)
    assert list(iterator) == [[4, 5]]


# ---- in process ----------------------------------------------------------------------------------


def test_the_users_random_state_is_left_alone() -> None:
    random.seed(1)
    np.random.seed(1)
    expected = random.random(), np.random.random()
    random.seed(1)
    np.random.seed(1)
    list(in_process(Augmented(), default_collate))
    with pytest.raises(KeyError):
        list(in_process(Samples(fail)))
    assert (random.random(), np.random.random()) == expected


@pytest.mark.usefixtures("handler")
def test_an_interrupted_batch_is_made_again() -> None:
    strikes = [signal.SIGUSR1, signal.SIGUSR1]

    def strike() -> int:
        while strikes:
            signal.raise_signal(strikes.pop())
        return 2

    iterator = in_process(Samples(strike))
    assert next(iterator) == [0, 1]
    for _ in range(2):
        with pytest.raises(Interrupt):
            next(iterator)
    assert list(iterator) == [[2, 3], [4, 5]]


# ---- with workers --------------------------------------------------------------------------------


def test_a_batch_that_cannot_be_opened_raises_for_itself_alone() -> None:
    iterator = with_toys(Samples(Unloadable))
    assert next(iterator) == [0, 1]
    with pytest.raises(PayloadError, match=r"batch 1 cannot be unpickled .* builtins\.int: .*not a"):
        next(iterator)
    assert list(iterator) == [[4, 5]]


def test_a_closed_iterator_delivers_nothing_more() -> None:
    iterator = with_toys(range(10))
    next(iterator)
    assert not iterator.is_over
    for _ in range(2):
        iterator.close()
        assert iterator.is_over
        with pytest.raises(RuntimeError, match="closed in the middle of this epoch"):
            next(iterator)


def test_an_iterator_that_is_closed_after_its_end_is_just_over() -> None:
    iterator = with_toys(range(10))
    assert list(iterator) == BATCHES
    iterator.close()
    assert list(iterator) == []


def test_the_source_is_drawn_no_further_than_the_window() -> None:
    numbers = iter(range(100))
    iterator = with_toys(range(100), batches=([number] for number in numbers))
    for number in range(20):
        assert next(iterator) == [number]
    assert next(numbers) == 20 + 4  # the window, and the one that the user has
