"""How a batch is made: the same in a worker and in process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from dataloader.arena import Arena, use
from dataloader.datasets import fetch_all
from dataloader.pieces import layout, piece_seeds, set_random_state
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


def each(dataset: Any, order: Order, page: Page) -> list[Any]:
    """Return the samples, loaded one by one, in pieces of which each has its own random state."""
    samples: list[Any] = []
    words = page.words
    for piece, (start, stop) in enumerate(layout(len(order.indices))):
        indices = order.indices[start:stop]
        set_random_state(piece_seeds(order.seed, order.epoch, order.batch, piece, indices))
        for position, index in enumerate(indices, start):
            words[ITEM] = position
            samples.append(dataset[index])
    return samples


def together(dataset: Any, order: Order, page: Page) -> list[Any]:
    """Return the samples, loaded by one call of ``__getitems__``: the batch is one piece."""
    set_random_state(piece_seeds(order.seed, order.epoch, order.batch, 0, order.indices))
    return fetch_all(dataset, order.indices)


def one(dataset: Any, order: Order, page: Page) -> Any:
    """Return the only sample."""
    return each(dataset, order, page)[0]


Fetch = Callable[[Any, Order, Page], Any]


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

    def make(self, order: Order, page: Page, arena: Arena | None = None) -> Any:
        """Make the batch, saying on ``page`` where it is.

        Only what is made in ``collate`` may lie in ``arena``: a sample may be kept by its dataset.
        """
        page.enter(State.SAMPLE)
        samples = self.fetch(self.dataset, order, page)
        page.enter(State.COLLATE)
        with use(arena, order.indices):
            return self.collate(samples)


def where(order: Order, page: Page) -> str:
    """Return what was being worked on, for people."""
    if page.state is not State.SAMPLE:
        return f"batch {order.batch}, while {page.state.name.lower()}"
    sample = order.indices[page.item] if page.item >= 0 else list(order.indices)
    return f"batch {order.batch}, sample{'s' if page.item < 0 else ''} {sample!r}"
