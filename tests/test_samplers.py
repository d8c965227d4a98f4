"""Samplers: every index in its order, and iterators that no signal handler can break."""

import random
import signal
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataloader.samplers import (
    BatchSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from tests.toy_pool import Interrupt, Interrupter, interrupt

LARGEST_SEED = 2**64 - 1


def test_sequential_indices_follow_the_length_of_the_data() -> None:
    data = ["a", "b"]
    sampler = SequentialSampler(data)
    assert (list(sampler), len(sampler)) == ([0, 1], 2)
    data.append("c")
    assert (list(sampler), len(sampler)) == ([0, 1, 2], 3)


@given(st.integers(0, 300), st.integers(0, LARGEST_SEED), st.integers(0, 1000))
def test_random_indices_are_each_there_once(length: int, seed: int, epoch: int) -> None:
    sampler = RandomSampler(range(length), seed=seed)
    sampler.set_epoch(epoch)
    indices = list(sampler)
    assert sorted(indices) == list(range(length))
    assert len(sampler) == length
    assert all(type(index) is int for index in indices)


@pytest.mark.parametrize(
    ("seed", "epoch", "order"),
    [
        (0, 0, [3, 6, 4, 0, 7, 5, 2, 1]),
        (0, 1, [1, 4, 6, 5, 7, 3, 2, 0]),
        (1, 0, [1, 7, 0, 4, 6, 3, 5, 2]),
        (LARGEST_SEED, 3, [3, 6, 0, 1, 2, 4, 5, 7]),
    ],
)
def test_the_random_order_is_final(seed: int, epoch: int, order: list[int]) -> None:
    sampler = RandomSampler(range(8), seed=seed)
    sampler.set_epoch(epoch)
    assert list(sampler) == order


def test_the_random_order_depends_on_seed_and_epoch() -> None:
    orders = set()
    for seed in (0, 1, LARGEST_SEED):
        sampler = RandomSampler(range(100), seed=seed)
        for epoch in (0, 1):
            sampler.set_epoch(epoch)
            order = list(sampler)
            assert list(RandomSampler(range(100), seed=seed).iterate(0, epoch)) == order
            orders.add(tuple(order))
    assert len(orders) == 6


@given(st.integers(0, 60), st.integers(1, 20), st.booleans())
def test_batches_are_what_slices_give(samples: int, batch_size: int, drop_last: bool) -> None:
    indices = list(range(samples))
    expected = [indices[start : start + batch_size] for start in range(0, samples, batch_size)]
    if drop_last:
        expected = [batch for batch in expected if len(batch) == batch_size]
    sampler = BatchSampler(indices, batch_size, drop_last)
    assert list(sampler) == expected
    assert len(sampler) == len(expected)
    assert all(type(batch) is list for batch in sampler)


# ---- random samplers -----------------------------------------------------------------------------

RANDOM_SAMPLERS = [
    lambda **seed: RandomSampler(range(50), **seed),
    lambda **seed: RandomSampler(range(50), replacement=True, num_samples=80, **seed),
    lambda **seed: SubsetRandomSampler(range(100, 150), **seed),
    lambda **seed: WeightedRandomSampler(range(50), 70, **seed),
    lambda **seed: WeightedRandomSampler(range(50), 40, replacement=False, **seed),
]
EACH_RANDOM = pytest.mark.parametrize(
    "make", RANDOM_SAMPLERS, ids=["whole", "replacement", "subset", "weighted", "weighted once"]
)


@EACH_RANDOM
def test_an_epoch_is_as_long_as_it_says_and_of_plain_ints(make: Any) -> None:
    order = list(make(seed=0))
    assert len(order) == len(make(seed=0))
    assert all(type(index) is int for index in order)


@EACH_RANDOM
def test_a_samplers_own_seed_goes_before_the_loaders(make: Any) -> None:
    assert (
        list(make(seed=5).iterate(1, 2))
        == list(make(seed=5).iterate(3, 2))
        != list(make(seed=6).iterate(1, 2))
    )
    assert list(make().iterate(1, 2)) == list(make().iterate(1, 2)) != list(make().iterate(3, 2))


@EACH_RANDOM
def test_iterating_a_sampler_counts_its_own_epochs(make: Any) -> None:
    sampler = make(seed=5)
    first, second = list(sampler), list(sampler)
    assert first != second
    sampler.set_epoch(0)
    assert list(sampler) == first
    assert list(make()) != list(make())  # each draws a seed


@EACH_RANDOM
@pytest.mark.parametrize("generator", [np.random.default_rng, random.Random])
def test_a_generator_decides_the_order(make: Any, generator: Any) -> None:
    sampler, again = make(generator=generator(7)), make(generator=generator(7))
    epochs = [list(sampler.iterate(0, 0)) for _ in range(3)]
    assert epochs == [list(again.iterate(1, 1)) for _ in range(3)]
    assert epochs[0] != epochs[1]


def test_more_samples_than_there_are_come_as_whole_orders() -> None:
    order = list(RandomSampler(range(10), num_samples=25, seed=0))
    assert sorted(order[:10]) == sorted(order[10:20]) == list(range(10))
    assert len(set(order[20:])) == 5


def test_with_replacement_indices_come_again() -> None:
    counts = Counter(RandomSampler(range(4), replacement=True, num_samples=4000, seed=0))
    assert sorted(counts) == [0, 1, 2, 3]
    assert all(900 < count < 1100 for count in counts.values())


def test_weights_are_likelihoods() -> None:
    counts = Counter(WeightedRandomSampler([0, 3, 1], 4000, seed=0))
    assert sorted(counts) == [1, 2]
    assert 2.6 < counts[1] / counts[2] < 3.4


def test_weights_without_replacement_come_once() -> None:
    assert sorted(WeightedRandomSampler([1, 0, 1, 1], 3, replacement=False)) == [0, 2, 3]


def test_an_empty_source_is_an_empty_epoch() -> None:
    assert list(RandomSampler([])) == list(RandomSampler([], replacement=True)) == []


@pytest.mark.parametrize(
    ("sampler", "arguments", "kind", "message"),
    [
        (RandomSampler, {"num_samples": 0}, ValueError, "num_samples=0: give at least 1"),
        (RandomSampler, {"num_samples": 1.5}, ValueError, "num_samples=1.5: give a whole number"),
        (RandomSampler, {"replacement": "no"}, TypeError, "replacement='no': give True or False"),
        (RandomSampler, {"generator": 3}, TypeError, "generator=3: give a numpy.random.Generator"),
        (RandomSampler, {"generator": random.Random(), "seed": 1}, ValueError, "seed=1 and generator="),
        (RandomSampler, {"seed": -1}, ValueError, "seed=-1: give a whole number"),
        (SubsetRandomSampler, {"seed": "1"}, TypeError, "seed='1': give a whole number"),
        (WeightedRandomSampler, {"num_samples": 0}, ValueError, "num_samples=0: give at least 1"),
        (
            WeightedRandomSampler,
            {"num_samples": 2, "replacement": False},
            ValueError,
            "num_samples=2: only 1 weights are above 0",
        ),
        (BatchSampler, {"batch_size": 0, "drop_last": False}, ValueError, "batch_size=0: give at least 1"),
        (BatchSampler, {"batch_size": True, "drop_last": False}, ValueError, "batch_size=True: give a whole"),
        (
            BatchSampler,
            {"batch_size": 1, "drop_last": None},
            ValueError,
            "drop_last=None: give True or False",
        ),
    ],
)
def test_a_wrong_argument_is_named(
    sampler: Any, arguments: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=f"^{message}"):
        sampler([1], **arguments)


@pytest.mark.parametrize("weights", [[], [[1.0]], [1, -1], [0, 0], [float("nan")], [float("inf")]], ids=str)
def test_wrong_weights_are_named(weights: Any) -> None:
    with pytest.raises(ValueError, match=r"^weights"):
        WeightedRandomSampler(weights, 1)


def test_nothing_can_be_drawn_from_an_empty_source() -> None:
    with pytest.raises(ValueError, match=r"^num_samples=2: data_source is empty"):
        iter(RandomSampler([], num_samples=2))


def test_a_sampler_without_iter_says_so() -> None:
    class Forgetful(Sampler):
        pass

    with pytest.raises(NotImplementedError, match="Forgetful must define __iter__"):
        iter(Forgetful())


# ---- interrupts ----------------------------------------------------------------------------------


def test_each_iterator_of_a_batch_sampler_is_its_own() -> None:
    sampler = BatchSampler(range(4), batch_size=2, drop_last=False)
    first, second = iter(sampler), iter(sampler)
    assert (next(first), next(second), next(first)) == ([0, 1], [0, 1], [2, 3])


class Surviving:
    """A user's sampler that can go on after an exception."""

    def __init__(self, count: int) -> None:
        self._numbers = iter(range(count))

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        return next(self._numbers)


@pytest.fixture
def handler() -> Iterator[None]:
    previous = signal.signal(signal.SIGUSR1, interrupt)
    yield
    signal.signal(signal.SIGUSR1, previous)


@pytest.mark.usefixtures("handler")
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("make", [lambda: range(5), lambda: Surviving(5)], ids=["range", "class"])
def test_an_interrupt_at_any_place_loses_no_index(make: Any, drop_last: bool) -> None:
    expected = list(BatchSampler(make(), 2, drop_last))
    for at in range(1, 200):
        interrupter = Interrupter(at)
        assert drawn_despite(iter(BatchSampler(make(), 2, drop_last)), interrupter) == expected
        if not interrupter.place:
            assert at > 5
            return
    raise AssertionError("it never ran without an interrupt")


def drawn_despite(batches: Iterable[Any], interrupter: Interrupter) -> list[Any]:
    drawn: deque[Any] = deque()
    while True:
        before = len(drawn)
        try:
            with interrupter.watching():
                drawn.extend(islice(batches, 1))
        except Interrupt:
            continue
        if len(drawn) == before:
            return list(drawn)
