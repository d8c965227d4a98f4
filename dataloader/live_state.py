"""What is running for a loader, and what became of what ran: all that a copy of the loader does not share.

A loader has one such object, made with it. Copying or pickling the loader gives the copy a fresh one, whose
next epoch alone is the same.
"""

from __future__ import annotations

import os
import threading
import weakref

from dataloader.batch_pool import BatchPool
from dataloader.joining import Joiner
from dataloader.resume import Resume
from dataloader.sample_errors import SampleError
from dataloader.state import Bookmark
from dataloader.stats import LoaderStats, Tally, sums
from dataloader.status import WorkerStatus
from dataloader.worker_iterator import WorkerIterator
from supervisor.report import ExitReport


class LiveState:
    """The pools of workers, who uses them, and the figures of all epochs so far.

    Parameters:
        next_epoch: number of the epoch that ``iter()`` begins next.

    Attributes:
        pools: with the iterator that uses each, None where none has yet.
        tallies: of all iterators so far, in order.
        bookmark: of the iterator that was made last.
        resume: the state that was loaded and from which the next epoch is opened; a copy begins there too.
        stated_length: how many samples an iterable dataset was said to have; None: nobody asked.
        warned: what was warned of, of streams.
        joiner: puts batches together that are made in pieces; None: none was yet.
    """

    def __init__(self, next_epoch: int = 0) -> None:
        self.next_epoch = next_epoch
        self.pools: list[tuple[BatchPool, weakref.ref[WorkerIterator] | None]] = []
        self.tallies: list[Tally] = []
        self.bookmark: Bookmark | None = None
        self.resume: Resume | None = None
        self.stated_length: int | None = None
        self.warned: set[str] = set()
        self.joiner: Joiner | None = None
        self._past_worked_s: dict[int, float] = {}
        self._past_reports: list[ExitReport] = []
        self._locks: dict[int, threading.RLock] = {}

    def fresh(self) -> LiveState:
        """Return what a copy of the loader begins with."""
        live = LiveState(self.next_epoch)
        live.resume = self.resume
        return live

    @property
    def lock(self) -> threading.RLock:
        """Held by who begins an epoch or closes. A forked child has its own: nobody there frees the old."""
        return self._locks.setdefault(os.getpid(), threading.RLock())

    def load(self, resume: Resume | None) -> None:
        """Let the next epoch be opened from ``resume``; None: from nothing that was loaded."""
        self.bookmark, self.resume = None, resume
        if resume is not None:
            self.next_epoch = resume.epoch

    def note_opened(self, bookmark: Bookmark) -> None:
        """Take note that an epoch was opened, from ``resume`` if there is one."""
        resume = self.resume
        if resume is not None and resume.is_middle:
            self.next_epoch = resume.next_epoch
        else:
            self.next_epoch += 1
        self.bookmark, self.resume = bookmark, None

    # ---- pools -----------------------------------------------------------------------------------

    def idle_pool(self) -> BatchPool | None:
        """Return a pool that no living iterator uses; close what others are idle."""
        idle = [pool for pool, user in self.pools if user is None or _is_over(user())]
        for pool in idle[1:]:
            self.drop(pool)
        return idle[0] if idle else None

    def add(self, pool: BatchPool) -> BatchPool:
        self.pools.append((pool, None))
        return pool

    def note_user(self, pool: BatchPool, iterator: WorkerIterator) -> None:
        """Take note that ``iterator`` uses ``pool`` from now on."""
        self.pools = [(p, weakref.ref(iterator) if p is pool else user) for p, user in self.pools]

    def drop(self, pool: BatchPool) -> None:
        """Close ``pool``; its figures are kept."""
        pool.close()
        self._past_worked_s = sums(self._past_worked_s, pool.worked_s())
        self._past_reports += pool.reports
        self.pools = [(p, user) for p, user in self.pools if p is not pool]

    def close(self) -> None:
        """End all workers and iterators."""
        with self.lock:
            for pool, user in list(self.pools):
                self.drop(pool)
                iterator = None if user is None else user()
                if iterator is not None:
                    iterator.close()

    # ---- figures ---------------------------------------------------------------------------------

    def new_tally(self) -> Tally:
        """Return the tally of one more iterator."""
        self.tallies.append(Tally())
        return self.tallies[-1]

    def hear(self) -> None:
        """Take in which workers have died and been replaced since somebody last waited for one."""
        for pool, _ in self.pools:
            pool.hear()

    def stats(self) -> LoaderStats:
        delivered = [tally.delivered for tally in self.tallies]
        worked_s = self._past_worked_s
        for pool, _ in self.pools:
            worked_s = sums(worked_s, pool.worked_s())
        return LoaderStats(
            batches=sum(counts.batches for counts in delivered),
            samples=sum(counts.samples for counts in delivered),
            skipped=sum(counts.skipped for counts in delivered),
            bytes=sum(counts.bytes for counts in delivered),
            waited_s=sum(tally.waited_s for tally in self.tallies),
            worked_s=worked_s,
            deaths=self.deaths(),
        )

    @property
    def skipped(self) -> list[SampleError]:
        return [error for tally in self.tallies for error in tally.skipped]

    @property
    def reports(self) -> list[ExitReport]:
        return self._past_reports + [report for pool, _ in self.pools for report in pool.reports]

    def deaths(self) -> int:
        return sum(report.is_death for report in self.reports)

    def workers(self) -> list[WorkerStatus]:
        living = [worker for pool, _ in self.pools for worker in list(pool.workers.values())]
        return sorted((WorkerStatus.of(worker) for worker in living), key=lambda status: status.id)


def _is_over(iterator: WorkerIterator | None) -> bool:
    return iterator is None or iterator.is_over
