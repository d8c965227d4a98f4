"""One epoch of batches that are made in process, when they are asked for. For the rule see delivery."""

from __future__ import annotations

import copy
import time
from typing import Any

from dataloader.delivery import EpochIterator, counts, fit_to_raise, position_after
from dataloader.interrupts import is_interrupt
from dataloader.ledger import Job
from dataloader.random_state import Setter, kept_random_state
from dataloader.recipe import Order, Recipe
from dataloader.review import Review
from dataloader.sample_errors import Failure, Survivors
from dataloader.source import Source
from dataloader.state import Beginning, Bookmark
from dataloader.stateful import has_state
from dataloader.stream_ledger import StreamSource
from dataloader.stream_recipe import StreamRecipe
from dataloader.stream_warnings import StreamWarnings
from dataloader.streams import StreamEnded
from dataloader.watch import Watch
from dataloader.wire import BATCH, END, Result
from supervisor.page import RECORD_BYTES, Page


class InProcessIterator(EpochIterator):
    """Makes each batch when it is asked for, and leaves the user's random state as it was.

    Parameters:
        recipe: how.
        source: of batches of indices, or of this process's stream.
        seed: see Order.
        watch: keeps count.
        review: decides about samples that cannot be loaded, and has the epoch's number.
        bookmark: keeps where the user is; None: nobody will ask.
    """

    def __init__(
        self,
        recipe: Recipe | StreamRecipe,
        source: Source | StreamSource,
        seed: int,
        watch: Watch,
        review: Review,
        bookmark: Bookmark | None = None,
    ) -> None:
        self._recipe = recipe
        self._review = review
        self._source = source
        self._bookmark = bookmark or Bookmark(Beginning(review.epoch, seed))
        self._epoch = source.epoch(seed, review.epoch)
        self._warnings = StreamWarnings.of(self._epoch)
        is_asked = has_state(recipe.dataset) and not self._epoch.has_streams
        self._stateful = recipe.dataset if is_asked else None
        self._page = Page(memoryview(bytearray(RECORD_BYTES)))
        self._watch = watch

    def __next__(self) -> Any:
        tally, bookmark = self._watch.tally, self._bookmark
        while True:
            self._watch.show()
            drawn = self._source.peek()
            if drawn is None:
                self._watch.end()
                bookmark.end(self._source.end_mark())
                raise StopIteration
            job = self._epoch.want_only(*drawn)
            try:
                error = self._make(job)
            except StreamEnded:
                continue
            batch, is_left_out = job.batch, job.is_left_out
            delivered, skipped = counts(tally, job, 0)
            dataset = None if self._stateful is None else copy.deepcopy(self._stateful.state_dict())
            position = position_after(bookmark, job, error, dataset)
            if self._warnings is not None:
                self._warnings.warn(job.number, delivered.items)
            self._source.taken, tally.delivered, tally.skipped = job.number, delivered, skipped
            job.delivered, bookmark.position = True, position
            if error is not None:
                raise error
            if not is_left_out:
                return batch

    def _make(self, job: Job) -> BaseException | None:
        """Make the job's batch; return what is to be raised instead, if anything is."""
        epoch = self._epoch
        order = Order(epoch.seed, epoch.number, job.number, job.indices, place=epoch.place(job, None))
        start_s = time.monotonic()
        try:
            with kept_random_state():
                job.batch = self._recipe.make(order, self._page, Setter())
            self._note(job)
            if not isinstance(job.batch, Survivors):
                job.batch = self._finish(job.batch)
        except StreamEnded:
            epoch.note(job, Result(0, END, None, (), 0), None)
            raise
        except BaseException as error:
            if is_interrupt(error):
                raise
            self._note(job)
            return fit_to_raise(self._review.of_batch(job, error), job)
        finally:
            self._watch.tally.waited_s += time.monotonic() - start_s
        return self._review_failures(job)

    def _note(self, job: Job) -> None:
        """Take note of what came of the stream, where there is one."""
        if self._recipe.news is not None:
            job.result = self._epoch.note(job, Result(0, BATCH, None, (), 0, self._recipe.news), None)

    def _review_failures(self, job: Job) -> BaseException | None:
        if not isinstance(job.batch, Survivors):
            return None
        job.batch, failures = job.batch
        for _, error in failures:
            if is_interrupt(error):
                raise error
        fit = [Failure(at, fit_to_raise(error, job)) for at, error in failures]
        job.batch = self._finish(job.batch)
        return self._review.of_failures(job, fit)

    def _finish(self, batch: Any) -> Any:
        """Return what is delivered of a batch that was made."""
        return batch
