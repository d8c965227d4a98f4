"""How a batch is made: the same in a worker and in process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from dataloader.arena import Arena, use
from dataloader.pieces import layout, piece_seeds, set_random_state
from supervisor.page import ITEM, Page, State

Collate = Callable[[list[Any]], Any]


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


@dataclass(frozen=True)
class Recipe:
    """A dataset and what makes a batch of its samples."""

    dataset: Any
    collate: Collate

    def make(self, order: Order, page: Page, arena: Arena | None = None) -> Any:
        """Make the batch, saying on ``page`` where it is.

        Only what is made in ``collate`` may lie in ``arena``: a sample may be kept by its dataset.
        """
        samples: list[Any] = []
        page.enter(State.SAMPLE)
        for piece, (start, stop) in enumerate(layout(len(order.indices))):
            indices = order.indices[start:stop]
            set_random_state(piece_seeds(order.seed, order.epoch, order.batch, piece, indices))
            self._load(samples, indices, start, page)
        page.enter(State.COLLATE)
        with use(arena):
            return self.collate(samples)

    def _load(self, samples: list[Any], indices: Sequence[Any], start: int, page: Page) -> None:
        words, dataset = page.words, self.dataset
        for position, index in enumerate(indices, start):
            words[ITEM] = position
            samples.append(dataset[index])


def where(order: Order, page: Page) -> str:
    """Return what was being worked on, for people."""
    if page.state is State.SAMPLE:
        return f"batch {order.batch}, sample {order.indices[page.item]!r}"
    return f"batch {order.batch}, while {page.state.name.lower()}"
