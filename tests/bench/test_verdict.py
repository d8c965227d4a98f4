"""What is concluded from figures."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dataloader.bench.figures import BatchFigures, Machine, Measured, Point, SampleFigures
from dataloader.bench.verdict import (
    Bound,
    Parts,
    best_point,
    bound_of,
    judge,
    ladder,
    prefetch_for,
    that_fit,
)

GIB = 1 << 30
SAMPLES = SampleFigures(
    count=100,
    first_s=0.5,
    median_s=0.01,
    mean_s=0.01,
    p99_s=0.011,
    cpu_share=1.0,
    size_bytes=1000,
    slowest=(),
)
BATCH = BatchFigures(count=10, samples=10, collate_s=0.001, transfer_s=0.002, size_bytes=10_000)
LARGE_BATCH = replace(BATCH, size_bytes=1 << 20)
MACHINE = Machine(cores=4, load=0.0, available_bytes=GIB)


def point(num_workers: int, rate: float, busy: float = 0.1, worker_bytes: int | None = 1 << 20) -> Point:
    """A run of a second in batches of 10."""
    own = worker_bytes if num_workers else None
    return Point(num_workers, 0.1, round(rate / 10), rate, 1.0, busy, own)


def measured(*points: Point, samples: SampleFigures | None = SAMPLES, **machine: float) -> Measured:
    return Measured(replace(MACHINE, **machine), samples, BATCH, points)  # type: ignore[arg-type]


def test_the_ladder_ends_at_the_usable_cores() -> None:
    assert ladder(1) == (0, 1)
    assert ladder(2) == (0, 1, 2)
    assert ladder(12) == (0, 1, 2, 4, 8, 12)
    assert ladder(16) == (0, 1, 2, 4, 8, 16)


# ---- what bounds it ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "bound"),
    [
        (Parts(3.0, 1.0, 1.0), Bound.SAMPLES),
        (Parts(1.0, 3.0, 1.0), Bound.COLLATE),
        (Parts(1.0, 1.0, 3.0), Bound.TRANSFER),
    ],
)
def test_the_largest_part_bounds(parts: Parts, bound: Bound) -> None:
    assert bound_of(parts, point(2, 100)) is bound


def test_a_busy_consumer_bounds_whatever_workers_do() -> None:
    assert bound_of(Parts(3.0, 1.0, 1.0), point(2, 100, busy=0.9)) is Bound.CONSUMER


def test_without_workers_nothing_is_sent_and_this_process_is_always_busy() -> None:
    assert bound_of(Parts(1.0, 2.0, 3.0), point(0, 100, busy=1.0)) is Bound.COLLATE


# ---- how many workers ----------------------------------------------------------------------------


def test_the_fewest_workers_that_come_close_to_the_best() -> None:
    points = [point(0, 90), point(1, 100), point(2, 196), point(4, 200)]
    assert best_point(points) is points[2]
    assert best_point([*points, point(8, 220)]) == point(8, 220)


def test_no_workers_where_receiving_costs_what_making_costs() -> None:
    # A batch takes 1 ms in process; with a worker this process is busy for 0.5 ms or 2 ms of each.
    alone, cheap, dear = point(0, 10_000), point(1, 8_000, busy=0.4), point(1, 8_000, busy=1.6)
    assert best_point([alone, cheap]) is cheap
    assert best_point([alone, dear]) is alone


def test_points_without_figures_do_not_count() -> None:
    nothing = Point(2)
    assert best_point([]) is None
    assert best_point([nothing]) is None
    assert best_point([nothing, point(1, 50)]) == point(1, 50)
    assert best_point([point(0, 50), nothing]) == point(0, 50)


# ---- prefetch and memory -------------------------------------------------------------------------


@pytest.mark.parametrize(("p99_s", "prefetch"), [(0.01, 2), (0.11, 2), (0.31, 4), (60.0, 8)])
def test_slow_samples_want_more_batches_ahead(p99_s: float, prefetch: int) -> None:
    """A batch of 10 takes 0.1 s; with one slow sample p99_s - 0.01 s more."""
    assert prefetch_for(replace(SAMPLES, p99_s=p99_s), batch_samples=10) == prefetch


def test_short_memory_first_lessens_prefetch_then_workers() -> None:
    points = [point(number, 100.0 * number, worker_bytes=100) for number in (1, 2, 4)]

    def fitting(room_bytes: int) -> tuple[int, int]:
        chosen, prefetch = that_fit(points, points[-1], prefetch=2, batch_bytes=10, room_bytes=room_bytes)
        return chosen.num_workers, prefetch

    assert fitting(500) == (4, 2)  # 4 x 100 and (4 x 2 + 2) x 10
    assert fitting(499) == (4, 1)
    assert fitting(459) == (2, 2)
    assert fitting(130) == (1, 1)
    assert fitting(0) == (1, 1)


def test_no_workers_need_no_prefetch() -> None:
    verdict = judge(measured(point(0, 100)))
    assert (verdict.num_workers, verdict.prefetch_factor) == (0, None)
    assert verdict.batches_bytes == BATCH.size_bytes


# ---- the whole -----------------------------------------------------------------------------------


def test_a_verdict_says_what_to_set_and_what_that_takes() -> None:
    verdict = judge(measured(point(0, 90), point(1, 100), point(2, 200), point(4, 400)))
    assert (verdict.bound, verdict.num_workers, verdict.prefetch_factor) == (Bound.SAMPLES, 4, 2)
    assert verdict.batches_bytes == (4 * 2 + 2) * BATCH.size_bytes
    assert verdict.workers_bytes == 4 << 20
    assert verdict.advice == ("Samples compute, and all 4 usable cores are at it: make samples cheaper.",)


def advice(samples: SampleFigures = SAMPLES, **machine: float) -> str:
    return " ".join(judge(measured(point(1, 100), point(2, 200), samples=samples, **machine)).advice)


def test_advice_follows_from_how_samples_spend_their_time() -> None:
    assert advice() == ""  # two of four cores: measuring more is for the ladder
    assert "measure --num-workers 4,8,16" in advice(replace(SAMPLES, cpu_share=0.2))
    assert "OMP_NUM_THREADS=1" in advice(replace(SAMPLES, cpu_share=2.0))


def test_advice_on_memory_and_on_a_busy_machine() -> None:
    assert "memory is short" in advice(available_bytes=2 << 20)
    assert "load average 3.0, 4 usable cores" in advice(load=3.0)
    assert "load average" not in advice(load=1.9)


@pytest.mark.parametrize(
    ("batch", "busy", "bound", "words"),
    [
        (replace(LARGE_BATCH, collate_s=9.0), 0.0, Bound.COLLATE, "Collating takes most"),
        (replace(LARGE_BATCH, transfer_s=9.0), 0.0, Bound.TRANSFER, "Moving batches"),
        (replace(BATCH, transfer_s=9.0), 0.0, Bound.TRANSFER, "A batch is small"),
        (BATCH, 0.9, Bound.CONSUMER, "The process that receives batches is busy"),
    ],
)
def test_there_is_advice_on_each_bound(batch: BatchFigures, busy: float, bound: Bound, words: str) -> None:
    verdict = judge(Measured(MACHINE, SAMPLES, batch, (point(1, 100, busy=busy),)))
    assert verdict.bound is bound
    assert verdict.advice[0].startswith(words)


def test_too_little_time_gives_no_verdict_but_says_how_much_it_takes() -> None:
    nothing = judge(Measured(MACHINE, None, None, (Point(1),)))
    assert (nothing.bound, nothing.num_workers) == (None, None)
    assert "Not one sample came in time" in nothing.advice[0]
    slow = judge(Measured(MACHINE, replace(SAMPLES, mean_s=10.0), None, (Point(1),)), wanted_batch_size=32)
    assert "a sample takes 10 s, a batch about 320 s" in slow.advice[0]
    assert judge(measured(Point(1)), None).advice[0].endswith("a sample takes 0.01 s. Raise --seconds.")
