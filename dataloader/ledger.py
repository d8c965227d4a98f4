"""The ledger: which batches are wanted, who has which, and what has come back.

    Job    one batch that is wanted:    open --> leased --> done --> delivered
    Lease  one job in one worker's hands, under a number that is never used again
    Link   one worker: its leases, and what it knows of slots

What is written first and never derived: a link's ``leases``, an epoch's ``jobs``, a job's ``result`` and
``delivered``. Each changes by one store. All else (``Job.lease``, ``Epoch.todo``, ``Link.unsent``, a slot's
holder) follows from these and is made anew by ``settle`` after an interrupt, so that an exception out of a
signal handler can strike between any two stores.

A lease ends by a result or by its worker's certain death. A result without a lease is a duplicate and is
dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from dataloader.slots import Slot
from dataloader.wire import Result
from supervisor.pool_worker import PoolWorker


class Job:
    """One batch that is wanted.

    Attributes:
        number: of the batch in its epoch.
        indices: of its samples.
        attempts: how many workers have ended while they worked on it.
        losses: how many of its results did not arrive, for want of descriptors.
        lease: under which it is being made, or None.
        result: what came back, or None.
        slot: where the result lies, or None.
        batch: the result, opened.
        delivered: the user has it.
    """

    __slots__ = ("attempts", "batch", "delivered", "indices", "lease", "losses", "number", "result", "slot")

    def __init__(self, number: int, indices: Sequence[Any]) -> None:
        self.number = number
        self.indices = indices
        self.attempts = 0
        self.losses = 0
        self.lease: Lease | None = None
        self.result: Result | None = None
        self.slot: Slot | None = None
        self.batch: Any = None
        self.delivered = False


class Lease:
    """One job in one worker's hands, with the slot that was lent for it."""

    __slots__ = ("job", "sent", "seq", "slot")

    def __init__(self, seq: int, job: Job, slot: Slot | None) -> None:
        self.seq = seq
        self.job = job
        self.slot = slot
        self.sent = False


class Link:
    """One worker process as the ledger sees it.

    Attributes:
        leases: what it has, by task number.
        unsent: leases whose task has not been sent yet, in order.
        mapped: ids of the slots whose descriptor it has been sent.
        forget: ids of slots that it is still to be told to let go.
        is_full: its pipe had no room when last tried.
    """

    __slots__ = ("forget", "is_full", "leases", "mapped", "unsent", "worker")

    def __init__(self, worker: PoolWorker) -> None:
        self.worker = worker
        self.leases: dict[int, Lease] = {}
        self.unsent: deque[Lease] = deque()
        self.mapped: set[int] = set()
        self.forget: set[int] = set()
        self.is_full = False


class Epoch:
    """What one iterator wants.

    Attributes:
        seed: the loader's.
        number: of the epoch.
        jobs: by batch number, in order; delivered ones are dropped.
        todo: those that are neither leased nor done, in order.
    """

    __slots__ = ("jobs", "number", "seed", "todo")

    def __init__(self, seed: int, number: int) -> None:
        self.seed = seed
        self.number = number
        self.jobs: dict[int, Job] = {}
        self.todo: dict[int, Job] = {}

    def add(self, number: int, indices: Sequence[Any]) -> None:
        """Want a batch. Adding the same again changes nothing."""
        if number not in self.jobs:
            job = Job(number, indices)
            self.jobs[number] = self.todo[number] = job

    def drop_delivered(self) -> None:
        """Forget what the user has; its slots are then the user's alone."""
        for number in [number for number, job in self.jobs.items() if job.delivered]:
            slot = self.jobs[number].slot
            if slot is not None:
                slot.holder = None
            del self.jobs[number]

    def deliverable(self, *, in_order: bool) -> Job | None:
        """Return the job to deliver next, if it is done."""
        for job in self.jobs.values():
            if job.result is not None and not job.delivered:
                return job
            if in_order and not job.delivered:
                return None
        return None

    def settle(self, links: Iterable[Link], slots: Iterable[Slot]) -> None:
        """Derive anew all that follows from leases, jobs and results."""
        for slot in slots:
            slot.holder = None
        for job in self.jobs.values():
            job.lease = None
        for link in links:
            link.unsent = deque(lease for lease in link.leases.values() if not lease.sent)
            for lease in link.leases.values():
                lease.job.lease = lease
                if lease.slot is not None:
                    lease.slot.holder = lease
        for job in self.jobs.values():  # last: a lease whose result is in may not have been ended yet
            if job.result is not None and job.slot is not None:
                job.slot.holder = job
        self.renew_todo()

    def renew_todo(self) -> None:
        """Derive ``todo`` anew."""
        self.todo = {
            number: job for number, job in self.jobs.items() if job.lease is None and job.result is None
        }


def choose(links: Sequence[Link], number: int, limit: int) -> Link | None:
    """Return who is to make batch ``number``, none of ``links`` having more than ``limit`` leases afterwards.

    Round robin while workers keep pace; whoever has least to do when the one whose turn it is has enough.
    """
    if not links:
        return None
    link = links[number % len(links)]
    if len(link.leases) >= limit:
        link = min(links, key=_load)
    return link if len(link.leases) < limit else None


def _load(link: Link) -> int:
    return len(link.leases)
