"""What an epoch draws from: the batches of indices that a sampler gives, numbered.

A sampler, or its iterator, may have a state of its own: ``state_dict()`` and ``load_state_dict()``, as
torchdata wants them. It is taken each time a batch was drawn, and goes along with the batch: what was drawn
ahead of the user, and is not received before the end, is drawn again after it.
"""

from __future__ import annotations

import copy
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from dataloader.intake import Intake
from dataloader.ledger import Epoch
from dataloader.samplers import Batches
from dataloader.state import Mark
from dataloader.stateful import has_state


class Drawn(NamedTuple):
    """A batch of indices, its number, and where the sampler is after it, None where it has no state."""

    number: int
    indices: Sequence[Any]
    mark: Mark | None = None


class Source:
    """Batches of indices, each kept until it is marked as taken.

    Parameters:
        batches: is iterated once.
        sampler: whose iterator that is: of batches, or of the indices that they are made of.
        first: number of the first.
        over: numbers of those beyond that are drawn, and not given.

    Attributes:
        taken: number of the last batch that was taken.
    """

    def __init__(
        self, batches: Iterable[Any], sampler: Any = None, first: int = 0, over: Container[int] = ()
    ) -> None:
        self._intake = Intake(batches)
        self._state = SamplerState(sampler, batches)
        self._over = over
        self._drawn: list[Any] = []  # the batch after the last that was dropped, if it is drawn yet
        self._mark: Mark | None = None
        self._dropped = self.taken = first - 1
        self.begin_mark = self._state.mark(first)

    def epoch(self, seed: int, number: int, max_attempts: int = 1) -> Epoch:
        """Return the ledger for its batches: see Epoch."""
        return Epoch(seed, number, max_attempts)

    def peek(self) -> Drawn | None:
        """Return the next batch, or None at the end.

        Raises TypeError, once, for each thing that the sampler gives and that is no batch of indices.
        """
        while True:
            if self._dropped < self.taken:
                self._drawn, self._mark, self._dropped = [], None, self.taken
            number = self._dropped + 1
            if not self._drawn:
                self._intake.draw(self._drawn, 1)
            if number not in self._over or not self._drawn:
                break
            self.taken = number
        if not self._drawn:
            return None
        batch = self._drawn[0]
        indices = batch if type(batch) is list else _as_sequence(batch)
        if indices is None:
            error = TypeError(f"batch_sampler gave {batch!r}: let it give lists of indices")
            self._drawn = []
            raise error
        self._mark = self._mark or self._state.mark(number + 1)
        return Drawn(number, indices, self._mark)

    def end_mark(self) -> Mark | None:
        """Return where the sampler is, now that it has no more."""
        return self._state.mark(self.taken + 1, ended=True)


def _as_sequence(batch: Any) -> Sequence[Any] | None:
    """Return what a batch_sampler gave, if it is as good as a list of indices."""
    if not hasattr(batch, "__len__") or isinstance(batch, str | bytes | Mapping):
        return None
    sequence: Sequence[Any] = batch if hasattr(batch, "__getitem__") else tuple(batch)
    return sequence


class SamplerState:
    """Takes the state of a sampler and of its iterator, where they have one."""

    def __init__(self, sampler: Any, batches: Any) -> None:
        iterator = _iterator_of(batches)
        self._sampler = sampler if has_state(sampler) else None
        self._iterator = iterator if has_state(iterator) and iterator is not sampler else None

    def mark(self, batches: int, *, ended: bool = False) -> Mark | None:
        """Return where both are, after so many batches; None where neither can tell."""
        sampler, iterator = self._sampler, self._iterator
        if sampler is None and iterator is None:
            return None
        return Mark(
            batches,
            None if sampler is None else copy.deepcopy(sampler.state_dict()),
            None if iterator is None else copy.deepcopy(iterator.state_dict()),
            ended,
        )


def load_iterator(batches: Any, mark: Mark) -> None:
    """Let the iterator behind ``batches`` go on from ``mark``."""
    iterator = _iterator_of(batches)
    if mark.iterator is not None and has_state(iterator):
        iterator.load_state_dict(copy.deepcopy(mark.iterator))


def fast_forward(batches: Iterator[Any], count: int) -> tuple[int, Any]:
    """Draw ``count`` batches, or all that there are, and drop them; return how many, and the last of them.

    No sample is loaded.
    """
    if count == 0:
        return 0, None
    number = _drop(batches, count - 1)
    drawn: list[Any] = []
    if number == count - 1:
        Intake(batches).draw(drawn, 1)
    return number + len(drawn), drawn[0] if drawn else None


def _drop(batches: Iterator[Any], count: int) -> int:
    if isinstance(batches, Batches):
        return batches.skip(count)
    intake = Intake(batches)
    drawn: list[Any] = []
    for number in range(count):
        intake.draw(drawn, 1)
        if not drawn:
            return number
        drawn.clear()
    return count


def _iterator_of(batches: Any) -> Any:
    return batches.indices if isinstance(batches, Batches) else batches
