"""Samplers: every index in its order, and iterators that no signal handler can break."""

import sys
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataloader.samplers import BatchSampler, RandomSampler, SequentialSampler

LARGEST_SEED = 2**64 - 1


def test_sequential_indices_follow_the_length_of_the_data() -> None:
    data = ["a", "b"]
    sampler = SequentialSampler(data)
    assert (list(sampler), len(sampler)) == ([0, 1], 2)
    data.append("c")
    assert (list(sampler), len(sampler)) == ([0, 1, 2], 3)


@given(st.integers(0, 300), st.integers(0, LARGEST_SEED), st.integers(0, 1000))
def test_random_indices_are_each_there_once(length: int, seed: int, epoch: int) -> None:
    sampler = RandomSampler(range(length), seed)
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
    sampler = RandomSampler(range(8), seed)
    sampler.set_epoch(epoch)
    assert list(sampler) == order


def test_the_random_order_depends_on_seed_and_epoch() -> None:
    orders = set()
    for seed in (0, 1, LARGEST_SEED):
        sampler = RandomSampler(range(100), seed)
        for epoch in (0, 1):
            sampler.set_epoch(epoch)
            assert list(sampler) == list(sampler)
            orders.add(tuple(sampler))
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


def test_each_iterator_of_a_batch_sampler_is_its_own() -> None:
    sampler = BatchSampler(range(4), batch_size=2, drop_last=False)
    first, second = iter(sampler), iter(sampler)
    assert (next(first), next(second), next(first)) == ([0, 1], [0, 1], [2, 3])


def python_calls(action: Callable[[], Any]) -> list[str]:
    """Return the names of the Python functions that ``action`` calls."""
    called: list[str] = []

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            called.append(frame.f_code.co_qualname if sys.version_info >= (3, 11) else frame.f_code.co_name)

    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
    return called


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("sampler", [SequentialSampler(range(5)), RandomSampler(range(5), seed=0)])
def test_drawing_a_batch_runs_no_python(sampler: Iterable[int], drop_last: bool) -> None:
    """Where no Python function runs, no signal handler does, so none can lose an index."""
    batches = iter(BatchSampler(sampler, 2, drop_last))
    assert python_calls(batches.__next__) == []
    assert python_calls(lambda: next(batches)) != []  # it would have been seen
