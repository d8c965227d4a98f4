"""Batches by cost: within the budget, nothing lost, by the loader's seed, and sorted buckets."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataloader import BatchByCost, BatchSampler, BucketSampler, DataLoader, RandomSampler, SequentialSampler
from tests.test_samplers import Surviving, drawn_despite
from tests.toy_pool import Interrupter, interrupt

COSTS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]


def price(costs: list[int], padded: bool) -> int:
    return len(costs) * max(costs) if padded else sum(costs)


@given(
    costs=st.lists(st.integers(0, 12), max_size=40),
    budget=st.integers(1, 30),
    padded=st.booleans(),
    max_size=st.none() | st.integers(1, 5),
)
def test_batches_are_the_longest_that_the_budget_allows(
    costs: list[int], budget: int, padded: bool, max_size: int | None
) -> None:
    sampler = BatchByCost(
        range(len(costs)), costs, budget, padded=padded, max_size=max_size, oversized="alone"
    )
    batches = list(sampler)
    assert list(itertools.chain(*batches)) == list(range(len(costs)))
    assert sampler.num_items == len(costs)
    for batch, following in itertools.zip_longest(batches, batches[1:]):
        assert len(batch) == 1 or price([costs[i] for i in batch], padded) <= budget
        assert max_size is None or len(batch) <= max_size
        is_full = len(batch) == max_size or price([costs[i] for i in batch], padded) >= budget
        if following and not is_full:
            assert price([costs[i] for i in [*batch, following[0]]], padded) > budget


@pytest.mark.parametrize(
    "cost",
    [
        COSTS,
        tuple(COSTS),
        np.array(COSTS),
        np.array(COSTS, np.float32),
        dict(enumerate(COSTS)),
        COSTS.__getitem__,
    ],
    ids=["list", "tuple", "array", "floats", "mapping", "function"],
)
def test_a_cost_is_a_function_or_a_sequence(cost: Any) -> None:
    assert list(BatchByCost(range(12), cost, 9)) == [[0, 1, 2, 3], [4], [5], [6, 7], [8, 9], [10], [11]]


@pytest.mark.parametrize(
    ("arguments", "batches"),
    [
        ({"budget": 10}, [[0, 1, 2, 3], [4]]),
        ({"budget": 10, "drop_last": True}, [[0, 1, 2, 3]]),
        ({"budget": 7, "drop_last": True}, [[0, 1], [2, 3]]),
        ({"budget": 5, "drop_last": True}, [[0, 1], [2, 3], [4]]),
        ({"budget": 99, "drop_last": True}, []),
        ({"budget": 99, "max_size": 3, "drop_last": True}, [[0, 1, 2]]),
    ],
    ids=str,
)
def test_the_last_batch_is_dropped_unless_it_is_full(arguments: Any, batches: list[list[int]]) -> None:
    assert list(BatchByCost(range(5), COSTS, **arguments)) == batches


def test_an_oversized_sample_is_told_and_the_next_batch_follows() -> None:
    batches = iter(BatchByCost(range(12), COSTS, 8))
    before = list(itertools.islice(batches, 2))
    assert before == [[0, 1, 2], [3, 4]]
    with pytest.raises(ValueError, match=r"^sample 5 alone costs 9, more than budget=8: give a larger"):
        next(batches)
    assert list(batches) == [[6, 7], [8, 9], [10], [11]]


def test_an_oversized_sample_comes_alone_or_not_at_all() -> None:
    expected = [[0, 1, 2], [3, 4], [5], [6, 7], [8, 9], [10], [11]]
    assert list(BatchByCost(range(12), COSTS, 8, oversized="alone")) == expected
    assert list(BatchByCost(range(12), COSTS, 8, oversized="skip")) == [b for b in expected if b != [5]]
    assert list(BatchByCost([5, 5], COSTS, 8, oversized="skip")) == []


@pytest.mark.parametrize(
    ("cost", "kind", "message"),
    [(-1, ValueError, "costs -1"), (float("nan"), ValueError, "costs nan"), (None, TypeError, "costs None")],
)
def test_what_is_no_cost_is_told_and_the_rest_follows(cost: Any, kind: Any, message: str) -> None:
    batches = iter(BatchByCost(range(4), [1, 1, cost, 1], 2))
    assert next(batches) == [0, 1]
    with pytest.raises(kind, match=rf"^sample 2 {message}: let cost give a number of at least 0"):
        next(batches)
    assert list(batches) == [[3]]


def test_an_endless_sampler_is_drawn_as_needed() -> None:
    counter = itertools.count()
    batches = iter(BatchByCost(counter, lambda index: 1, 4))
    assert next(batches) == [0, 1, 2, 3]
    assert next(counter) <= 5


@pytest.mark.parametrize("num_workers", [0, 1])
def test_in_a_loader_its_seed_decides(num_workers: int) -> None:
    def epochs(seed: int) -> list[list[list[int]]]:
        sampler = BatchByCost(BucketSampler(RandomSampler(COSTS), COSTS, 6), COSTS, 12)
        arguments: Any = {"multiprocessing_context": "fork"} if num_workers else {}
        loader = DataLoader(range(12), batch_sampler=sampler, num_workers=num_workers, seed=seed, **arguments)
        with loader:
            assert loader.num_items == 12
            with pytest.raises(TypeError, match="has no len"):
                len(loader)
            return [[batch.tolist() for batch in loader] for _ in range(2)]

    first = epochs(1)
    assert first == epochs(1) != epochs(2)
    assert first[0] != first[1]
    assert all(sum(COSTS[i] for i in batch) <= 12 for batch in itertools.chain(*first))


def test_an_epoch_is_taken_up_in_its_middle() -> None:
    def loader() -> DataLoader:
        inner = BucketSampler(RandomSampler(COSTS), COSTS, 6)
        return DataLoader(range(12), batch_sampler=BatchByCost(inner, COSTS, 12), seed=3)

    first, other = loader(), loader()
    iterator = iter(first)
    next(iterator), next(iterator)
    other.load_state_dict(first.state_dict())
    rest = [batch.tolist() for batch in iterator]
    assert rest == [batch.tolist() for batch in other] != []
    with pytest.raises(ValueError, match=r"budget"):
        DataLoader(range(12), batch_sampler=BatchByCost(range(12), COSTS, 9)).load_state_dict(
            DataLoader(range(12), batch_sampler=BatchByCost(range(12), COSTS, 10)).state_dict()
        )


def test_num_items_is_told_only_where_it_is_known() -> None:
    assert BatchByCost(range(12), COSTS, 9).num_items == 12
    each: list[Any] = [{"drop_last": True}, {"oversized": "skip"}]
    for arguments in each:
        with pytest.raises(TypeError, match=r"depends on the order"):
            _ = BatchByCost(range(12), COSTS, 9, **arguments).num_items
    loader = DataLoader(range(12), batch_sampler=BatchByCost(range(12), COSTS, 9, drop_last=True))
    iterator: Any = iter(loader)
    assert iterator.progress.total is None


# ---- buckets -------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 9), max_size=40), st.integers(1, 10))
def test_buckets_go_up_and_down(costs: list[int], size: int) -> None:
    sampler = BucketSampler(range(len(costs)), costs, size)
    order = list(sampler)
    assert len(sampler) == len(order)
    for number, start in enumerate(range(0, len(costs), size)):
        bucket = order[start : start + size]
        assert sorted(bucket) == list(range(start, min(start + size, len(costs))))
        ordered = [costs[index] for index in bucket]
        assert ordered == sorted(ordered, reverse=number % 2 == 1)


def test_buckets_need_less_padding() -> None:
    lengths = np.random.default_rng(0).integers(1, 100, 1000).tolist()

    def padded(order: Any) -> int:
        return sum(len(batch) * max(lengths[i] for i in batch) for batch in BatchSampler(order, 10, False))

    plain = RandomSampler(lengths, seed=0)
    assert padded(BucketSampler(RandomSampler(lengths, seed=0), lengths, 200)) < 0.65 * padded(plain)


# ---- arguments and interrupts --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "arguments", "kind", "message"),
    [
        (BatchByCost, {"cost": 3, "budget": 1}, TypeError, "cost=3: give a function of an index"),
        (BatchByCost, {"cost": [], "budget": "1"}, TypeError, "budget='1': give a number above 0"),
        (BatchByCost, {"cost": [], "budget": 0}, ValueError, "budget=0: give a number"),
        (BatchByCost, {"cost": [], "budget": float("nan")}, ValueError, "budget=nan: give a number above 0"),
        (BatchByCost, {"cost": [], "budget": 1, "max_size": 0}, ValueError, "max_size=0: give at least 1"),
        (
            BatchByCost,
            {"cost": [], "budget": 1, "padded": "no"},
            TypeError,
            "padded='no': give True or False",
        ),
        (
            BatchByCost,
            {"cost": [], "budget": 1, "oversized": "drop"},
            ValueError,
            "oversized='drop': ",
        ),
        (BucketSampler, {"cost": [], "bucket_size": 0}, ValueError, "bucket_size=0: give at least 1"),
        (BucketSampler, {"cost": 1, "bucket_size": 2}, TypeError, "cost=1: give a function of an index"),
    ],
    ids=str,
)
def test_a_wrong_argument_is_named(make: Any, arguments: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=f"^{message}"):
        make([1], **arguments)


@pytest.fixture
def handler() -> Iterator[None]:
    previous = signal.signal(signal.SIGUSR1, interrupt)
    yield
    signal.signal(signal.SIGUSR1, previous)


@pytest.mark.usefixtures("handler")
@pytest.mark.parametrize(
    "make",
    [
        lambda indices: BatchByCost(indices, lambda index: COSTS[index], 8, oversized="skip"),
        lambda indices: BucketSampler(indices, lambda index: COSTS[index], 3),
    ],
    ids=["batches", "buckets"],
)
def test_an_interrupt_at_any_place_loses_no_index(make: Any) -> None:
    expected = list(make(range(7)))
    for at in range(1, 3000):
        interrupter = Interrupter(at)
        assert drawn_despite(iter(make(Surviving(7))), interrupter) == expected
        if not interrupter.place:
            assert at > 10
            return
    raise AssertionError("it never ran without an interrupt")


def test_a_sampler_of_ours_may_be_anywhere_inside() -> None:
    nested = BatchSampler(BucketSampler(SequentialSampler(COSTS), COSTS, 4), 4, drop_last=False)
    assert list(nested) == [[1, 3, 0, 2], [5, 7, 4, 6], [9, 8, 10, 11]]
