"""One epoch of batches that workers make: handed out, waited for, opened. For the rule see delivery."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from dataloader.batch_pool import BatchPool
from dataloader.delivery import EpochIterator, counts, position_after
from dataloader.interrupts import is_interrupt
from dataloader.joining import Joiner
from dataloader.ledger import Job
from dataloader.pace import Pace
from dataloader.pieces import NotInPieces
from dataloader.review import Review
from dataloader.sample_errors import Failure, Survivors
from dataloader.source import Drawn, Source
from dataloader.state import Beginning, Bookmark
from dataloader.stream_ledger import StreamSource
from dataloader.stream_warnings import StreamWarnings
from dataloader.suspects import reports_at
from dataloader.watch import Watch
from supervisor import exceptions
from supervisor.waiting import NotRunning

CLOSED = "the DataLoader was closed in the middle of this epoch: iterate over it anew"


class WorkerIterator(EpochIterator):
    """Hands out to workers, and delivers what they make.

    Parameters:
        pool: whose workers run, and work for nobody else.
        source: of batches of indices, or of the workers' streams.
        seed: see Order.
        pace: how many batches may be ahead of the user.
        in_order: deliver in the order of ``batches``, not of completion.
        keep_workers: let the workers live on when the iterator is used up or dropped.
        watch: keeps count.
        review: decides about samples that cannot be loaded, and has the epoch's number.
        bookmark: keeps where the user is; None: nobody will ask.
        joiner: puts together what is made in pieces; None: nothing is.
    """

    def __init__(
        self,
        pool: BatchPool,
        source: Source | StreamSource,
        *,
        seed: int,
        pace: Pace,
        in_order: bool,
        keep_workers: bool,
        watch: Watch,
        review: Review,
        bookmark: Bookmark | None = None,
        joiner: Joiner | None = None,
    ) -> None:
        self._pool: BatchPool | None = pool
        self._epoch = source.epoch(seed, review.epoch, review.max_attempts)
        self._warnings = StreamWarnings.of(self._epoch)
        self._review = review
        self._source = source
        self._bookmark = bookmark or Bookmark(Beginning(review.epoch, seed))
        self._pace = pace
        self._joiner = joiner
        self._in_order = in_order
        self._keep_workers = keep_workers
        # Without a word from us, for a dropped iterator can say none, the supervisor stops the workers.
        self._lifeline = None if keep_workers else pool.lifeline
        self._watch = watch
        self._sampler_error: Exception | None = None
        self._interrupted = False
        self._was_closed = False
        if not keep_workers:
            pool.lifeline = None
        pool.begin(self._epoch)
        self._fill_window()
        pool.assign(pace.tasks(is_waiting=False))

    def __next__(self) -> Any:
        pool = self._pool
        if pool is None:
            raise RuntimeError(CLOSED) if self._was_closed else StopIteration
        pool.require_ours()
        if self._pace.in_pieces:
            self._pace.note_call()
        with pool.turn:
            job, error = self._next_job(pool)
        if self._pace.in_pieces:
            self._pace.note_return()
        tally, bookmark = self._watch.tally, self._bookmark
        batch, delivered, skipped = job.batch, *counts(tally, job, job.moved_bytes)
        position = position_after(bookmark, job, error)
        self._interrupted = False
        if error is not None:
            job.delivered, tally.delivered, tally.skipped = True, delivered, skipped
            bookmark.position = position
            raise error
        job.delivered, tally.delivered, tally.skipped = True, delivered, skipped
        bookmark.position = position
        return batch

    def _next_job(self, pool: BatchPool) -> tuple[Job, BaseException | None]:
        """Make the next job ready to be delivered; return it, and the exception that is to be raised for it.

        Raises StopIteration when all are delivered.
        """
        if self._interrupted:
            pool.settle()
            self._source.taken = max(self._source.taken, *self._epoch.jobs, -1)  # before any is delivered
        self._interrupted = True
        while True:
            self._watch.show()
            self._epoch.drop_delivered()
            job = self._wait_for_job(pool)
            if job is None:
                self._end(pool)
                raise StopIteration
            self._look_at_pace(pool)
            self._fill_window()
            if self._pace.is_time_for(len(self._epoch.todo)):
                pool.assign(self._pace.tasks(is_waiting=False))
            try:
                error = self._open(pool, job)
            except NotInPieces:
                self._make_whole(pool, job)
                continue
            if self._warnings is not None:
                self._warnings.warn(job.number, self._watch.tally.delivered.items + len(job.indices))
            if error is not None or not job.is_left_out:
                return job, error
            tally = self._watch.tally
            delivered, skipped = counts(tally, job, job.moved_bytes)
            position = position_after(self._bookmark, job, error)
            job.delivered, tally.delivered, tally.skipped = True, delivered, skipped
            self._bookmark.position = position

    def _wait_for_job(self, pool: BatchPool) -> Job | None:
        """Return the job to deliver next, or None when all are delivered."""
        while True:
            job = self._epoch.deliverable(in_order=self._in_order)
            if job is not None:
                return job
            self._fill_window()
            if not self._epoch.jobs:
                self._raise_sampler_error()
                return None
            pool.raise_if_broken()
            if self._judge(pool):
                continue
            if pool.has_idle_worker or self._pace.is_time_for(len(self._epoch.todo)):
                pool.assign(self._pace.tasks(is_waiting=True))
            self._wait(pool)

    def _wait(self, pool: BatchPool) -> None:
        start_s = time.monotonic()
        try:
            pool.step(None)
        except NotRunning:
            raise RuntimeError(CLOSED) from None
        self._watch.tally.waited_s += time.monotonic() - start_s

    def _look_at_pace(self, pool: BatchPool) -> None:
        delivered = self._watch.tally.delivered
        if self._pace.wants_look(delivered.batches):
            self._pace.look(delivered.batches, sum(pool.worked_s().values()), delivered.bytes)
        if self._joiner is not None and self._pace.wants_judgement(delivered.batches):
            self._pace.judge(delivered.batches, pool.worked_s_per_batch(), self._joiner.join_s)
            pool.in_pieces = self._pace.in_pieces

    def _make_whole(self, pool: BatchPool, job: Job) -> None:
        """Have one worker make a batch that cannot be put together; and all, if none can."""
        assert self._joiner is not None
        is_in_vain = self._joiner.is_in_vain(job)
        self._epoch.make_whole(job)
        if is_in_vain:
            self._pace.make_whole()
            self._joiner.gave_up = True

    @property
    def _next_in_pieces(self) -> bool:
        """Whether the next batch is made in pieces: the first one is, on trial."""
        in_pieces = self._pace.in_pieces
        if in_pieces is None:
            in_pieces = not self._epoch.jobs
        return in_pieces and self._joiner is not None

    def _fill_window(self) -> None:
        while len(self._epoch.jobs) <= self._pace.ahead and self._sampler_error is None:
            drawn = self._draw()
            if drawn is None:
                return
            self._epoch.add(*drawn, in_pieces=self._next_in_pieces)
            self._source.taken = drawn.number

    def _draw(self) -> Drawn | None:
        """Return the next batch of indices, None at the end or where the sampler raised."""
        try:
            return self._source.peek()
        except Exception as error:
            if is_interrupt(error):
                raise
            self._sampler_error = error
            return None

    def _raise_sampler_error(self) -> None:
        """Raise what the sampler raised, once, now that all batches before it are delivered."""
        if self._sampler_error is not None:
            error, self._sampler_error = self._sampler_error, None
            raise error

    def _judge(self, pool: BatchPool) -> bool:
        """Decide about what has ended too many workers; return whether there was anything."""
        accused = pool.accused()
        for job, position in accused:
            if not job.is_done:
                self._review.of_accused(job, position, reports_at(job.deaths.values(), position))
                pool.settle_accusation(job)
        return bool(accused)

    def _open(self, pool: BatchPool, job: Job) -> BaseException | None:
        """Open the job's batch; return the exception instead where it is one, or cannot be opened."""
        if job.error is not None or job.is_left_out:
            return job.error
        failure = job.failure
        if failure is not None:
            assert failure.body is not None
            return self._review.of_batch(job, exceptions.unpack(failure.body, is_interrupt))
        failures: Sequence[Failure] = ()
        try:
            batch = self._joiner.join(pool, job) if self._joiner and job.pieces else pool.open_batch(job)
            if isinstance(batch, Survivors):
                batch, failures = batch
            job.batch = self._finish(batch)
        except NotInPieces:
            raise
        except Exception as error:
            if is_interrupt(error):
                raise
            return self._review.of_batch(job, error)
        if failures:
            unpacked = [Failure(at, exceptions.unpack(error, is_interrupt)) for at, error in failures]
            return self._review.of_failures(job, unpacked)
        return None

    def _finish(self, batch: Any) -> Any:
        """Return what is delivered of a batch that has arrived."""
        return batch

    @property
    def is_over(self) -> bool:
        """Whether it has delivered everything, or was closed."""
        return self._pool is None

    def close(self) -> None:
        """Deliver nothing more: ``next()`` raises, unless all had been delivered."""
        pool = self._pool
        if pool is None:
            return
        with pool.turn:  # not while another thread is in next()
            self._was_closed, self._pool = self._pool is not None, None
            self._watch.end()

    def _end(self, pool: BatchPool) -> None:
        self._watch.end()
        self._bookmark.end(self._source.end_mark())
        if not self._keep_workers:
            pool.stop()
        self._lifeline = None
        self._pool = None
