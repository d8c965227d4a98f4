"""The pool of batches, with workers that do as they are told: who makes what, deaths, losses, interrupts."""

from __future__ import annotations

import errno
import signal
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from dataloader import default_collate
from dataloader.batch_pool import MAX_LOSSES
from dataloader.joining import Joiner
from dataloader.ledger import Epoch, Lease
from dataloader.pace import Pace
from dataloader.pieces import SAMPLES_PER_PIECE
from dataloader.recipe import Recipe, each_that_loads
from dataloader.review import Review
from dataloader.rows import Rows
from dataloader.slots import DESCRIPTORS_PER_SLOT
from dataloader.source import Source
from dataloader.suspects import Death
from dataloader.worker_iterator import WorkerIterator
from supervisor.channel import Raw
from supervisor.page import CANCELLED, ITEM, TASK
from supervisor.report import ExitReport
from supervisor.verdict import ExitReason
from tests.datasets import LARGE_BYTES, LargeArrays
from tests.limits import descriptor_limit, descriptors_without_garbage
from tests.processes import open_descriptors
from tests.toy_pool import Interrupt, Interrupter, ToyPool, interrupt, unwatched


class FailsAt2(LargeArrays):
    """Has a broken sample."""

    def __getitem__(self, index: int) -> Any:
        if index == 2:
            raise LookupError("a broken sample")
        return super().__getitem__(index)


class Filled(LargeArrays):
    """Each batch is filled with its number."""

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index // IN_PIECES)


IN_PIECES = 2 * SAMPLES_PER_PIECE  # samples of a batch that is made in two pieces
FILLED = Recipe(Filled(100), default_collate, rows=Rows)
FAILING = Recipe(FailsAt2(100), default_collate, each_that_loads)
LARGE = Recipe(LargeArrays(100), default_collate)
SMALL = Recipe(range(10_000_000), default_collate)


def iterate(
    pool: ToyPool,
    batches: list[list[int]],
    *,
    prefetch: int = 2,
    pace: Pace | None = None,
    in_order: bool = True,
    review: Review = Review("raise", 0, max_attempts=3),  # noqa: B008 (it is a tuple)
    joiner: Joiner | None = None,
) -> WorkerIterator:
    return WorkerIterator(
        pool,
        Source(batches),
        seed=0,
        pace=pace or Pace(pool.num_workers, prefetch),
        in_order=in_order,
        keep_workers=True,
        watch=unwatched(),
        review=review,
        joiner=joiner,
    )


def singles(count: int) -> list[list[int]]:
    return [[index] for index in range(count)]


def sixteens(count: int) -> list[list[int]]:
    return [[*range(number * IN_PIECES, (number + 1) * IN_PIECES)] for number in range(count)]


def values(batches: list[Any]) -> list[int]:
    """Return what number each batch of one sample is filled with."""
    assert all((batch == batch.flat[0]).all() for batch in batches)
    return [int(batch.flat[0]) for batch in batches]


# ---- who makes what ------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", [LARGE, SMALL], ids=["large", "small"])
@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_workers_that_keep_pace_take_turns(recipe: Recipe, num_workers: int) -> None:
    pool = ToyPool(recipe, num_workers, prefetch=2)
    assert values(list(iterate(pool, singles(20)))) == list(range(20))
    assert [toy.made for toy in pool.hired] == [list(range(i, 20, num_workers)) for i in range(num_workers)]


def test_work_goes_past_a_worker_that_lags() -> None:
    pool = ToyPool(SMALL, num_workers=2, prefetch=2)
    laggard = pool.toys.pop(0)  # it never answers, until all others have run out of work
    iterator = iterate(pool, singles(12), in_order=False)
    first = [int(next(iterator)[0]) for _ in range(10)]
    assert laggard.made == []
    pool.toys[0] = laggard
    assert sorted(first + values(list(iterator))) == list(range(12))
    assert laggard.made == [0, 2]


def test_out_of_order_means_order_of_completion() -> None:
    pool = ToyPool(SMALL, num_workers=2, prefetch=1)  # of two toys, the second answers first
    assert values(list(iterate(pool, singles(4), prefetch=1, in_order=False)))[:1] == [0]
    pool = ToyPool(SMALL, num_workers=2, prefetch=1)
    del pool.toys[0]
    assert next(iterate(pool, singles(4), prefetch=1, in_order=False)).tolist() == [1]


def test_no_more_is_handed_out_than_the_window_allows() -> None:
    pool = ToyPool(SMALL, num_workers=2, prefetch=3)
    iterator = iterate(pool, singles(100), prefetch=3)
    assert [len(link.leases) for link in pool._links.values()] == [3, 3]
    for _ in range(20):
        next(iterator)
        assert sum(len(link.leases) for link in pool._links.values()) <= 6
        assert len(pool._epoch.jobs) <= 8  # the window, the batch that the user has, and the next


# ---- deaths --------------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", [LARGE, SMALL], ids=["large", "small"])
def test_only_what_a_dead_worker_had_not_sent_is_made_again(recipe: Recipe) -> None:
    pool = ToyPool(recipe, num_workers=2, prefetch=3, deaths={1: 0})
    assert values(list(iterate(pool, singles(8), prefetch=3))) == list(range(8))
    dead, other, successor = (toy.made for toy in pool.hired)
    assert dead == [0]  # its result was in the pipe
    assert sorted(dead + other + successor) == list(range(8))


def test_a_dead_workers_slots_go_to_its_successor() -> None:
    pool = ToyPool(LARGE, num_workers=1, prefetch=1, deaths={5: 0})
    iterator = iterate(pool, singles(20), prefetch=1)
    for number in range(20):
        assert int(next(iterator)[0, 0]) == number
    assert len(pool._slots) <= 3  # one at work, one delivered, one free


@pytest.mark.parametrize("deaths", [{n: n % 2 for n in range(1, 10)}, {1: 0, 2: 0, 3: 0, 4: 1}])
def test_any_number_of_deaths_loses_nothing(deaths: dict[int, int]) -> None:
    pool = ToyPool(LARGE, num_workers=2, prefetch=2, deaths=deaths)
    assert values(list(iterate(pool, singles(30)))) == list(range(30))
    assert len(pool.reports) == len(deaths)


def test_a_report_names_batch_sample_and_attempt() -> None:
    pool = ToyPool(SMALL, num_workers=1, prefetch=2)
    iterator = iterate(pool, [[10, 11], [20, 21], [30, 31]])
    for attempt in (1, 2):
        worker = pool.workers[0]
        _, lease, *_ = pool._links[worker.pid].leases.values()
        worker.page.words[TASK], worker.page.words[ITEM] = lease.seq, 1
        report = ExitReport(0, worker.pid, ExitReason.KILLED, task=lease.seq, item=1)
        pool.describe(worker, report)
        assert (report.batch, report.sample, report.attempt) == (1, 21, attempt)
        pool.on_death(worker, report)
        pool.hire(0)
        pool.assign(2)
    assert [batch.tolist() for batch in iterator] == [[10, 11], [20, 21], [30, 31]]


def test_a_suspect_has_a_worker_of_its_own() -> None:
    pool = ToyPool(SMALL, num_workers=2, prefetch=2)
    iterator = iterate(pool, singles(20))
    worker = pool.workers[0]
    lease = next(iter(pool._links[worker.pid].leases.values()))
    worker.page.words[TASK], worker.page.words[ITEM] = lease.seq, 0
    report = ExitReport(0, worker.pid, ExitReason.CRASHED, task=lease.seq, item=0)
    pool.on_death(worker, report)
    pool.hire(0)
    pool.assign(2)
    (suspect,) = (lease for link in pool._links.values() for lease in link.leases.values() if lease.alone)
    assert suspect.job is lease.job
    (its_link,) = (link for link in pool._links.values() if link.is_reserved)
    assert list(its_link.leases.values()) == [suspect]
    assert [int(batch[0]) for batch in iterator] == list(range(20))


def test_a_suspect_waits_for_a_worker_to_finish_and_others_do_not_wait_for_it() -> None:
    pool = ToyPool(SMALL, num_workers=1, prefetch=3)
    iterator = iterate(pool, singles(20), prefetch=3)
    link = pool._links[pool.workers[0].pid]
    first, *others = link.leases.values()
    first.job.deaths[99] = Death(ExitReport(0, 99, ExitReason.CRASHED), alone=False)
    pool._epoch.has_deaths = True
    pool._end_lease(link, first, None, None)
    pool._epoch.renew_todo()
    pool.assign(3)
    assert list(link.leases.values()) == others  # nothing is added, so that it becomes empty
    assert [int(batch[0]) for batch in iterator] == list(range(20))


def test_a_report_of_a_worker_without_work_names_none() -> None:
    pool = ToyPool(SMALL, num_workers=1, prefetch=2)
    report = ExitReport(0, 0, ExitReason.KILLED)
    pool.describe(pool.workers[0], report)
    assert (report.batch, report.sample, report.attempt) == (None, None, None)


# ---- messages ------------------------------------------------------------------------------------


def test_tasks_wait_where_a_pipe_is_full() -> None:
    """Tasks of 40 KB, far more than a socket holds."""
    pool = ToyPool(SMALL, num_workers=2, prefetch=40)
    batches = [list(range(n, n + 10_000)) for n in range(100)]
    iterator = iterate(pool, batches, prefetch=40)
    assert all(link.unsent for link in pool._links.values())
    assert [batch[0] for batch in iterator] == list(range(100))


def test_a_result_that_comes_twice_is_dropped_once() -> None:
    pool = ToyPool(LARGE, num_workers=1, prefetch=2)
    iterator = iterate(pool, singles(6))
    numbers = [int(next(iterator)[0, 0])]
    pool.wait(None)
    inbox = pool.workers[0].pipe.inbox
    inbox.append(inbox[-1])
    numbers += values(list(iterator))
    assert numbers == [0, 1, 2, 3, 4, 5]


class LosingPool(ToyPool):
    """A pool that has no descriptors left for the results of batch ``lost``, the first ``times`` times."""

    lost = 2
    times = 1

    def wait(self, timeout_s: float | None) -> None:
        super().wait(timeout_s)
        for toy in self.toys.values():
            inbox = toy.worker.pipe.inbox
            if self.times and inbox and toy.made[-1:] == [self.lost]:
                self.times -= 1
                inbox.append(without_descriptors(inbox.pop()))


def without_descriptors(raw: Raw) -> Raw:
    return (raw[0], [], socket.MSG_CTRUNC, None)


@pytest.mark.parametrize("times", [1, MAX_LOSSES])
def test_a_result_that_did_not_arrive_whole_is_made_again(times: int) -> None:
    pool = LosingPool(LARGE, num_workers=2, prefetch=2)
    pool.times = times
    assert values(list(iterate(pool, singles(6)))) == list(range(6))
    assert sum(toy.made.count(2) for toy in pool.hired) == times + 1


def test_a_result_that_never_arrives_is_an_error() -> None:
    pool = LosingPool(LARGE, num_workers=2, prefetch=2)
    pool.times = 100
    iterator = iterate(pool, singles(6))
    assert values([next(iterator), next(iterator)]) == [0, 1]
    with pytest.raises(OSError, match=r"batch 2 does not arrive: .*ulimit -n") as raised:
        next(iterator)
    assert raised.value.errno == errno.EMFILE


# ---- epochs --------------------------------------------------------------------------------------


def test_a_new_epoch_drops_what_is_left_of_the_old_one() -> None:
    pool = ToyPool(LARGE, num_workers=2, prefetch=3)
    old = iterate(pool, singles(50), prefetch=3)
    assert values([next(old), next(old)]) == [0, 1]
    made = [len(toy.made) for toy in pool.hired]
    del old
    assert values(list(iterate(pool, [[index] for index in range(60, 80)], prefetch=3))) == list(
        range(60, 80)
    )
    skipped = [toy.made[count:] for toy, count in zip(pool.hired, made, strict=True)]
    assert sorted(skipped[0] + skipped[1]) == list(range(20))  # of the new epoch, and nothing else
    assert all(slot.is_free for slot in pool._slots)


def test_workers_are_told_which_tasks_are_of_the_past() -> None:
    pool = ToyPool(SMALL, num_workers=2, prefetch=2)
    iterate(pool, singles(10))
    seqs = [seq for link in pool._links.values() for seq in link.leases]
    pool.begin(Epoch(0, 1))
    for worker in pool.workers.values():
        assert worker.page.words[CANCELLED] >= max(seqs)


# ---- slots ---------------------------------------------------------------------------------------


def test_slots_are_used_again() -> None:
    pool = ToyPool(LARGE, num_workers=2, prefetch=2)
    for number, batch in enumerate(iterate(pool, singles(90))):
        assert int(batch[0, 0]) == number
    assert len(pool._slots) <= 7


def test_a_batch_that_is_kept_does_not_change() -> None:
    pool = ToyPool(LARGE, num_workers=2, prefetch=2)
    kept = [batch[:, ::1000][:, 3:] for batch in iterate(pool, singles(90))]
    assert values(kept) == list(range(90))


def test_more_kept_batches_than_slots_are_copies() -> None:
    pool = ToyPool(LARGE, num_workers=2, prefetch=2)
    kept = list(iterate(pool, [[i % 100] for i in range(200)]))
    assert values(kept) == [i % 100 for i in range(200)]
    assert sum(slot.has_view for slot in pool._slots) == pool._slots.max_views
    assert len(pool._slots) <= pool._slots.max_slots


@pytest.mark.parametrize("num_workers", [1, 5])
def test_no_more_is_at_work_than_there_are_descriptors_for(num_workers: int) -> None:
    with descriptor_limit(128):
        pool = ToyPool(LARGE, num_workers, prefetch=100)
    affordable = 64 // DESCRIPTORS_PER_SLOT
    kept = []
    for batch in iterate(pool, [[i % 100] for i in range(300)], prefetch=100):
        kept.append(batch)
        assert len(pool._slots) <= affordable
    assert values(kept) == [i % 100 for i in range(300)]


def test_batches_without_slots_are_held_back_only_until_that_is_known() -> None:
    with descriptor_limit(128):
        pool = ToyPool(SMALL, num_workers=2, prefetch=100)
    iterator = iterate(pool, singles(400), prefetch=100)
    assert sum(len(link.leases) for link in pool._links.values()) == 64 // DESCRIPTORS_PER_SLOT
    assert values([next(iterator)]) == [0]
    assert sum(len(link.leases) for link in pool._links.values()) > 190
    assert values(list(iterator)) == list(range(1, 400))


def test_slots_that_became_far_too_large_are_let_go_and_forgotten_by_workers() -> None:
    sizes = Recipe([np.full(n * LARGE_BYTES, n, np.uint8) for n in range(1, 40)], default_collate)
    pool = ToyPool(sizes, num_workers=2, prefetch=1)
    largest = []
    for batch in iterate(pool, [*singles(39), *[[0]] * 100], prefetch=1):
        del batch
        largest.append(max(slot.size_bytes for slot in pool._slots))
    assert largest[38] > 38 * LARGE_BYTES
    assert largest[-1] < 4 * LARGE_BYTES
    known = {slot.id for slot in pool._slots}
    assert all(link.mapped - link.forget <= known for link in pool._links.values())
    assert all(len(toy.slots._memory) <= len(known) for toy in pool.hired)


def test_after_an_oom_kill_free_slots_are_given_back() -> None:
    pool = ToyPool(LARGE, num_workers=2, prefetch=2, deaths={6: 1})
    pool.reason = ExitReason.OOM_KILLED
    iterator = iterate(pool, singles(40))
    before: set[int] = set()
    for number in range(40):
        known = {slot.id for slot in pool._slots}
        assert int(next(iterator)[0, 0]) == number
        if len(pool.reports) == 1 and not before:
            before = known
            assert not any(slot.is_free and slot.id in before for slot in pool._slots)
    assert before


def test_a_pool_leaves_no_descriptors() -> None:
    before = descriptors_without_garbage()
    pool = ToyPool(LARGE, num_workers=2, prefetch=2, deaths={3: 1})
    assert values(list(iterate(pool, singles(20)))) == list(range(20))
    del pool
    assert open_descriptors() == before


# ---- interrupts ----------------------------------------------------------------------------------


@dataclass
class Scenario:
    recipe: Recipe
    num_workers: int
    count: int
    deaths: dict[int, int]
    in_order: bool = True
    reason: ExitReason = ExitReason.KILLED
    skipped: tuple[int, ...] = ()
    cheap: bool = False
    prefetch: int = 2
    slow: int | None = None
    in_pieces: bool | None = False
    stride: int = 7

    def run(self, strike_at: int | None) -> tuple[Interrupter, list[int], ToyPool]:
        """Iterate, interrupted at one place and then going on; return what was delivered or skipped."""
        pool = ToyPool(self.recipe, self.num_workers, self.prefetch, self.deaths)
        pool.reason, pool.slow = self.reason, self.slow
        review = Review("skip" if self.skipped else "raise", 0, max_attempts=1 if self.skipped else 3)
        pace = Pace(self.num_workers, self.prefetch, in_pieces=self.in_pieces)
        if self.cheap:
            pace.look(1, 0.0, 0)
        joiner = None if self.in_pieces is False else Joiner()
        batches = singles(self.count) if joiner is None else sixteens(self.count)
        iterator = iterate(pool, batches, pace=pace, in_order=self.in_order, review=review, joiner=joiner)
        interrupter = pool.interrupter = Interrupter(strike_at)
        delivered = taken_despite(pool, iterator, interrupter)
        tally = iterator._watch.tally
        assert [error.index for error in tally.skipped] == list(self.skipped), interrupter.place
        assert (tally.delivered.batches, tally.delivered.items) == (len(delivered), sum(map(len, batches)))
        return interrupter, delivered, pool


def taken_despite(pool: ToyPool, iterator: WorkerIterator, interrupter: Interrupter) -> list[int]:
    """Return what the iterator delivers to one who goes on after an interrupt."""
    taken: list[int] = []
    while True:
        try:
            with interrupter.watching():
                batch = next(iterator)
        except Interrupt:
            continue
        except StopIteration:
            return taken
        taken.append(int(batch.flat[0]))
        del batch
        assert_settled(pool)


def assert_settled(pool: ToyPool) -> None:
    """What was derived step by step is what follows from what is stored."""

    def derived() -> Any:
        jobs = pool._epoch.jobs
        leases = {n: [part.lease and part.lease.seq for part in job.parts] for n, job in jobs.items()}
        unsent = {pid: [lease.seq for lease in link.unsent] for pid, link in pool._links.items()}
        holders = {slot.id: holder_of(slot.holder) for slot in pool._slots}
        return leases, list(pool._epoch.todo), unsent, holders

    before = derived()
    pool.settle()
    assert derived() == before


def holder_of(holder: Any) -> Any:
    if holder is None:
        return None
    return ("lease", holder.seq) if isinstance(holder, Lease) else ("job", holder.number)


@pytest.fixture
def handler() -> Iterator[None]:
    previous = signal.signal(signal.SIGUSR1, interrupt)
    yield
    signal.signal(signal.SIGUSR1, previous)


SCENARIOS = {
    "large, a death": Scenario(LARGE, num_workers=2, count=4, deaths={2: 1}),
    "small, deaths": Scenario(SMALL, num_workers=2, count=4, deaths={1: 0, 2: 0}),
    "small, together": Scenario(SMALL, num_workers=1, count=10, deaths={3: 0}, cheap=True),
    "large, together": Scenario(LARGE, num_workers=2, count=5, deaths={}, cheap=True),
    "large, one worker": Scenario(LARGE, num_workers=1, count=4, deaths={}),
    "large, out of order": Scenario(LARGE, num_workers=2, count=4, deaths={1: 0}, in_order=False),
    "small, one ahead, out of order": Scenario(
        SMALL, num_workers=2, count=6, deaths={}, in_order=False, prefetch=1, slow=0
    ),
    "in pieces, a death": Scenario(FILLED, num_workers=2, count=3, deaths={2: 1}, in_pieces=True, stride=29),
    "in pieces, deaths, out of order": Scenario(
        FILLED, num_workers=2, count=3, deaths={1: 0, 3: 1}, in_order=False, in_pieces=True, slow=0, stride=41
    ),
    "in pieces on trial, which is in vain": Scenario(
        Recipe(Filled(100), default_collate), num_workers=2, count=3, deaths={}, in_pieces=None
    ),
    "large, a failure": Scenario(FAILING, num_workers=2, count=4, deaths={}, skipped=(2,)),
    "small, poison": Scenario(
        SMALL, num_workers=2, count=4, deaths={1: 0}, reason=ExitReason.CRASHED, skipped=(2,)
    ),
}


def strike_everywhere(scenario: Scenario, first: int, stride: int) -> None:
    expected = scenario.run(None)[1]
    assert sorted([*expected, *scenario.skipped]) == list(range(scenario.count))
    at = first
    while True:
        interrupter, delivered, pool = scenario.run(at)
        if not interrupter.place:
            return
        assert (delivered if scenario.in_order else sorted(delivered)) == sorted(expected), interrupter.place
        assert all(slot.is_free for slot in pool._slots), interrupter.place
        assert not any(link.leases for link in pool._links.values()), interrupter.place
        at += stride


@pytest.mark.slow
@pytest.mark.usefixtures("handler")
@pytest.mark.parametrize("name", SCENARIOS)
def test_an_interrupt_at_one_place_of_many_loses_nothing(name: str) -> None:
    scenario = SCENARIOS[name]
    strike_everywhere(scenario, first=1 + list(SCENARIOS).index(name), stride=scenario.stride)


@pytest.mark.slow
@pytest.mark.usefixtures("handler")
@pytest.mark.parametrize("name", ["large, a death", "small, one ahead, out of order"])
def test_an_interrupt_at_any_place_loses_nothing(name: str) -> None:
    strike_everywhere(SCENARIOS[name], first=1, stride=1)


@pytest.mark.slow
@pytest.mark.usefixtures("handler")
def test_an_interrupt_after_a_stragglers_slot_was_let_go_loses_nothing() -> None:
    at = 0
    while True:
        at += 1
        pool = ToyPool(LARGE, num_workers=1, prefetch=1)
        iterate(pool, singles(10), prefetch=1)
        for toy in pool.hired:
            toy.answer()  # for an iterator that is no more: whoever comes next drops what it brings
        pool._slots.max_slots = 0
        interrupter = pool.interrupter = Interrupter(at)
        assert taken_despite(pool, iterate(pool, [[50]], prefetch=1), interrupter) == [50]
        if not interrupter.place:
            return
