"""How batches are made of an iterable dataset, the same in a worker and in process.

Each worker has a stream of its own: its copy of the dataset, iterated once an epoch.

    at the batch that is wanted         draw it
    elsewhere: a new epoch              iterate anew, draw
    elsewhere: after a death            iterate from the state that came with the last batch, or iterate anew
                                        and draw again what had been drawn; then draw

The random state is set anew for each batch, from (seed, epoch, stream, which of its batches), also for one
that is drawn again: a stream that draws random numbers on its way gives the same samples then.
"""

from __future__ import annotations

import hashlib
import pickle
import time
from typing import Any

from dataloader import worker_info
from dataloader.arena import Arena
from dataloader.checkpoints import Checkpoint, News, Place
from dataloader.interrupts import is_interrupt
from dataloader.pieces import Seeds, piece_seeds
from dataloader.random_state import Setter
from dataloader.recipe import Collate, Order, collated
from dataloader.rows import NoRows, Rows
from dataloader.sample_errors import Failure, StreamBroken
from dataloader.streams import Stream, StreamEnded
from supervisor.page import Page, State


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

    def with_collate(self, collate: Collate, rows: type[Rows] = NoRows) -> StreamRecipe:
        """Return the same with another ``collate``, and a stream of its own, whose samples are no rows."""
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
        if arena is not None:
            arena.clear()
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
