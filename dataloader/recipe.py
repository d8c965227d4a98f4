"""How a batch is made: the same in a worker and in process."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from dataloader.arena import Arena, use
from dataloader.checkpoints import News, Place
from dataloader.collate import default_collate
from dataloader.datasets import by_row, fetch, fetch_together, loads_singly, loads_together
from dataloader.interrupts import is_interrupt
from dataloader.pieces import NotInPieces, layout, piece_seeds
from dataloader.random_state import Setter
from dataloader.rows import NoRows, Rows
from dataloader.sample_errors import Failure, Survivors
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
        skip: positions of those that are to be left out.
        piece: number of the piece of it that is to be made, and not collated; None: all of it.
        place: in its stream, of an iterable dataset; then there are no indices.
    """

    seed: int
    epoch: int
    batch: int
    indices: Sequence[Any]
    skip: Sequence[int] = ()
    piece: int | None = None
    place: Place | None = None


Fetch = Callable[[Any, Order, int, int, Page, list[Failure], Rows], Any]
"""Loads samples ``start`` to ``stop - 1`` of a batch, and notes failures that are not raised."""


def each(
    dataset: Any, order: Order, start: int, stop: int, page: Page, failures: list[Failure], rows: Rows
) -> list[Any]:
    """Return samples number ``start`` to ``stop - 1`` of a batch, loaded one by one."""
    words, samples = page.words, []
    numbered = enumerate(order.indices[start:stop], start)
    if rows.is_open:
        for position, index in numbered:
            words[ITEM] = position
            samples.append(rows.put(position, dataset[index]))
            if not rows.is_open:
                break
    return samples + [dataset[index] for words[ITEM], index in numbered]


def each_that_loads(
    dataset: Any, order: Order, start: int, stop: int, page: Page, failures: list[Failure], rows: Rows
) -> list[Any]:
    """Return those of the samples that are not to be skipped and do not raise; note the failures."""
    samples: list[Any] = []
    for position, index in enumerate(order.indices[start:stop], start):
        if position in order.skip:
            continue
        page.words[ITEM] = position
        try:
            sample = dataset[index]
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            failures.append(Failure(position, error))
        else:
            samples.append(rows.put(position, sample) if rows.is_open else sample)
    return samples


def together(
    dataset: Any, order: Order, start: int, stop: int, page: Page, failures: list[Failure], rows: Rows
) -> Any:
    """Return all samples of a batch, loaded by one call of ``__getitems__``.

    Where that raises they are loaded again one by one, so that the one that fails is known.
    """
    return _together(dataset, order, page, failures, rows, each)


def together_those_that_load(
    dataset: Any, order: Order, start: int, stop: int, page: Page, failures: list[Failure], rows: Rows
) -> Any:
    """Return the samples of a batch, loaded by one call; where one fails, the others, one by one."""
    return _together(dataset, order, page, failures, rows, each_that_loads)


def _together(
    dataset: Any, order: Order, page: Page, failures: list[Failure], rows: Rows, singly: Fetch
) -> Any:
    count = len(order.indices)
    if order.skip:
        return singly(by_row(dataset), order, 0, count, page, failures, rows)
    try:
        return fetch_together(dataset, order.indices)
    except BaseException as error:
        if is_interrupt(error) or not loads_singly(dataset):
            raise
        raised = error
    samples = singly(by_row(dataset), order, 0, count, page, failures, rows)
    if not failures:
        raise raised
    return samples


def one(
    dataset: Any, order: Order, start: int, stop: int, page: Page, failures: list[Failure], rows: Rows
) -> Any:
    """Return the only sample of a batch that is none."""
    page.words[ITEM] = 0
    return fetch(dataset, order.indices[0])


@dataclass(frozen=True)
class Recipe:
    """A dataset and what makes a batch of its samples.

    Parameters:
        dataset: the user's.
        collate: makes the batch; of the one sample itself where ``fetch`` is ``one``.
        fetch: ``each``, ``each_that_loads``, ``together``, ``together_those_that_load`` or ``one``.
        rows: where ``collate`` finds large arrays of samples.
    """

    dataset: Any
    collate: Collate
    fetch: Fetch = each
    rows: type[Rows] = NoRows

    def with_collate(self, collate: Collate, rows: type[Rows] = NoRows) -> Recipe:
        """Return the same with another ``collate``."""
        return replace(self, collate=collate, rows=rows)

    @property
    def news(self) -> News | None:
        """What is to be told of the stream; there is none."""
        return None

    def named(self, order: Order) -> Order:
        """Return ``order`` with the names of its samples, now that it was worked on."""
        return order

    @classmethod
    def of(cls, dataset: Any, collate: Collate, *, in_batches: bool, may_skip: bool = False) -> Recipe:
        """Return the recipe for batches, or for single samples.

        Where samples ``may_skip``, a batch of which some raised is made of the others: see ``Survivors``.
        """
        if not in_batches:
            return cls(dataset, collate, one)
        rows = Rows if collate is default_collate else NoRows
        if loads_together(dataset):
            return cls(dataset, collate, together_those_that_load if may_skip else together, rows)
        return cls(dataset, collate, each_that_loads if may_skip else each, rows)

    def make(self, order: Order, page: Page, setter: Setter, arena: Arena | None = None) -> Any:
        """Make the batch, saying on ``page`` where it is, and having ``setter`` set the random state.

        Only what is made in ``collate``, and copies of large arrays, may lie in ``arena``: a sample may be
        kept by its dataset.
        """
        page.enter(State.SAMPLE)
        if order.piece is not None:
            return self._make_piece(order, page, setter, arena)
        return setter.run(
            partial(self._make_in_pieces, order, page, setter, arena),
            partial(self._make_as_a_whole, order, page, arena),
        )

    def _make_piece(self, order: Order, page: Page, setter: Setter, arena: Arena | None) -> Any:
        """Return the samples of one piece, for the consumer to collate.

        Raises NotInPieces where it could not.
        """
        if not self.can_make_pieces:
            raise NotInPieces
        assert order.piece is not None
        start, stop = layout(len(order.indices))[order.piece]
        load = partial(self._load_piece, order, start, stop, page, arena)
        samples, failures = setter.run(partial(self._load_set, load, order, start, stop, setter), load)
        if not self.rows.are_plain(samples):
            raise NotInPieces
        return Survivors(samples, failures) if failures or order.skip else samples

    def _load_piece(
        self, order: Order, start: int, stop: int, page: Page, arena: Arena | None
    ) -> tuple[list[Any], list[Failure]]:
        page.enter(State.SAMPLE)
        failures: list[Failure] = []
        rows = self._new_rows(order, arena, start)
        return self.fetch(self.dataset, order, start, stop, page, failures, rows), failures

    def _load_set(
        self,
        load: Callable[[], tuple[list[Any], list[Failure]]],
        order: Order,
        start: int,
        stop: int,
        setter: Setter,
    ) -> tuple[list[Any], list[Failure]]:
        """Load a piece from its own random state."""
        assert order.piece is not None
        indices = order.indices[start:stop]
        setter.set(piece_seeds(order.seed, order.epoch, order.batch, order.piece, indices))
        try:
            return load()
        finally:
            setter.end()

    def _make_as_a_whole(self, order: Order, page: Page, arena: Arena | None) -> Any:
        failures: list[Failure] = []
        rows = self._new_rows(order, arena)
        samples = self.fetch(self.dataset, order, 0, len(order.indices), page, failures, rows)
        return collated(self.collate, samples, order, failures, page, arena, rows)

    def _new_rows(self, order: Order, arena: Arena | None, start: int | None = None) -> Rows:
        if arena is not None:
            arena.clear()
        return self.rows(len(order.indices), arena, start)

    @property
    def loads_singly(self) -> bool:
        """Whether each sample is loaded by a call of its own."""
        return self.fetch in (each, each_that_loads)

    @property
    def can_make_pieces(self) -> bool:
        """Whether a piece of a batch is something to send: its samples, which are collated as any others."""
        return self.rows is not NoRows and self.loads_singly

    def _make_in_pieces(self, order: Order, page: Page, setter: Setter, arena: Arena | None) -> Any:
        """Collating is part of the last piece."""
        page.enter(State.SAMPLE)
        count = len(order.indices)
        samples: Any = []
        failures: list[Failure] = []
        rows = self._new_rows(order, arena)
        for piece, (start, stop) in enumerate(layout(count) if self.loads_singly else ((0, count),)):
            indices = order.indices[start:stop]
            setter.set(piece_seeds(order.seed, order.epoch, order.batch, piece, indices))
            try:
                fetched = self.fetch(self.dataset, order, start, stop, page, failures, rows)
                samples = samples + fetched if start else fetched
                if stop == count:
                    return collated(self.collate, samples, order, failures, page, arena, rows)
            finally:
                setter.end()
        raise AssertionError("a layout has a last piece")


def collated(
    collate: Collate,
    samples: Any,
    order: Order,
    failures: list[Failure],
    page: Page,
    arena: Arena | None,
    rows: Rows | None = None,
) -> Any:
    """Return the batch of ``samples``; of those that could be loaded, if ``failures`` tell of others."""
    page.enter(State.COLLATE)
    if not failures and not order.skip:
        with use(arena, order.indices, rows):
            return collate(samples)
    with use(arena, _left(order, failures), rows):
        batch = collate(samples) if samples else None
    return Survivors(batch, failures)


def _left(order: Order, failures: Sequence[Failure]) -> list[Any]:
    """Return the indices of the samples that are in the batch."""
    out = {*order.skip, *(failure.position for failure in failures)}
    return [index for position, index in enumerate(order.indices) if position not in out]


def where(order: Order, page: Page) -> str:
    """Return what was being worked on, for people: however many indices there are, and whatever they are."""
    if order.place is not None:
        return stream_place(order, order.place, page.item if page.state is State.SAMPLE else -1)
    if page.state is State.COLLATE:
        return f"batch {order.batch}, made of samples {_NAMES.repr(list(order.indices))}"
    if page.item < 0:
        return f"batch {order.batch}, samples {_NAMES.repr(list(order.indices))}"
    return sample_place(order, page.item)


def sample_place(order: Order, position: int) -> str:
    """Return which sample is at ``position``, for people."""
    if order.place is not None:
        return stream_place(order, order.place, order.indices[position])
    return f"batch {order.batch}, sample {_NAMES.repr(order.indices[position])}"


def stream_place(order: Order, place: Place, position: int) -> str:
    """Return which sample of which stream it is, for people; -1: none."""
    sample = "" if position < 0 else f", sample {position} of it"
    return f"batch {order.batch}, number {place.turn} of stream {place.stream}{sample}"


_NAMES = reprlib.Repr()
_NAMES.maxlist = 10
_NAMES.maxstring = _NAMES.maxother = 200
