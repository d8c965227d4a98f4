"""Streams: how batches are made of an iterable dataset, the same in a worker and in process.

Each worker has a stream of its own: its copy of the dataset, iterated once an epoch.

    at the batch that is wanted         draw it
    elsewhere: a new epoch              iterate anew, draw
    elsewhere: after a death            iterate from the state that came with the last batch, or iterate anew
                                        and draw again what had been drawn; then draw

The random state is set anew for each batch, from (seed, epoch, stream, which of its batches), also for one
that is drawn again: a stream that draws random numbers on its way gives the same samples then. A sample that
raises is drawn, too: the next draw gives what the iterator gives after that.
"""

from __future__ import annotations

import hashlib
import pickle
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from dataloader import worker_info
from dataloader.arena import Arena
from dataloader.checkpoints import Checkpoint, News, Place
from dataloader.interrupts import is_interrupt
from dataloader.pieces import Seeds, piece_seeds
from dataloader.random_state import Setter
from dataloader.recipe import Collate, Order, collated
from dataloader.sample_errors import Failure, StreamBroken
from dataloader.stream_state import (
    begin_state,
    can_go_on,
    forget_loaded,
    iterate_from,
    load_dataset,
    pack_state,
)
from supervisor.page import ITEM, Page, State


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


class StreamRecipe:
    """An iterable dataset and what makes a batch of its samples. The counterpart of Recipe.

    Parameters:
        dataset: the user's.
        collate: makes the batch; of the one sample itself where ``batch_size`` is None.
        batch_size: samples of a batch, None: single samples.
        drop_last: leave out a last batch that is not full.
        may_skip: a batch of which some samples raised is made of the others: see ``Survivors``.
        is_in_process: there are no workers.

    Attributes:
        news: what is to be told of the stream after ``make``.
    """

    def __init__(
        self,
        dataset: Any,
        collate: Collate,
        batch_size: int | None,
        *,
        drop_last: bool = False,
        may_skip: bool = False,
        is_in_process: bool = False,
    ) -> None:
        self.dataset = dataset
        self.collate = collate
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.may_skip = may_skip
        self.is_in_process = is_in_process
        self.news: News | None = None
        self._stream = Stream(dataset, batch_size or 1, may_skip=may_skip, is_in_process=is_in_process)

    def fresh(self) -> StreamRecipe:
        """Return the same with a stream of its own."""
        return self.with_collate(self.collate)

    def with_collate(self, collate: Collate) -> StreamRecipe:
        """Return the same with another ``collate``, and a stream of its own."""
        return StreamRecipe(
            self.dataset,
            collate,
            self.batch_size,
            drop_last=self.drop_last,
            may_skip=self.may_skip,
            is_in_process=self.is_in_process,
        )

    def named(self, order: Order) -> Order:
        """Return ``order`` with its samples' positions in the stream for indices."""
        news = self.news
        return order if news is None else order._replace(indices=range(news.start, news.start + news.drawn))

    def make(self, order: Order, page: Page, setter: Setter, arena: Arena | None = None) -> Any:
        """Make the batch at ``order.place``, saying on ``page`` where it is.

        Raises:
            StreamEnded: there is none.
            StreamBroken: nor will there be one.
            Exception: what the stream or ``collate`` raises.
        """
        place, stream = order.place, self._stream
        assert place is not None
        page.enter(State.SAMPLE)
        self.news, again = None, None
        try:
            if stream.at != (place.run, place.turn):
                again = self._get_to_or_break(order, place, page, setter)
            setter.set(seeds(order, place, place.turn))
            return self._make(order, place, page, again, arena)
        finally:
            setter.end()

    def _make(
        self, order: Order, place: Place, page: Page, again: tuple[int, float] | None, arena: Arena | None
    ) -> Any:
        stream = self._stream
        start = stream.samples
        samples, failures, error = stream.draw(place, page)
        fingerprint = None if place.turn else _fingerprint(samples)
        self._note(start, again, fingerprint)
        if error is not None:
            raise error
        if stream.is_over and self._has_too_few(samples, failures):
            raise StreamEnded
        if self.batch_size is None and samples:
            samples = samples[0]
        return collated(self.collate, samples, self.named(order), failures, page, arena)

    def _note(self, start: int, again: tuple[int, float] | None, fingerprint: bytes | None) -> None:
        """Have news of the batch that was drawn."""
        stream = self._stream
        self.news = News(start, stream.samples - start, stream.is_over, None, again, fingerprint)
        try:
            self.news = self.news._replace(state=stream.state())
        except BaseException as error:
            if self.is_in_process and is_interrupt(error):
                raise
            raise self._broken(start, "its state_dict() raised") from error

    def _broken(self, start: int, why: str) -> StreamBroken:
        """End the stream, which was at sample ``start``; return what is to be raised."""
        stream = self._stream
        stream.is_over = True
        self.news = News(start, stream.samples - start, is_last=True)
        return StreamBroken(f"the stream cannot go on after {start} samples: {why}")

    def _has_too_few(self, samples: list[Any], failures: list[Failure]) -> bool:
        count = len(samples) + len(failures)
        return count == 0 or (self.drop_last and count < self._stream.size)

    # ---- getting there ---------------------------------------------------------------------------

    def _get_to_or_break(
        self, order: Order, place: Place, page: Page, setter: Setter
    ) -> tuple[int, float] | None:
        try:
            return self._get_to(order, place, page, setter)
        except BaseException as error:
            if self.is_in_process and is_interrupt(error):
                raise
            self._stream.samples = 0 if place.resume is None else place.resume.samples
            self._stream.at = (place.run, place.turn + 1)
            raise self._broken(self._stream.samples, "it could not be brought back there") from error

    def _get_to(self, order: Order, place: Place, page: Page, setter: Setter) -> tuple[int, float] | None:
        """Have the stream be at ``place``; return how many samples were drawn again, and in what time."""
        stream, checkpoint = self._stream, place.resume
        assert checkpoint is not None, f"a stream that is at {stream.at} is asked for {place}"
        start_s, start = time.monotonic(), 0
        stream.at = None
        if checkpoint.state is not None:
            setter.set(seeds(order, place, checkpoint.batches))
            stream.go_on_from(checkpoint)
            start = stream.samples
        else:
            stream.rewind()
            self._draw_known_again(order, place, checkpoint, page, setter)
        self._draw_unknown_again(order, place, checkpoint, page, setter)
        stream.at = (place.run, place.turn)
        page.begin(page.task)
        drawn = stream.samples - start
        return (drawn, time.monotonic() - start_s) if drawn else None

    def _draw_known_again(
        self, order: Order, place: Place, checkpoint: Checkpoint, page: Page, setter: Setter
    ) -> None:
        odd = dict(checkpoint.odd)
        for turn in range(checkpoint.batches):
            self._begin_again(order, place, turn, page, setter)
            self._stream.draw_again(odd.get(turn, self._stream.size), page)

    def _draw_unknown_again(
        self, order: Order, place: Place, checkpoint: Checkpoint, page: Page, setter: Setter
    ) -> None:
        """Draw batches that the consumer knows nothing of, for it has lost what was told of them."""
        for turn in range(checkpoint.batches, place.turn):
            self._begin_again(order, place, turn, page, setter)
            self._stream.draw(place, page)

    def _begin_again(self, order: Order, place: Place, turn: int, page: Page, setter: Setter) -> None:
        page.begin(page.task)  # a batch that is drawn again has a batch's time
        setter.end()
        setter.set(seeds(order, place, turn))


def seeds(order: Order, place: Place, turn: int) -> Seeds:
    """Return the seeds of one batch of a stream."""
    return piece_seeds(order.seed, order.epoch, turn, 0, (place.stream,))


def _fingerprint(samples: list[Any]) -> bytes | None:
    """Return what tells these samples from others, unless the stream knows which worker it is in."""
    if not samples or worker_info.was_asked() or not worker_info.is_worker():
        return None
    try:
        return hashlib.blake2b(pickle.dumps(samples, 5), digest_size=16).digest()
    except Exception:
        return None
