"""A pool of workers that make batches: hands out tasks, takes results, hands out again what the dead had.

Everything here can be interrupted by an exception out of a signal handler and goes on afterwards: see
ledger for what is stored and what is derived. A message stays in its inbox until it has been dealt with,
and dealing with it twice is the same as once.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
from collections.abc import Sequence
from typing import Any

from dataloader import ledger, wire
from dataloader.ledger import Epoch, Job, Lease, Link
from dataloader.recipe import Order, sample_place
from dataloader.review import KIND
from dataloader.slots import Slot, SlotPool
from dataloader.suspects import Death
from dataloader.wire import BATCH, END, Result, Task
from dataloader.wire import CANCELLED as WAS_CANCELLED
from supervisor.channel import MessageLost, Raw, opened
from supervisor.messages import Slow
from supervisor.page import CANCELLED, SENT
from supervisor.policy import RestartPolicy
from supervisor.pool import WorkerPool
from supervisor.pool_worker import PoolWorker
from supervisor.report import ExitReport
from supervisor.verdict import ExitReason

MAX_LOSSES = 3
MAX_TOGETHER = 2048  # samples of the tasks in one message: few enough for it not to need a memory file
RESULTS_PER_TRIM = 32  # batches that became smaller bring no new slots


class BatchPool(WorkerPool):
    """Workers, and the slots and leases between them and the consumer.

    Parameters:
        num_workers, start_method, policy, others: see WorkerPool.
        prefetch: how many batches each worker may have at a time.

    Attributes:
        settings: all of these, by name.
    """

    def __init__(
        self,
        num_workers: int,
        start_method: str,
        policy: RestartPolicy | None,
        prefetch: int,
        **others: Any,
    ) -> None:
        super().__init__(num_workers, start_method=start_method, policy=policy, kind=KIND, **others)
        self.settings = {
            "num_workers": num_workers,
            "start_method": start_method,
            "policy": policy,
            "prefetch": prefetch,
            **others,
        }
        self._slots = SlotPool(in_flight=num_workers * prefetch + 1)
        self._links: dict[int, Link] = {}  # by pid
        self._seqs = itertools.count()
        self._epoch = Epoch(0, 0)
        self._wants_trim = False
        self._columns: bytes | None = None  # of the rows in the last batch that was made in pieces
        self._begun_s = 0.0  # that workers had worked before this epoch
        self.batches_done = 0.0  # whose results arrived; of a piece, its share
        self.in_pieces: bool | None = None  # whether batches are made so; None: not known what is better
        self.has_raised = False  # what broke it

    def begin(self, epoch: Epoch) -> None:
        """Work for ``epoch`` from now on; workers skip what they still have of another."""
        newest = next(self._seqs)
        for worker in self.workers.values():
            worker.page.words[CANCELLED] = newest
        self._let_go()
        epoch.run = newest
        self._epoch = epoch
        self.batches_done, self._begun_s = 0.0, sum(self.worked_s().values())
        living = {worker.pid for worker in self.workers.values()}
        self._links = {pid: link for pid, link in self._links.items() if pid in living}
        self.settle()

    @property
    def epoch(self) -> Epoch:
        """What it works for, or did last."""
        return self._epoch

    def worked_s(self) -> dict[int, float]:
        """Return how long the workers of each id have worked on what they completed."""
        return {worker: self._pages.page(worker).worked_s for worker in range(self.num_workers)}

    def worked_s_per_batch(self) -> float:
        """Return how long workers have worked on a batch, on average since ``begin``."""
        worked_s = sum(self.worked_s().values()) - self._begun_s
        return worked_s / self.batches_done if self.batches_done else 0.0

    def close(self) -> None:
        super().close()
        self._let_go()

    def _let_go(self) -> None:
        """Part jobs, leases and slots, lest slots wait for the garbage collector."""
        for job in self._epoch.jobs.values():
            for part in job.parts:
                part.lease = None
            job.let_go()
        for slot in self._slots:
            slot.holder = None

    def settle(self) -> None:
        """Put everything right after an interrupt, and take in what had arrived before it."""
        self._epoch.settle(self._links.values(), self._slots)
        self._take_all()

    # ---- out -------------------------------------------------------------------------------------

    def assign(self, limit: int) -> None:
        """Hand out what is to be made, at most ``limit`` batches to a worker."""
        todo = self._epoch.todo
        if not todo:
            return
        links = [self._link(self.workers[worker]) for worker in sorted(self.workers)]
        links = [link for link in links if not link.is_reserved]
        if self._epoch.has_streams:
            self._assign_to_owners(links, limit)
        else:
            self._assign_to_any(links.copy(), limit)
        for link in links:
            if link.unsent:
                self._send_unsent(link)

    @property
    def has_idle_worker(self) -> bool:
        """Whether a worker has no task at all."""
        busy = {pid for pid, link in self._links.items() if link.leases}
        return not busy.issuperset([worker.pid for worker in self.workers.values()])

    def _assign_to_any(self, links: list[Link], limit: int) -> None:
        """Hand out batches of indices, in order."""
        todo = self._epoch.todo
        for job in list(todo):
            link = ledger.choose(links, job, 1 if self._is_to_learn(job) else limit)
            if self._has_too_many_at_work() or (link is None and not (job.is_suspect and links)):
                return
            if link is None:
                links.remove(
                    min(links, key=lambda link: len(link.leases))
                )  # it gets no more until it is empty
                continue
            self._lease(job, link)
            todo.pop(job, None)
            if job.is_suspect:
                links.remove(link)

    def _assign_to_owners(self, links: Sequence[Link], limit: int) -> None:
        """Hand out batches of streams, each to the worker whose stream it is, in order."""
        accused = {job.of_stream for job, _ in self._epoch.accused()}
        owners = {link.worker.worker: link for link in links if link.worker.worker not in accused}
        for job in list(self._epoch.todo):
            assert job.of_stream is not None
            link = owners.get(job.of_stream)
            if link is None:
                continue
            if len(link.leases) >= (1 if job.is_suspect else limit):
                del owners[job.of_stream]  # nor is it to get what comes after
                continue
            if self._has_too_many_at_work():
                return
            self._lease(job, link)
            self._epoch.todo.pop(job, None)
            if job.is_suspect:
                del owners[job.of_stream]

    def _link(self, worker: PoolWorker) -> Link:
        link = self._links.get(worker.pid)
        if link is None:
            link = self._links[worker.pid] = Link(worker)
        return link

    def _has_too_many_at_work(self) -> bool:
        """Whether there may be no descriptor for the result of another task."""
        if not self._slots.expects_new:
            return False
        leases = [lease for link in self._links.values() for lease in link.leases.values()]
        return bool(leases) and not self._slots.has_room_for(1 + sum(lease.slot is None for lease in leases))

    def _lease(self, job: Job, link: Link) -> None:
        lease = Lease(next(self._seqs), job, self._slot_for(job))
        link.leases[lease.seq] = lease
        job.lease = lease
        if lease.slot is not None:
            lease.slot.holder = lease.holder
        link.unsent.append(lease)

    def _is_to_learn(self, job: Job) -> bool:
        """Whether it is better to wait until the first piece has shown where the rows of others may lie."""
        return job.piece is not None and self._columns is None and not self.batches_done

    def _slot_for(self, job: Job) -> Slot | None:
        """Return a slot to lend: to all pieces of a batch the same, once it is known where their rows lie."""
        if job.piece is None or self._columns is None:
            return self._slots.pick()
        whole = job.whole
        if whole.shared is None and not whole.has_begun:
            whole.share_slot(self._slots.pick(), self._columns)
        return whole.shared or self._slots.pick()

    def _send_unsent(self, link: Link) -> None:
        while link.unsent:
            leases = self._next_to_send(link)
            if not self._send_tasks(link, leases):
                link.is_full = True
                self.poll_for_room(link.worker, wanted=True)
                return
            for _ in leases:
                link.unsent.popleft()
        if link.is_full:
            link.is_full = False
            self.poll_for_room(link.worker, wanted=False)

    def _next_to_send(self, link: Link) -> list[Lease]:
        """Return what goes into the next message: several, where they are small and bring nothing along.

        Nor of streams: where one is in its stream is known when what comes before it is sent.
        """
        leases: list[Lease] = []
        samples = 0
        for lease in link.unsent:
            samples += len(lease.job.indices)
            goes_alone = self._epoch.has_streams or samples > MAX_TOGETHER or link.is_to_map(lease.slot)
            if not (leases and goes_alone):
                leases.append(lease)
            if goes_alone:
                break
        return leases

    def _send_tasks(self, link: Link, leases: Sequence[Lease]) -> bool:
        """Send tasks if there is room. An interrupt may have them sent again; the worker drops the second."""
        tasks = [self._task(lease, link) for lease in leases]
        data, owner = wire.encode_tasks(tasks)
        descriptors = [lease.slot.fd for lease in leases if lease.slot and link.is_to_map(lease.slot)]
        if owner is not None:
            descriptors.append(owner.fileno())
        try:
            sent = link.worker.pipe.try_send(data, descriptors)
        except BrokenPipeError:
            return True  # its death will be told, and the leases end with it
        if sent:
            for lease, task in zip(leases, tasks, strict=True):
                self._note_sent(link, lease, task.order)
            if link.forget:
                link.mapped -= link.forget
                link.forget.clear()
        return sent

    def _note_sent(self, link: Link, lease: Lease, order: Order) -> None:
        lease.sent = True
        if order.place is not None:
            self._epoch.note_sent(link, order.place)
        link.worker.page.words[SENT] = lease.seq
        if lease.slot is not None:
            link.mapped.add(lease.slot.id)

    def _task(self, lease: Lease, link: Link) -> Task:
        slot = lease.slot
        lent = None if slot is None else (slot.id, slot.size_bytes)
        order, is_to_map = self._order(lease.job, link), link.is_to_map(slot)
        whole = lease.job.whole
        columns = whole.columns if slot is not None and slot is whole.shared else None
        return Task(lease.seq, order, lent, is_to_map, tuple(link.forget), columns)

    def _order(self, job: Job, link: Link | None = None) -> Order:
        epoch = self._epoch
        skip = tuple(position for position in job.skips if position is not None) if job.skips else ()
        place = epoch.place(job, link) if epoch.has_streams else None
        return Order(epoch.seed, epoch.number, job.number, job.indices, skip, job.piece, place)

    # ---- back ------------------------------------------------------------------------------------

    def step(self, timeout_s: float | None) -> None:
        """Send what is waiting, wait for something to arrive, and take it in."""
        for link in list(self._links.values()):
            if link.unsent:
                self._send_unsent(link)
        self.wait(timeout_s)
        self._take_all()

    def _take_all(self) -> None:
        for worker in list(self.workers.values()):
            if worker.pipe.inbox:
                self._take_results(self._link(worker))

    def _take_results(self, link: Link) -> None:
        inbox = link.worker.pipe.inbox
        while inbox:
            self._take_message(link, inbox[0])
            inbox.popleft()
            if self._wants_trim:  # not before: it may let go of the slot that this very message brought
                self._trim()

    def _take_message(self, link: Link, raw: Raw) -> None:
        try:
            results, slot = self._unpack(raw)
        except MessageLost as error:
            (result,) = wire.decode_results(raw[0])  # what brings a descriptor comes alone
            self._take_lost(link, result.seq, error)
            return
        for result in results:
            self._take_result(link, result, slot)

    def _take_result(self, link: Link, result: Result, slot: Slot | None) -> None:
        """Take a result in, and the slot that it brought, if it did."""
        self._wants_trim = self._wants_trim or slot is not None or result.seq % RESULTS_PER_TRIM == 0
        lease = link.leases.get(result.seq)
        if lease is None:
            return
        used_bytes = result.used_bytes if result.spans or result.news is not None else 0
        if slot is None and result.spans:
            slot = lease.slot
        if self._epoch.has_streams and self._epoch.wants(lease.job):
            result = self._epoch.note(lease.job, result, slot or lease.slot)
        self._end_lease(link, lease, None if result.kind in (WAS_CANCELLED, END) else result, slot)
        if result.kind == BATCH:
            self._slots.expects_new = bool(result.spans)
            self.batches_done += lease.job.share
            if result.columns is not None:
                self._columns = result.columns
        if used_bytes:
            self._slots.note_use(used_bytes)

    def _unpack(self, raw: Raw) -> tuple[list[Result], Slot | None]:
        """Return the results in a message, and the slot that came with the only one, now the pool's."""
        data, descriptors = opened(raw)
        results = wire.decode_results(data)
        return results, self._slots.adopt(descriptors[0], results[0].made_bytes) if descriptors else None

    def _end_lease(self, link: Link, lease: Lease, result: Any, slot: Any) -> None:
        job = lease.job
        is_wanted = self._epoch.wants(job)
        is_its_batchs = is_wanted and job.piece is not None and lease.slot in job.whole.slots()
        if lease.slot is not None and not is_its_batchs:
            self._return_slot(lease)
        if result is not None and job.result is None and is_wanted:
            if slot is not None:
                slot.holder = job.whole
            job.slot = slot
            if slot is not None and result.columns is not None and job.whole.shared is None:
                job.whole.share_slot(slot, result.columns)
            job.result = result
            if job.deaths and job.whole.is_done:
                self._judge_deaths(job)
        job.lease = None
        del link.leases[lease.seq]

    def _return_slot(self, lease: Lease) -> None:
        """Take a slot back from a worker, unless others still write pieces of the same batch into it."""
        slot = lease.slot
        if slot is None or slot.holder is not lease.holder:
            return
        if lease.job.piece is not None:
            leases = [other for link in self._links.values() for other in link.leases.values()]
            if True in [other.slot is slot and other is not lease for other in leases]:
                return
        slot.holder = None

    def _take_lost(self, link: Link, seq: int, error: MessageLost) -> None:
        """Lease again what did not arrive, unless it never will."""
        lease = link.leases.get(seq)
        if lease is None:
            return
        lease.job.losses += 1
        if lease.job.losses > MAX_LOSSES:
            raise OSError(errno.EMFILE, f"batch {lease.job.number} does not arrive: {error}")
        self._end_lease(link, lease, None, None)
        self._epoch.renew_todo()

    def _trim(self) -> None:
        self._wants_trim = False
        self._forget(self._slots.trim())

    def _forget(self, dropped: Sequence[int]) -> None:
        """Have workers let go of slots, by id, that are no more."""
        for link in self._links.values():
            link.forget.update(link.mapped.intersection(dropped))

    def open_batch(self, job: Job) -> Any:
        """Return what was made for ``job``: views of its slot, or copies where the user holds too many."""
        assert job.result is not None
        copy = job.slot is not None and self._slots.wants_copy()
        return wire.open_batch(job.number, job.result, job.slot, copy=copy)

    def open_pieces(self, job: Job) -> tuple[list[Any], memoryview | None]:
        """Return what was made of each piece, and the slot that they share; None: it is not to be used."""
        copy = self._slots.wants_copy()
        views: dict[Slot | None, memoryview | None] = {None: None}
        opened = []
        for piece in job.pieces:
            assert piece.result is not None
            if piece.slot is not None and piece.slot not in views:
                views[piece.slot] = piece.slot.view()
            opened.append(wire.open_in(job.number, piece.result, views[piece.slot], copy=False))
        return opened, None if copy else views.get(job.shared)

    @property
    def knows_columns(self) -> bool:
        """Whether it is known where rows lie in a batch that is made in pieces."""
        return self._columns is not None

    def _close_pipes(self) -> None:
        """Close the pipes; what came along with results is the slots' first, and may be so already."""
        for worker in list(self.workers.values()):
            inbox = worker.pipe.inbox
            while inbox:
                with contextlib.suppress(MessageLost):
                    self._unpack(inbox[0])
                inbox.popleft()
        super()._close_pipes()

    # ---- deaths ----------------------------------------------------------------------------------

    def raise_if_broken(self) -> None:
        self.has_raised = self.is_broken
        super().raise_if_broken()

    def require_ours(self) -> None:
        """Raise RuntimeError in a process that was forked from the consumer."""
        self._require_ours()

    def describe(self, worker: PoolWorker, report: ExitReport) -> None:
        """Say which batch and sample it was: the supervisor knows of neither."""
        lease = self._lease_in_hand(worker, report.task)
        if lease is None:
            return
        job = lease.job
        report.batch, report.attempt = job.number, len(job.deaths) + 1
        if report.item is not None:
            report.sample = job.sample_at(report.item)

    def describe_task(self, slow: Slow) -> str:
        worker = self.workers.get(slow.worker)
        lease = None if worker is None else self._lease_in_hand(worker, slow.task)
        if lease is None:
            return ""
        order = self._order(lease.job)
        return sample_place(order, slow.item) if slow.item is not None else f"batch {order.batch}"

    def on_death(self, worker: PoolWorker, report: ExitReport) -> None:
        """End the leases of a dead worker, those whose results had arrived whole by these."""
        link = self._link(worker)
        lease = self._lease_in_hand(worker, report.task)
        if lease is not None and report.is_death:
            self._epoch.has_deaths = True
            lease.job.deaths[report.pid] = Death(report, lease.alone)
        self._judge_at_once(report, lease)
        for ended in list(link.leases.values()):
            self._end_lease(link, ended, None, None)
        self._links.pop(worker.pid, None)
        self._epoch.renew_todo()
        if report.reason is ExitReason.OOM_KILLED:
            self._forget(self._slots.give_back_unused())

    def _lease_in_hand(self, worker: PoolWorker, task: int | None) -> Lease | None:
        """Return what a worker is working on, or was, unless its result had been sent."""
        link = self._link(worker)
        self._take_results(link)
        return None if task is None else link.leases.get(task)

    # ---- judging them ----------------------------------------------------------------------------

    def _judge_at_once(self, report: ExitReport, lease: Lease | None) -> None:
        """Let a death count that is charged to no sample."""
        if self.judges and not (lease is not None and Death(report, lease.alone).is_charged):
            self.judge(report, counts=True)

    def _judge_deaths(self, job: Job) -> None:
        """Let the deaths count that were not the fault of a sample which is skipped."""
        if self.judges:
            for death in job.deaths.values():
                self.judge(death.report, counts=not (death.is_charged and death.position in job.skips))

    def accused(self) -> list[tuple[Job, int | None]]:
        """Return what is to be decided on, before it is tried again: see ``Epoch.accused``."""
        return self._epoch.accused()

    def settle_accusation(self, job: Job) -> None:
        """Go on with ``job``, now that it was decided what becomes of a sample of it, or of all."""
        self._judge_deaths(job)
        self._epoch.renew_todo()
