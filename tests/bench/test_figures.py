"""Figures out of a probe's notes."""

from __future__ import annotations

import pytest

from dataloader.bench.figures import Point, Slow, batch_figures, sample_figures
from dataloader.bench.probe import BatchNote, SampleNote

PID = 7


def note(index: int, start_s: float, seconds: float, size_bytes: int | None = None) -> SampleNote:
    return SampleNote(PID, index, start_s, start_s + seconds, seconds / 2, size_bytes)


def test_the_first_sample_is_apart() -> None:
    figures = sample_figures([note(5, 0, 100.0, 10), note(6, 100, 1.0, 30), note(7, 101, 3.0)])
    assert figures is not None
    assert (figures.count, figures.first_s, figures.median_s, figures.mean_s) == (3, 100.0, 2.0, 2.0)
    assert figures.slowest == (Slow(7, 3.0), Slow(6, 1.0))
    assert figures.size_bytes == 20
    assert figures.cpu_share == pytest.approx(0.5)


def test_an_only_sample_stands_for_all() -> None:
    figures = sample_figures([note(5, 0, 4.0)])
    assert figures is not None
    assert (figures.first_s, figures.median_s, figures.p99_s, figures.size_bytes) == (4.0, 4.0, 4.0, None)
    assert sample_figures([]) is None


def test_the_slowest_come_first_and_are_few() -> None:
    figures = sample_figures([note(index, index, 1 + index % 10) for index in range(100)])
    assert figures is not None
    assert [slow.seconds for slow in figures.slowest] == [10.0] * 5
    assert figures.p99_s == 10.0


def pairs(*gaps_s: float) -> tuple[list[SampleNote], list[BatchNote]]:
    """Batches of two samples of 1 s and 0.5 s to collate, with these gaps between them."""
    samples: list[SampleNote] = []
    batches: list[BatchNote] = []
    start_s = 0.0
    for gap_s in (*gaps_s, 0.0):
        samples += [note(0, start_s, 1), note(1, start_s + 1, 1)]
        batches.append(BatchNote(PID, 2, start_s + 2, start_s + 2.5))
        start_s += 2.5 + gap_s
    return samples, batches


def test_transfer_is_from_a_batch_s_end_to_the_next_one_s_begin() -> None:
    figures = batch_figures(*pairs(99.0, 2.0, 4.0), moved_bytes=900, delivered=3)
    assert figures is not None
    assert (figures.count, figures.samples, figures.collate_s) == (4, 2.0, 0.5)
    assert figures.transfer_s == 4.0
    assert figures.size_bytes == 300


def test_batches_in_new_memory_do_not_count() -> None:
    figures = batch_figures(*pairs(*[99.0] * 3, *[1.0] * 4), moved_bytes=0, delivered=1)
    assert figures is not None
    assert figures.transfer_s == 1.0


def test_batches_that_are_too_few_tell_nothing_of_transfer() -> None:
    figures = batch_figures([note(0, 0, 1)], [BatchNote(PID, 1, 1.0, 1.5)], moved_bytes=0, delivered=0)
    assert figures is not None
    assert (figures.transfer_s, figures.size_bytes) == (None, 0)
    assert batch_figures([], [], 0, 0) is None


def test_a_point_without_batches_has_no_throughput() -> None:
    assert Point(2).samples_per_s is None
    assert Point(2).consumer_share == 0.0
    told = Point(2, batches=5, samples=50, elapsed_s=2.0, consumer_s=0.5)
    assert (told.samples_per_s, told.consumer_share) == (25.0, 0.25)
