"""Drawing from an iterator of the user's, such that no exception loses what was drawn.

An exception may come out of the iterator at any draw: its own, or one that a signal handler raised inside it.
A class that has ``__next__`` can go on afterwards, and then so do we. A generator is ended by it, and would
seem to have been used up: an epoch would end early without a word. That is an error here instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from types import FunctionType, GeneratorType
from typing import Any

from dataloader.interrupts import frames_outside_handlers

_NOTHING = object()  # which no iterator gives


class Intake:
    """Draws from ``iterable``, which is iterated once."""

    def __init__(self, iterable: Iterable[Any]) -> None:
        iterator = iter(iterable)
        self._is_generator = isinstance(iterator, GeneratorType)
        # islice would ask it for an iterator at each draw, and one that is its own may begin anew then.
        self._iterator = iter(iterator.__next__, _NOTHING) if _has_own_iter(iterator) else iterator
        self._ended_by: BaseException | None = None

    def draw(self, drawn: list[Any], count: int) -> None:
        """Append the next ``count`` items to ``drawn``, in one C call, or all that are left.

        Raises:
            RuntimeError: an exception had ended the iterator.
            Exception: whatever the iterator raises. What was drawn before it is kept.
        """
        if self._ended_by is not None:
            raise RuntimeError(
                "an exception ended the sampler's generator, so that the batches after it are not known: "
                "iterate anew, or let the sampler's __iter__ return an object that can go on"
            ) from self._ended_by
        try:
            drawn.extend(islice(self._iterator, count))
        except BaseException as error:
            self._ended_by = error  # first of all: another interrupt may be near
            if not self._came_through_generator(error):
                self._ended_by = None
            raise

    def _came_through_generator(self, error: BaseException) -> bool:
        return self._is_generator and frames_outside_handlers(error) > 1


def _has_own_iter(iterator: Iterator[Any]) -> bool:
    return isinstance(type(iterator).__iter__, FunctionType)
