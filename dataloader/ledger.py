"""The ledger: which batches are wanted, who has which, and what has come back.

    Job    one batch that is wanted:    open --> leased --> done --> delivered
    Piece  some of its samples, where it is made in pieces: these are leased and done, and the job is when
           all of them are
    Lease  one job, or one piece, in one worker's hands, under a number that is never used again
    Link   one worker: its leases, and what it knows of slots

What is written first and never derived: a link's ``leases``, an epoch's ``jobs``, a job's ``deaths``,
``skips``, ``error``, ``pieces``, ``shared``, ``result`` and ``delivered``. Each changes by one store. All
else (``Job.lease``, ``Epoch.todo``, ``Link.unsent``, a slot's holder) follows from these and is made anew by
``settle`` after an interrupt, so that an exception out of a signal handler can strike between any two stores.

A lease ends by a result or by its worker's certain death. A result without a lease is a duplicate and is
dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from dataloader import suspects
from dataloader.checkpoints import Place
from dataloader.pieces import MAX_PIECES, layout
from dataloader.sample_errors import SampleError
from dataloader.slots import Slot
from dataloader.state import Mark
from dataloader.suspects import Death
from dataloader.wire import ERROR, Result
from supervisor.pool_worker import PoolWorker


class Job:
    """One batch that is wanted.

    Attributes:
        number: of the batch in its epoch.
        indices: of its samples.
        mark: where the sampler was after it; None: it has no state of its own.
        deaths: by pid, of workers that ended while they worked on it.
        skips: by position, the samples that are left out of it; None: all of it.
        error: what is to be raised in its stead, or None; or else it is in ``result``.
        losses: how many of its results did not arrive, for want of descriptors.
        lease: under which it is being made, or None.
        result: what came back, or None.
        slot: where the result lies, or None.
        pieces: in which it is made; none: as a whole.
        shared: the slot into which all pieces write their rows, or None.
        columns: what is to lie there.
        batch: the result, opened.
        delivered: the user has it.
    """

    __slots__ = (
        "batch",
        "columns",
        "deaths",
        "delivered",
        "error",
        "indices",
        "lease",
        "losses",
        "mark",
        "number",
        "pieces",
        "result",
        "shared",
        "skips",
        "slot",
    )

    def __init__(
        self, number: int, indices: Sequence[Any], mark: Mark | None = None, *, in_pieces: bool = False
    ) -> None:
        self.number = number
        self.indices = indices
        self.mark = mark
        self.deaths: dict[int, Death] = {}
        self.skips: dict[int | None, SampleError] = {}
        self.error: BaseException | None = None
        self.losses = 0
        self.lease: Lease | None = None
        self.result: Result | None = None
        self.slot: Slot | None = None
        self.shared: Slot | None = None
        self.columns: bytes | None = None
        self.batch: Any = None
        self.delivered = False
        count = len(layout(len(indices))) if in_pieces else 1
        self.pieces: Sequence[Piece] = [Piece(self, piece) for piece in range(count)] if count > 1 else ()

    @property
    def whole(self) -> Job:
        """The batch that it is, or is a piece of."""
        return self

    @property
    def piece(self) -> int | None:
        """Which piece of its batch it is; None: all of it."""
        return None

    @property
    def round(self) -> int:
        """Whose turn it is, among workers that take turns."""
        return self.number

    @property
    def share(self) -> float:
        """How much of its batch it is."""
        return 1.0

    @property
    def parts(self) -> Sequence[Job]:
        """What is leased to make it: its pieces, or itself."""
        return self.pieces or (self,)

    def sample_at(self, item: int) -> Any:
        """Return the index of the sample in hand, by what a worker's page calls it; None: there is none."""
        return self.indices[item] if 0 <= item < len(self.indices) else None

    @property
    def of_stream(self) -> int | None:
        """Which stream it is a batch of, None: it is one of indices."""
        return None

    @property
    def is_done(self) -> bool:
        if self.result is not None or self.error is not None or self.is_left_out:
            return True
        return bool(self.pieces) and None not in [piece.result for piece in self.pieces]

    @property
    def is_suspect(self) -> bool:
        return bool(self.deaths) and suspects.is_suspect(self.deaths.values())

    def convicted(self, max_attempts: int) -> list[int | None]:
        """Return the positions that are to be decided on: they have ended too many workers."""
        return suspects.convicted(self.deaths.values(), self.skips, max_attempts) if self.deaths else []

    @property
    def moved_bytes(self) -> int:
        if self.result is not None:
            return self.result.moved_bytes
        return sum([piece.result.moved_bytes for piece in self.pieces if piece.result is not None])

    @property
    def has_begun(self) -> bool:
        """Whether some of it is being made, or is done."""
        return True in [part.lease is not None or part.result is not None for part in self.parts]

    @property
    def failure(self) -> Result | None:
        """The result that is an exception, the first if several are; None: there is none."""
        for part in self.parts:
            if part.result is not None and part.result.kind == ERROR:
                return part.result
        return None

    def share_slot(self, slot: Slot | None, columns: bytes) -> None:
        """Have all pieces that are made from now on write their rows into ``slot``."""
        self.columns = columns
        self.shared = slot

    def slots(self) -> list[Slot]:
        """Return the slots that are its own: those of results, and what its pieces share."""
        slots = [part.slot for part in self.parts if part.result is not None and part.slot is not None]
        return slots if self.shared is None else [*slots, self.shared]

    def let_go(self) -> None:
        """Part from slots and pieces, lest they wait for the garbage collector.

        But not from a slot that workers still write into, as they may where something is raised instead of
        the batch: it is held until the last of their leases ends.
        """
        is_at_work = True in [piece.lease is not None for piece in self.pieces]
        for slot in [*[part.slot for part in self.parts], self.shared]:
            if slot is not None and not (is_at_work and slot is self.shared):
                slot.holder = None
        self.pieces = ()
        self.shared = None

    @property
    def skipped_samples(self) -> int:
        return len(self.indices) if None in self.skips else len(self.skips)

    @property
    def is_left_out(self) -> bool:
        """Whether nothing is left of it."""
        return bool(self.skips) and self.skipped_samples == len(self.indices)


class Piece(Job):
    """Some samples of a job, made by one worker. What befalls them is noted on the job."""

    __slots__ = ("_piece", "_whole")

    def __init__(self, whole: Job, piece: int) -> None:
        super().__init__(whole.number, whole.indices)
        self.deaths, self.skips = whole.deaths, whole.skips
        self._whole = whole
        self._piece = piece

    @property
    def whole(self) -> Job:
        return self._whole

    @property
    def piece(self) -> int:
        return self._piece

    @property
    def share(self) -> float:
        return 1 / len(layout(len(self.indices)))

    @property
    def round(self) -> int:
        return self.number * MAX_PIECES + self._piece

    @property
    def is_done(self) -> bool:
        return self.result is not None or self._whole.is_done


class Lease:
    """One job in one worker's hands, with the slot that was lent for it; ``alone``: without other jobs."""

    __slots__ = ("alone", "job", "sent", "seq", "slot")

    def __init__(self, seq: int, job: Job, slot: Slot | None) -> None:
        self.seq = seq
        self.job = job
        self.alone = job.is_suspect
        self.slot = slot
        self.sent = False

    @property
    def holder(self) -> Lease | Job:
        """Who holds the slot: it alone, or all pieces of a batch together."""
        return self.job.whole if self.job.piece is not None else self


class Link:
    """One worker process as the ledger sees it.

    Attributes:
        leases: what it has, by task number.
        unsent: leases whose task has not been sent yet, in order.
        mapped: ids of the slots whose descriptor it has been sent.
        forget: ids of slots that it is still to be told to let go.
        is_full: its pipe had no room when last tried.
        at: (run, turn): where its stream will be after what it has been sent; None: not known.
    """

    __slots__ = ("at", "forget", "is_full", "leases", "mapped", "unsent", "worker")

    def __init__(self, worker: PoolWorker) -> None:
        self.worker = worker
        self.leases: dict[int, Lease] = {}
        self.unsent: deque[Lease] = deque()
        self.mapped: set[int] = set()
        self.forget: set[int] = set()
        self.is_full = False
        self.at: tuple[int, int] | None = None

    @property
    def is_reserved(self) -> bool:
        """Whether it has a job that is to be alone."""
        return True in [lease.alone for lease in self.leases.values()]

    def is_to_map(self, slot: Slot | None) -> bool:
        """Whether it has not been sent the descriptor of ``slot``."""
        return slot is not None and slot.id not in self.mapped


class Epoch:
    """What one iterator wants.

    Attributes:
        seed: the loader's.
        number: of the epoch.
        run: which of its pool's epochs it is.
        max_attempts: how many workers one sample may end.
        has_deaths: a worker has died with a job in hand.
        jobs: by batch number, in order; delivered ones are dropped.
        todo: those, or pieces of them, that are neither leased nor done, in order.
        has_streams: each batch is of a worker's own stream: see stream_ledger.
    """

    has_streams = False

    __slots__ = ("has_deaths", "jobs", "max_attempts", "number", "run", "seed", "todo")

    def __init__(self, seed: int, number: int, max_attempts: int = 1) -> None:
        self.seed = seed
        self.number = number
        self.max_attempts = max_attempts
        self.run = 0
        self.has_deaths = False
        self.jobs: dict[int, Job] = {}
        self.todo: dict[Job, None] = {}

    def add(
        self, number: int, indices: Sequence[Any], mark: Mark | None = None, *, in_pieces: bool = False
    ) -> None:
        """Want a batch. Adding the same again changes nothing."""
        if number not in self.jobs:
            job = self.new_job(number, indices, mark, in_pieces)
            self.jobs[number] = job
            for part in job.parts:
                self.todo[part] = None

    def want_only(self, number: int, indices: Sequence[Any], mark: Mark | None = None) -> Job:
        """Want a batch, and no other; return its job."""
        job = self.new_job(number, indices, mark, False)
        self.jobs = {number: job}
        return job

    def new_job(self, number: int, indices: Sequence[Any], mark: Mark | None, in_pieces: bool) -> Job:
        return Job(number, indices, mark, in_pieces=in_pieces)

    def wants(self, job: Job) -> bool:
        """Whether it, or the batch that it is a piece of, is still to be delivered."""
        whole = job.whole
        return self.jobs.get(job.number) is whole and (job is whole or job in whole.pieces)

    def make_whole(self, job: Job) -> None:
        """Have one worker make a batch of which all pieces had come: it cannot be made of them."""
        job.let_go()
        self.renew_todo()

    def place(self, job: Job, link: Link | None) -> Place | None:
        """Return where in its stream ``job`` is, for the worker of ``link``; None: it is of no stream."""
        return None

    def note_sent(self, link: Link, place: Place) -> None:
        """Take note that the worker of ``link`` was told to make the batch at ``place``."""

    def note(self, job: Job, result: Result, slot: Slot | None) -> Result:
        """Take note of what came of a stream; return the result as it is to be kept.

        Taking note of the same again changes nothing. ``slot``: where the result's buffers are.
        """
        return result

    def drop_delivered(self) -> None:
        """Forget what the user has; its slots are then the user's alone."""
        for number in [number for number, job in self.jobs.items() if job.delivered]:
            self.jobs[number].let_go()  # first: after it nothing waits for the garbage collector
            del self.jobs[number]

    def deliverable(self, *, in_order: bool) -> Job | None:
        """Return the job to deliver next, if it is done."""
        for job in self.jobs.values():
            if job.is_done and not job.delivered:
                return job
            if in_order and not job.delivered:
                return None
        return None

    def settle(self, links: Iterable[Link], slots: Iterable[Slot]) -> None:
        """Derive anew all that follows from leases, jobs and results."""
        for slot in slots:
            slot.holder = None
        for job in self.jobs.values():
            for part in job.parts:
                part.lease = None
        for link in links:
            link.unsent = deque(lease for lease in link.leases.values() if not lease.sent)
            for lease in link.leases.values():
                lease.job.lease = lease
                if lease.slot is not None:
                    lease.slot.holder = lease.holder
        for job in self.jobs.values():  # last: a lease whose result is in may not have been ended yet
            for slot in job.slots():
                slot.holder = job
        self.renew_todo()

    def renew_todo(self) -> None:
        """Derive ``todo`` anew."""
        parts = [part for job in self.jobs.values() for part in job.parts]
        self.todo = dict.fromkeys([part for part in parts if self._is_to_do(part)])

    def _is_to_do(self, job: Job) -> bool:
        if job.lease is not None or job.is_done or job.whole.delivered:
            return False
        return not job.convicted(self.max_attempts)

    def accused(self) -> list[tuple[Job, int | None]]:
        """Return what is to be decided on: jobs, and the position in each that is convicted, None for all."""
        if not self.has_deaths:
            return []
        return [
            (job, position)
            for job in self.jobs.values()
            if job.deaths and not job.is_done and not job.delivered
            for position in job.convicted(self.max_attempts)
        ]


def choose(links: Sequence[Link], job: Job, limit: int) -> Link | None:
    """Return who is to make ``job``, none of ``links`` having more than ``limit`` leases afterwards.

    Round robin while workers keep pace; whoever has least to do when the one whose turn it is has enough. A
    suspect goes to whoever has nothing to do.
    """
    if not links:
        return None
    link = links[job.round % len(links)]
    if len(link.leases) >= limit or job.is_suspect:
        link = least_loaded(links)
    return link if len(link.leases) < (1 if job.is_suspect else limit) else None


def least_loaded(links: Sequence[Link]) -> Link:
    return min(links, key=lambda link: len(link.leases))
