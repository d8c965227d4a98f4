"""A stream: an iterable dataset that is being iterated, and can be taken back to where it was.

A sample that raises is drawn, too: the next draw gives what the iterator gives after that.

Non-goals: batches, and the random state that they are drawn with (see stream_recipe).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from dataloader.checkpoints import Checkpoint, Place
from dataloader.interrupts import is_interrupt
from dataloader.sample_errors import Failure, StreamBroken
from dataloader.stream_state import (
    begin_state,
    can_go_on,
    forget_loaded,
    iterate_from,
    load_dataset,
    pack_state,
)
from supervisor.page import ITEM, Page


class StreamEnded(Exception):
    """There is no batch: the stream has ended."""


class Drawn(NamedTuple):
    """What was drawn for one batch. ``error``: what is to be raised instead of it, or None."""

    samples: list[Any]
    failures: list[Failure]
    error: BaseException | None


class Stream:
    """A dataset that is being iterated.

    Parameters:
        dataset: what is iterated.
        size: samples that a batch has.
        may_skip: go on past a sample that raises.
        is_in_process: exceptions out of signal handlers of the user's are no errors of the stream.

    Attributes:
        at: (run, turn) of the batch that comes next; None: nowhere.
        samples: how many were drawn so far.
        is_over: it has no more.
    """

    def __init__(self, dataset: Any, size: int, *, may_skip: bool, is_in_process: bool) -> None:
        self.dataset = dataset
        self.size = size
        self.may_skip = may_skip
        self.at: tuple[int, int] | None = None
        self.samples = 0
        self.is_over = False
        self._is_in_process = is_in_process
        self._iterator: Iterator[Any] | None = None
        self._begin: bytes | None = None  # the dataset's state before it was iterated
        self._is_new = True
        self._was_loaded = False
        self._failed: tuple[int, bytes | None] | None = None  # samples and state after the last that raised

    def state(self) -> bytes | None:
        """Return the dataset's state, packed; None where it has none."""
        return None if self._iterator is None else pack_state(self.dataset, self._iterator)

    # ---- drawing ---------------------------------------------------------------------------------

    def draw(self, place: Place, page: Page) -> Drawn:
        """Draw the samples of the batch at ``place``, where this stream is; be at the next one then."""
        self.at = None  # until it is done: an interrupt leaves it nowhere
        samples: list[Any] = []
        failures: list[Failure] = []
        error = None
        try:
            self._draw(samples, failures, page)
        except BaseException as raised:
            if self._is_interrupt(raised):
                raise
            error = raised
        if self._was_loaded:
            self._was_loaded = False
            forget_loaded(self.dataset)
        self.at = (place.run, place.turn + 1)
        return Drawn(samples, failures, error)

    def _draw(self, samples: list[Any], failures: list[Failure], page: Page) -> None:
        if self.is_over:
            return
        words, iterator = page.words, self._begun()
        start = position = self.samples
        stop = start + self.size
        while position < stop:
            try:
                for position in range(position, stop):  # noqa: B020 (it goes on where it was)
                    words[ITEM] = position
                    samples.append(next(iterator))
                position = stop
            except StopIteration:
                self.is_over = True
                stop = position
            except BaseException as error:
                position += 1
                self.samples = position
                if self._is_interrupt(error) or not self.may_skip:
                    raise
                failures.append(Failure(position - 1 - start, error))
                iterator = self._past(error)
        self.samples = stop

    def _begun(self) -> Iterator[Any]:
        if self._iterator is None:
            self.is_over = True  # unless it can be iterated
            try:
                self._iterator = iter(self.dataset)
            except BaseException as error:
                if self._is_interrupt(error) or not self.may_skip:
                    raise
                raise StreamBroken("the stream cannot be begun: iter(dataset) raised") from error
            self.is_over = False
        return self._iterator

    def _past(self, error: BaseException) -> Iterator[Any]:
        """Return the iterator that goes on past the last sample, which raised ``error``.

        Raises StreamBroken where there is none: it has no state that is past it.
        """
        try:
            iterator = self._found_past()
        except BaseException as failure:
            if self._is_interrupt(failure):
                raise
            error, iterator = failure, None
        if iterator is None:
            self.is_over = True
            raise StreamBroken(
                f"the stream cannot be drawn from past sample {self.samples - 1}, which raised: its state "
                f"does not get past it ({type(error).__name__})"
            ) from error
        return iterator

    def _found_past(self) -> Iterator[Any] | None:
        assert self._iterator is not None
        state, failed_before = self.state(), self._failed
        self._failed = self.samples, state
        if state is None or failed_before == (self.samples - 1, state):
            return None
        if not can_go_on(self.dataset, self._iterator):
            self._iterator = iterate_from(self.dataset, state)
        return self._iterator

    def _is_interrupt(self, error: BaseException) -> bool:
        return self._is_in_process and is_interrupt(error)

    # ---- getting somewhere -----------------------------------------------------------------------

    def rewind(self) -> None:
        """Be at the begin, where a dataset that knows where it is may not be after another epoch."""
        self._iterator, self._failed = None, None  # a generator that is dropped may still do something
        if not self._note_begin() and self._begin is not None:
            load_dataset(self.dataset, self._begin)
        self.samples, self.is_over = 0, False

    def _note_begin(self) -> bool:
        """Take note of where the dataset is, if this is the first that is done with it; return whether it is.

        In a replacement it is there, too: all that a worker gives is the same then, whoever died before.
        """
        is_new, self._is_new = self._is_new, False
        if is_new:
            self._begin = begin_state(self.dataset)
        return is_new

    def go_on_from(self, checkpoint: Checkpoint) -> None:
        """Be at ``checkpoint``, which has a state."""
        assert checkpoint.state is not None
        self._note_begin()
        self._was_loaded, self._iterator = True, None
        self._iterator = iterate_from(self.dataset, checkpoint.state)
        self.samples, self.is_over = checkpoint.samples, False

    def draw_again(self, count: int, page: Page) -> None:
        """Draw ``count`` samples that were drawn before.

        Raises RuntimeError where there are fewer.
        """
        error: BaseException | None = None
        for _ in range(count):
            page.words[ITEM] = self.samples
            try:
                next(self._begun())
            except StopIteration:
                raise RuntimeError(
                    f"iterated anew, the dataset gave only {self.samples} samples: let its __iter__ give the "
                    "same each time, or give it a state_dict and a load_state_dict"
                ) from error
            except BaseException as raised:
                if self._is_interrupt(raised):
                    raise
                error = raised
            self.samples += 1
