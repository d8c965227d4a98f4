"""How a batch is made: the same in a worker and in process."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from dataloader.arena import Arena, use
from dataloader.datasets import fetch_all
from dataloader.pieces import layout, piece_seeds
from dataloader.random_state import Setter
from supervisor.page import ITEM, Page, State

Collate = Callable[[Any], Any]
WorkerInit = Callable[[int], None]


class Order(NamedTuple):
    """One batch to be made.

    Parameters:
        seed: the loader's.
        epoch: number of the epoch.
        batch: number of the batch in it.
        indices: of its samples.
    """

    seed: int
    epoch: int
    batch: int
    indices: Sequence[Any]


def each(dataset: Any, order: Order, start: int, stop: int, page: Page) -> list[Any]:
    """Return samples number ``start`` to ``stop - 1`` of a batch, loaded one by one."""
    samples: list[Any] = []
    words = page.words
    for position, index in enumerate(order.indices[start:stop], start):
        words[ITEM] = position
        samples.append(dataset[index])
    return samples


def together(dataset: Any, order: Order, start: int, stop: int, page: Page) -> list[Any]:
    """Return all samples of a batch, loaded by one call of ``__getitems__``."""
    return fetch_all(dataset, order.indices)


def one(dataset: Any, order: Order, start: int, stop: int, page: Page) -> Any:
    """Return the only sample of a batch that is none."""
    return each(dataset, order, start, stop, page)[0]


Fetch = Callable[[Any, Order, int, int, Page], Any]


@dataclass(frozen=True)
class Recipe:
    """A dataset and what makes a batch of its samples.

    Parameters:
        dataset: the user's.
        collate: makes the batch; of the one sample itself where ``fetch`` is ``one``.
        fetch: ``each``, ``together`` or ``one``.
    """

    dataset: Any
    collate: Collate
    fetch: Fetch = each

    @classmethod
    def of(cls, dataset: Any, collate: Collate, *, in_batches: bool) -> Recipe:
        """Return the recipe for batches, or for single samples."""
        if not in_batches:
            return cls(dataset, collate, one)
        return cls(dataset, collate, together if callable(getattr(dataset, "__getitems__", None)) else each)

    def make(self, order: Order, page: Page, setter: Setter, arena: Arena | None = None) -> Any:
        """Make the batch, saying on ``page`` where it is, and having ``setter`` set the random state.

        Only what is made in ``collate`` may lie in ``arena``: a sample may be kept by its dataset.
        """
        page.enter(State.SAMPLE)
        return setter.run(
            partial(self._make_in_pieces, order, page, setter, arena),
            partial(self._make_as_a_whole, order, page, arena),
        )

    def _make_as_a_whole(self, order: Order, page: Page, arena: Arena | None) -> Any:
        samples = self.fetch(self.dataset, order, 0, len(order.indices), page)
        return self._collate(samples, order, page, arena)

    def _make_in_pieces(self, order: Order, page: Page, setter: Setter, arena: Arena | None) -> Any:
        """Collating is part of the last piece."""
        page.enter(State.SAMPLE)
        count = len(order.indices)
        samples: Any = []
        for piece, (start, stop) in enumerate(layout(count) if self.fetch is each else ((0, count),)):
            indices = order.indices[start:stop]
            setter.set(piece_seeds(order.seed, order.epoch, order.batch, piece, indices))
            try:
                fetched = self.fetch(self.dataset, order, start, stop, page)
                samples = samples + fetched if start else fetched
                if stop == count:
                    return self._collate(samples, order, page, arena)
            finally:
                setter.end()
        raise AssertionError("a layout has a last piece")

    def _collate(self, samples: Any, order: Order, page: Page, arena: Arena | None) -> Any:
        page.enter(State.COLLATE)
        with use(arena, order.indices):
            return self.collate(samples)


def where(order: Order, page: Page) -> str:
    """Return what was being worked on, for people: however many indices there are, and whatever they are."""
    if page.state is State.COLLATE:
        return f"batch {order.batch}, made of samples {_NAMES.repr(list(order.indices))}"
    if page.item < 0:
        return f"batch {order.batch}, samples {_NAMES.repr(list(order.indices))}"
    return f"batch {order.batch}, sample {_NAMES.repr(order.indices[page.item])}"


_NAMES = reprlib.Repr()
_NAMES.maxlist = 10
_NAMES.maxstring = _NAMES.maxother = 200
