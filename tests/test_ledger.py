"""The ledger: what is derived follows from what is stored, however wrong it had been left."""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataloader.ledger import Epoch, Job, Lease, Link, choose
from dataloader.slots import Slot, size_class
from dataloader.wire import BATCH, ERROR, Result
from supervisor.channel import Channel
from supervisor.linux import create_memory_file
from supervisor.messages import Started
from supervisor.page import RECORD_BYTES, Page
from supervisor.pool_worker import PoolWorker

SIZE = size_class(1)
RESULT = Result(0, BATCH, b"", (), 0)


def make_link(pid: int = 0, leases: int = 0) -> Link:
    page = Page(memoryview(bytearray(RECORD_BYTES)))
    link = Link(PoolWorker(Started(pid, pid, restarts=0), Channel.pair()[0], page))
    link.leases = {seq: Lease(seq, Job(seq, []), None) for seq in range(leases)}
    return link


def make_slot(number: int) -> Slot:
    fd = create_memory_file("test-slot")
    os.ftruncate(fd, SIZE)
    slot = Slot(number, fd, SIZE)
    slot.keep_descriptor()
    return slot


# ---- settle --------------------------------------------------------------------------------------


@dataclass
class World:
    """A ledger: one epoch, the workers, the slots, and jobs and leases of an epoch that is over."""

    epoch: Epoch
    links: list[Link]
    slots: list[Slot]
    old_jobs: list[Job]

    def leases(self) -> list[Lease]:
        return [lease for link in self.links for lease in link.leases.values()]

    def derived(self) -> dict[str, Any]:
        """All that ``settle`` derives."""
        return {
            "leases": {number: job.lease for number, job in self.epoch.jobs.items()},
            "todo": list(self.epoch.todo),
            "unsent": [list(link.unsent) for link in self.links],
            "holders": [slot.holder for slot in self.slots],
        }

    def expected(self) -> dict[str, Any]:
        """The same, from what is stored alone: who has which lease, which job is done, what was sent."""
        jobs = self.epoch.jobs
        lease_of = {lease.job.number: lease for lease in self.leases() if lease.job in jobs.values()}
        done = {number for number, job in jobs.items() if job.result is not None}
        holders: dict[int, object] = {lease.slot.id: lease for lease in self.leases() if lease.slot}
        holders |= {job.slot.id: job for job in jobs.values() if job.slot and job.result}
        return {
            "leases": {number: lease_of.get(number) for number in jobs},
            "todo": [job for n, job in jobs.items() if n not in lease_of and n not in done],
            "unsent": [[lease for lease in link.leases.values() if not lease.sent] for link in self.links],
            "holders": [holders.get(slot.id) for slot in self.slots],
        }


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Draw a ledger that is stored right and derived wrong, as an interrupt may leave it."""
    first, count = draw(st.integers(0, 100)), draw(st.integers(0, 6))
    epoch = Epoch(seed=0, number=0)
    for number in range(first, first + count):
        epoch.add(number, [number])
    world = World(epoch, [make_link(pid) for pid in range(3)], [make_slot(n) for n in range(4)], [Job(0, [])])
    draw_leases(draw, world)
    draw_results(draw, world)
    draw_wrong(draw, world)
    return world


def draw_leases(draw: st.DrawFn, world: World) -> None:
    """Some jobs are leased, each once, each with a slot of its own or without one."""
    lent = iter(draw(st.permutations(world.slots)))
    for seq, job in enumerate([*world.epoch.jobs.values(), *world.old_jobs]):
        if draw(st.booleans()):
            lease = Lease(seq, job, next(lent, None) if draw(st.booleans()) else None)
            lease.sent = draw(st.booleans())
            draw(st.sampled_from(world.links)).leases[seq] = lease


def draw_results(draw: st.DrawFn, world: World) -> None:
    """Some jobs are done, or about to be: the slot is stored first, and the lease ended last."""
    lent = {lease.slot for lease in world.leases() if lease.slot}
    spare = iter([slot for slot in world.slots if slot not in lent])
    lease_of = {lease.job: lease for lease in world.leases()}
    for job in world.epoch.jobs.values():
        lease = lease_of.get(job)
        own = lease.slot if lease and draw(st.booleans()) else next(spare, None)
        job.slot = draw(st.sampled_from([None, own]))
        job.result = draw(st.sampled_from([None, RESULT]))


def draw_wrong(draw: st.DrawFn, world: World) -> None:
    leases = [None, *world.leases(), Lease(999, Job(999, []), None)]
    jobs = list(world.epoch.jobs.values())
    for job in jobs:
        job.lease = draw(st.sampled_from(leases))
    for slot in world.slots:
        slot.holder = draw(st.sampled_from([*leases, *jobs]))
    for link in world.links:
        link.unsent = deque(draw(st.lists(st.sampled_from(leases[1:]), max_size=3)))
    wrong = draw(st.lists(st.sampled_from(jobs), max_size=4)) if jobs else []
    world.epoch.todo = dict.fromkeys(wrong)


@given(worlds())
def test_settle_derives_all_from_what_is_stored(world: World) -> None:
    world.epoch.settle(world.links, world.slots)
    assert world.derived() == world.expected()


@pytest.mark.slow
@given(worlds())
def test_settle_changes_nothing_that_is_stored(world: World) -> None:
    def stored() -> Any:
        jobs = [(n, job, job.result, job.slot, job.delivered) for n, job in world.epoch.jobs.items()]
        return jobs, [
            [(seq, lease, lease.sent) for seq, lease in link.leases.items()] for link in world.links
        ]

    before = stored()
    world.epoch.settle(world.links, world.slots)
    assert stored() == before


# ---- the epoch -----------------------------------------------------------------------------------


def make_epoch(count: int) -> Epoch:
    epoch = Epoch(seed=5, number=2)
    for number in range(count):
        epoch.add(number, [number])
    return epoch


def test_adding_a_batch_again_changes_nothing() -> None:
    epoch = make_epoch(2)
    job = epoch.jobs[1]
    del epoch.todo[epoch.jobs[1]]
    epoch.add(1, [1])
    assert epoch.jobs[1] is job
    assert [job.number for job in epoch.todo] == [0]


def test_in_order_a_batch_waits_for_those_before_it() -> None:
    epoch = make_epoch(3)
    epoch.jobs[1].result = RESULT
    assert epoch.deliverable(in_order=True) is None
    assert epoch.deliverable(in_order=False) is epoch.jobs[1]
    epoch.jobs[0].result = RESULT
    assert epoch.deliverable(in_order=True) is epoch.jobs[0]
    epoch.jobs[0].delivered = True
    assert epoch.deliverable(in_order=True) is epoch.jobs[1]
    epoch.jobs[1].delivered = True
    assert epoch.deliverable(in_order=True) is None
    assert epoch.deliverable(in_order=False) is None


def test_what_is_delivered_is_forgotten_and_its_slot_is_the_users() -> None:
    epoch, slot = make_epoch(3), make_slot(1)
    job = epoch.jobs[1]
    job.slot, slot.holder, job.delivered = slot, job, True
    epoch.drop_delivered()
    assert list(epoch.jobs) == [0, 2]
    assert slot.holder is None


def test_todo_is_what_is_neither_leased_nor_done() -> None:
    epoch = make_epoch(4)
    epoch.jobs[1].lease = Lease(1, epoch.jobs[1], None)
    epoch.jobs[2].result = RESULT
    epoch.todo.clear()
    epoch.renew_todo()
    assert [job.number for job in epoch.todo] == [0, 3]


# ---- who makes what ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loads", "number", "limit", "chosen"),
    [
        ([0, 0, 0], 0, 2, 0),
        ([0, 0, 0], 4, 2, 1),
        ([1, 1, 0], 4, 2, 1),  # round robin while it keeps pace
        ([1, 2, 0], 4, 2, 2),  # the one with least to do when it does not
        ([0, 2, 0], 4, 2, 0),
        ([2, 2, 2], 4, 2, None),
        ([2, 3, 1], 4, 2, 2),
        ([], 4, 2, None),
    ],
)
def test_who_is_to_make_a_batch(loads: list[int], number: int, limit: int, chosen: int | None) -> None:
    links = [make_link(pid, load) for pid, load in enumerate(loads)]
    assert choose(links, Job(number, [0]), limit) is (None if chosen is None else links[chosen])


# ---- pieces --------------------------------------------------------------------------------------


def epoch_in_pieces(samples: int = 32) -> tuple[Epoch, Job]:
    epoch = Epoch(seed=0, number=0)
    epoch.add(0, range(samples), in_pieces=True)
    return epoch, epoch.jobs[0]


def test_what_is_to_do_are_the_pieces_in_order() -> None:
    epoch, job = epoch_in_pieces()
    epoch.add(1, range(32))
    assert [(part.number, part.piece) for part in epoch.todo] == [(0, 0), (0, 1), (0, 2), (0, 3), (1, None)]
    assert [part.round for part in job.parts] == [0, 1, 2, 3]
    assert sum(part.share for part in job.parts) == job.share == 1


def test_a_small_batch_has_no_pieces() -> None:
    _, job = epoch_in_pieces(samples=15)
    assert (list(job.pieces), list(job.parts)) == ([], [job])


def test_a_job_is_done_when_its_pieces_are() -> None:
    epoch, job = epoch_in_pieces()
    for piece in job.pieces:
        assert not job.is_done
        assert epoch.deliverable(in_order=True) is None
        piece.result = RESULT
    assert epoch.deliverable(in_order=True) is job


def test_the_first_piece_that_failed_is_told_of() -> None:
    _, job = epoch_in_pieces()
    assert job.failure is None
    errors = [RESULT._replace(kind=ERROR, seq=seq) for seq in range(4)]
    for piece, result in zip(job.pieces, [RESULT, errors[1], RESULT, errors[3]], strict=True):
        piece.result = result
    assert job.failure is errors[1]


def test_deaths_and_skips_of_a_piece_are_its_batchs() -> None:
    _, job = epoch_in_pieces()
    for piece in job.pieces:
        assert (piece.deaths, piece.skips) == (job.deaths, job.skips)
        assert piece.deaths is job.deaths
        assert piece.skips is job.skips


def test_settle_derives_who_holds_what_pieces_share() -> None:
    epoch, job = epoch_in_pieces()
    link, shared, own = make_link(), make_slot(0), make_slot(1)
    job.share_slot(shared, b"columns")
    lease = link.leases[7] = Lease(7, job.pieces[0], shared)
    job.pieces[1].slot, job.pieces[1].result = own, RESULT
    for slot in (shared, own):
        slot.holder = None
    epoch.todo.clear()
    epoch.settle([link], [shared, own])
    assert job.pieces[0].lease is lease
    assert list(epoch.todo) == job.pieces[2:]
    assert (shared.holder, own.holder) == (job, job)


def test_a_batch_that_cannot_be_put_together_is_wanted_as_a_whole() -> None:
    epoch, job = epoch_in_pieces()
    shared = make_slot(0)
    job.share_slot(shared, b"columns")
    shared.holder = job
    pieces = job.pieces
    for piece in pieces:
        piece.slot, piece.result = shared, RESULT
    epoch.make_whole(job)
    assert list(epoch.todo) == [job]
    assert not job.is_done
    assert shared.holder is None
    assert not any(epoch.wants(piece) for piece in pieces)


def test_what_was_delivered_waits_for_no_garbage_collector() -> None:
    epoch, job = epoch_in_pieces()
    shared = make_slot(0)
    job.share_slot(shared, b"columns")
    shared.holder, job.delivered = job, True
    epoch.drop_delivered()
    assert not job.pieces  # and no cycle is left
    assert job.shared is None
    assert shared.holder is None


def test_a_slot_that_is_still_written_into_is_not_let_go() -> None:
    epoch, job = epoch_in_pieces()
    shared, own = make_slot(0), make_slot(1)
    job.share_slot(shared, b"columns")
    piece, done, other, _ = job.pieces
    piece.lease = Lease(7, piece, shared)
    done.slot, done.result = shared, RESULT
    other.slot, other.result = own, RESULT
    shared.holder = own.holder = job
    job.error, job.delivered = ValueError(), True
    epoch.drop_delivered()
    assert shared.holder is piece.lease.holder is job
    assert own.holder is None
