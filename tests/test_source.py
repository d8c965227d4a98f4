"""Sources: numbered batches, each until it is taken; where a sampler with a state was after it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from dataloader import BatchSampler
from dataloader.source import Drawn, Source, fast_forward
from dataloader.state import Mark


def test_a_source_gives_the_same_batch_until_it_is_taken() -> None:
    source = Source([["a"], ["b"]])
    assert source.peek() == source.peek() == Drawn(0, ["a"])
    source.taken = 0
    assert source.peek() == source.peek() == Drawn(1, ["b"])
    source.taken = 1
    assert source.peek() is source.peek() is None


def test_a_source_draws_no_more_than_it_is_asked_for() -> None:
    batches = iter([[number] for number in range(5)])
    source = Source(batches)
    source.peek()
    source.peek()
    assert list(batches) == [[1], [2], [3], [4]]


@pytest.mark.parametrize("batch", [(1, 2), {1, 2}, np.array([1, 2]), range(1, 3)], ids=type)
def test_a_batch_may_be_any_collection_of_indices(batch: Any) -> None:
    drawn = Source([batch]).peek()
    assert drawn is not None
    assert list(drawn[1][0:2]) == [1, 2]


@pytest.mark.parametrize("batch", [5, "ab", iter([1]), {1: 2}], ids=type)
def test_what_is_no_batch_of_indices_is_refused_once(batch: Any) -> None:
    source = Source([batch, [3]])
    with pytest.raises(TypeError, match=r"^batch_sampler gave .*: let it give lists of indices"):
        source.peek()
    assert source.peek() == Drawn(0, [3])


def numbers(source: Source) -> list[int]:
    """Take all that is left; return the numbers."""
    taken = []
    while (drawn := source.peek()) is not None:
        source.taken = drawn.number
        taken.append(drawn.number)
    return taken


def test_numbers_go_on_from_the_first_and_leave_out_what_is_over() -> None:
    batches = [[number] for number in range(3, 10)]
    assert numbers(Source(batches, first=3, over={4, 5, 9})) == [3, 6, 7, 8]
    source = Source(batches, first=3, over={3})
    drawn = source.peek()
    assert drawn == Drawn(4, [4])


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("count", [0, 1, 3, 4, 5])
def test_fast_forward_drops_batches_or_all_that_there_are(count: int, drop_last: bool) -> None:
    sampler = BatchSampler(range(10), batch_size=3, drop_last=drop_last)
    batches = list(sampler)
    for iterator in (iter(sampler), iter(batches)):
        skipped = min(count, len(batches))
        last = batches[count - 1] if 0 < count <= len(batches) else None
        assert fast_forward(iterator, count) == (skipped, last)
        assert list(iterator) == batches[count:]


class Counting:
    """A sampler whose iterator has a state; ``at`` is where it is."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        if self.at == self.length:
            raise StopIteration
        self.at += 1
        return self.at - 1

    def state_dict(self) -> dict[str, Any]:
        return self.__dict__

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


def test_each_batch_comes_with_the_samplers_state_after_it() -> None:
    sampler = Counting(5)
    source = Source(iter(BatchSampler(sampler, 2, drop_last=False)), sampler)
    assert source.begin_mark == Mark(0, {"length": 5, "at": 0})
    marks = []
    while (drawn := source.peek()) is not None:
        source.taken = drawn.number
        marks.append(drawn.mark)
    assert marks == [Mark(batch, {"length": 5, "at": at}) for batch, at in ((1, 2), (2, 4), (3, 5))]
    assert source.end_mark() == Mark(3, {"length": 5, "at": 5}, ended=True)


def test_a_sampler_without_a_state_has_no_marks() -> None:
    source = Source([[1]])
    drawn = source.peek()
    assert drawn is not None
    assert drawn.mark is source.begin_mark is source.end_mark() is None
