"""Where a user is in an epoch, as a dict of plain values: ``state_dict``. For the way back see resume.

    Beginning   what the epoch began with: number, seed, where generators were; never changes
    Position    which batches the user has received; each delivery makes another, in one store
    Bookmark    both, of one iterator

Batches count by their number in the sampler's order, from 0. One that comes to nothing, because all of its
samples are left out or because an exception comes instead, is over as well, but not received.

Only what the user has received counts, however much is being made ahead of it. The states of samplers are
therefore taken as batches are drawn, and wait with them (``Mark``).

Nothing here draws, loads or sends anything.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from dataloader.pieces import digest_of

VERSION = 1
NUM_YIELDED, FINISHED = "_num_yielded", "_iterator_finished"  # torchdata's names: trainers edit these
MAX_LATELY = 32


class Order(Protocol):
    """What decides the order of the next epoch, and where it is now."""

    def generators(self) -> Mapping[str, str]:
        """Return where generators are, by who holds them."""

    def epochs(self, epoch: int) -> Mapping[str, int]:
        """Return which epoch each sampler is told for epoch number ``epoch``."""


class StreamsState(Protocol):
    """Workers' streams, of which each is somewhere."""

    def state(self) -> dict[str, Any]:
        """Return where they are, counting what the user has received."""


Facts = Mapping[str, Any]
"""What must be the same in a loader that goes on: plain values by name."""


class Mark(NamedTuple):
    """Where a sampler with a state of its own is.

    Parameters:
        batches: how many were drawn from it in this epoch.
        sampler: its state; None: only its iterator has one.
        iterator: its iterator's state, or None.
        ended: it has no more.
    """

    batches: int
    sampler: Any = None
    iterator: Any = None
    ended: bool = False


@dataclass(frozen=True)
class Beginning:
    """What an epoch began with.

    Parameters:
        epoch: its number.
        seed: of the random state that its samples are loaded with; None: not drawn yet.
        rank: whose share of the samples it is.
        generators: by where they are held, those that decide the order of samples: where each was.
        sampler_epochs: by path, the epoch that each sampler was told.
        dataset: the dataset's own state, None where it has none.
        begun: somebody iterates; what the sampler draws from global generators is thereby decided.
        global_generators: where these were, if the sampler may draw from them.
        draws, next_draws: the seed was drawn from the generators too, and the next epoch's will be.
    """

    epoch: int
    seed: int | None
    rank: int = 0
    generators: Mapping[str, str] = field(default_factory=dict)
    sampler_epochs: Mapping[str, int] = field(default_factory=dict)
    dataset: Any = None
    begun: bool = True
    global_generators: Mapping[str, str] = field(default_factory=dict)
    draws: bool = True
    next_draws: bool = True


class Position(NamedTuple):
    """Which batches a user has received.

    Parameters:
        next: all batches before this number are over.
        ahead: those beyond that are over too, where batches come in any order, each with the sampler's state
            after it, None where that is not known.
        received: how many the user has.
        left_out: how many came to nothing.
        lately: numbers of the last of these.
        items: how many samples are over.
        mark: where the sampler was after batch ``next - 1``, or an earlier one; None: it has no state.
        dataset: the dataset's own state, where it is in this process; or None.
        finished: the iterator has said that there are no more.
        indices: of the samples of batch ``next - 1``; None where that is not known.
    """

    next: int = 0
    ahead: Mapping[int, Mark | None] = {}
    received: int = 0
    left_out: int = 0
    lately: tuple[int, ...] = ()
    items: int = 0
    mark: Mark | None = None
    dataset: Any = None
    finished: bool = False
    indices: Sequence[Any] | None = None

    def after(
        self,
        number: int,
        indices: Sequence[Any],
        mark: Mark | None = None,
        dataset: Any = None,
        *,
        came: bool = True,
    ) -> Position:
        """Return the position once batch ``number``, of samples ``indices``, is over; ``came``: as a batch.

        >>> Position().after(0, [7, 8]).after(2, [5, 6]).next
        1
        >>> Position().after(0, [7, 8]).after(2, [5, 6]).after(1, [3, 4]).next
        3
        """
        start, ahead, received, left_out, lately, items, last, *_ = self
        items += len(indices)
        of_last: Sequence[Any] | None = indices
        if number == start and not ahead:
            start, last = number + 1, mark or last
        else:
            start, ahead, last = _advanced(start, {**ahead, number: mark}, last)
            of_last = None
        if not came:
            left_out, lately = left_out + 1, (*lately, number)[-MAX_LATELY:]
        values = (start, ahead, received + came, left_out, lately, items, last, dataset, False, of_last)
        return tuple.__new__(Position, values)  # for each batch: half as long as by name

    def with_received(self, count: int) -> Position:
        """Return the position at which the user had received ``count`` batches.

        Warns:
            UserWarning: batches came in any order, so that it is not known which.
        """
        less = self.received - count
        if less == 0:
            return self
        start, left_out = self.next, self.left_out
        if self.ahead:
            warnings.warn(
                f"{NUM_YIELDED} was changed from {self.received} to {count}, and batches came in any order: "
                "it is not known which those are; the first of the sampler's order are taken",
                stacklevel=2,
            )
            start, less = count + left_out, 0
        while less > 0:
            start -= 1
            came = start not in self.lately
            less, left_out = less - came, left_out - (not came)
        start -= less
        items = self.items * start // max(1, self.next)
        return self._replace(next=start, ahead={}, received=count, left_out=left_out, items=items)


def _advanced(
    start: int, ahead: dict[int, Mark | None], mark: Mark | None
) -> tuple[int, dict[int, Mark | None], Mark | None]:
    while start in ahead:
        mark = ahead.pop(start) or mark
        start += 1
    return start, ahead, mark


class Bookmark:
    """Where the user of one iterator is.

    Parameters:
        beginning: of its epoch.
        facts: about its loader.
        order: asked at the epoch's end for what the next begins with; None: nothing decides.
        position: where it begins.
        streams: of the workers, where the dataset is iterable.

    Attributes:
        position: replaced by one store, with each batch.
    """

    __slots__ = ("_facts", "_order", "_streams", "beginning", "position")

    def __init__(
        self,
        beginning: Beginning,
        facts: Facts | None = None,
        order: Order | None = None,
        position: Position = Position(),  # noqa: B008 (it is never changed)
        streams: StreamsState | None = None,
    ) -> None:
        self.beginning = beginning
        self._facts = facts or {}
        self._order = order
        self._streams = streams
        self.position = position

    def end(self, mark: Mark | None) -> None:
        """Note that there are no more batches. ``mark``: where the sampler is then."""
        self.position = self.position._replace(finished=True, mark=mark)

    def state_dict(self, next_epoch: int | None = None) -> dict[str, Any]:
        """Return all of it, as plain values that are the caller's; ``next_epoch``: number of the next."""
        beginning, position = self.beginning, self.position
        next_epoch = beginning.epoch + 1 if next_epoch is None else next_epoch
        mark, dataset = position.mark, position.dataset
        return {
            NUM_YIELDED: position.received,
            FINISHED: position.finished,
            "version": VERSION,
            "seed": beginning.seed,
            "epoch": beginning.epoch,
            "next_epoch": next_epoch,
            "rank": beginning.rank,
            "begun": beginning.begun,
            "draws_seed": beginning.draws,
            "next_draws_seed": beginning.next_draws,
            "next_batch": position.next,
            "ahead": list(position.ahead),
            "left_out": position.left_out,
            "lately_left_out": list(position.lately),
            "last_batch": None if position.indices is None else digest_of(position.indices),
            "samples": position.items,
            "generators": dict(beginning.generators),
            "global_generators": dict(beginning.global_generators),
            "sampler_epochs": dict(beginning.sampler_epochs),
            "after": self._after(next_epoch) if position.finished else None,
            "sampler": None if mark is None else copy.deepcopy(mark._asdict()),
            "dataset": copy.deepcopy(beginning.dataset if dataset is None else dataset),
            "dataset_batches": 0 if dataset is None else position.next,
            "streams": None if self._streams is None else self._streams.state(),
            "loader": dict(self._facts),
        }

    def _after(self, next_epoch: int) -> dict[str, Any]:
        """Return where that is which decides the next epoch's order."""
        if self._order is None:
            return {"generators": {}, "sampler_epochs": {}}
        epochs = self._order.epochs(next_epoch)
        return {"generators": dict(self._order.generators()), "sampler_epochs": dict(epochs)}
