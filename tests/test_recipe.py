"""How a batch is made: the random state of each piece, and what the page says meanwhile."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dataloader import empty
from dataloader.arena import SMALL_BYTES, Arena
from dataloader.pieces import layout, piece_seeds
from dataloader.random_state import Setter, kept_random_state, set_random_state
from dataloader.recipe import Order, Recipe, where
from supervisor.page import RECORD_BYTES, Page, State


@pytest.fixture
def page() -> Page:
    page = Page(memoryview(bytearray(RECORD_BYTES)))
    page.reset()
    return page


class ByIndex:
    """A dataset of what ``sample`` returns for an index."""

    def __init__(self, sample: Callable[[int], Any]) -> None:
        self.sample = sample

    def __getitem__(self, index: int) -> Any:
        return self.sample(index)


def draw(index: int) -> tuple[int, float, float]:
    return index, random.random(), float(np.random.random())


def make(order: Order, page: Page, sample: Callable[[int], Any] = draw, collate: Any = list) -> Any:
    with kept_random_state():
        return Recipe(ByIndex(sample), collate).make(order, page, Setter())


@pytest.mark.parametrize("samples", [1, 7, 16, 35])
def test_each_piece_starts_from_its_own_random_state(page: Page, samples: int) -> None:
    indices = list(range(100, 100 + samples))
    expected = []
    with kept_random_state():
        for piece, (start, stop) in enumerate(layout(samples)):
            set_random_state(piece_seeds(5, 6, 7, piece, indices[start:stop]))
            expected += [draw(index) for index in indices[start:stop]]
    assert make(Order(5, 6, 7, indices), page) == expected


def test_a_batch_depends_on_its_order_alone(page: Page) -> None:
    order = Order(0, 1, 2, [3, 4, 5])
    expected = make(order, page)
    random.seed(99)
    np.random.seed(99)
    assert make(order, page) == expected
    for other in (order._replace(seed=9), order._replace(epoch=9), order._replace(batch=9)):
        assert make(other, page) != expected


def test_a_sample_that_draws_more_changes_only_what_follows_in_its_piece(page: Page) -> None:
    def greedy(index: int) -> tuple[int, float, float]:
        drawn = draw(index)
        if index == 4:
            random.random()
        return drawn

    order = Order(0, 0, 0, list(range(32)))
    plain, changed = make(order, page), make(order, page, greedy)
    different = [i for i, (one, other) in enumerate(zip(plain, changed, strict=True)) if one != other]
    assert different == [5, 6, 7]


def test_collate_gets_a_list_of_the_samples_in_order(page: Page) -> None:
    given: list[Any] = []
    make(Order(0, 0, 0, [5, 3, 5]), page, sample=lambda index: -index, collate=given.append)
    assert given == [[-5, -3, -5]]


def test_the_page_says_which_sample_is_loaded_and_when_it_is_collated(page: Page) -> None:
    seen = []

    def look(samples: object = None) -> None:
        seen.append((page.state, page.item))

    make(Order(0, 0, 0, [70, 80, 90]), page, sample=look, collate=look)
    assert seen == [(State.SAMPLE, 0), (State.SAMPLE, 1), (State.SAMPLE, 2), (State.COLLATE, 2)]


def test_where_names_batch_and_sample(page: Page) -> None:
    order = Order(0, 0, 12, ["a.jpg", "b.jpg"])
    with pytest.raises(ZeroDivisionError):
        make(order, page, sample=lambda index: 1 / 0 if index == "b.jpg" else 0)  # type: ignore[comparison-overlap]
    assert where(order, page) == "batch 12, sample 'b.jpg'"
    with pytest.raises(ZeroDivisionError):
        make(order, page, collate=lambda samples: 1 / 0)
    assert where(order, page) == "batch 12, made of samples ['a.jpg', 'b.jpg']"


def test_only_what_is_collated_lies_in_the_arena(page: Page) -> None:
    """A dataset may keep a sample that it made with ``empty``; the slot is another batch's by then."""
    room = memoryview(bytearray(1 << 20))
    dataset = ByIndex(lambda index: empty(SMALL_BYTES, np.uint8))
    recipe = Recipe(dataset, collate=lambda samples: (samples, empty(SMALL_BYTES, np.uint8)))
    samples, collated = recipe.make(Order(0, 0, 0, [0, 1]), page, Setter(), Arena(room))
    slot = np.frombuffer(room, np.uint8)
    assert [np.may_share_memory(array, slot) for array in (*samples, collated)] == [False, False, True]
    assert not np.may_share_memory(empty(SMALL_BYTES, np.uint8), slot)


def test_the_bytes_of_a_batch_are_final(page: Page) -> None:
    """One batch of two pieces, as every version of this package has to make it."""
    batch = make(Order(2**63, 3, 1000, list(range(50, 67))), page)
    assert [sample[0] for sample in batch] == list(range(50, 67))
    digest = hashlib.sha256(repr(batch).encode()).hexdigest()
    assert (batch[0], digest[:16]) == ((50, 0.20545617631109148, 0.43970787908124154), "59f9efa1067255d3")
