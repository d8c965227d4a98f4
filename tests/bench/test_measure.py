"""Measurements: what they count, and that they end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from dataloader import IterableDataset
from dataloader.bench.measure import Bounds, call_within, measure
from dataloader.bench.subject import Options, Subject
from dataloader.bench.target import TargetError

FORK = Options(batch_size=2, start_method="fork")


class Empty(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter([])


class Sleeper:
    """Sleeps through any measurement."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        time.sleep(300)
        return index


def test_figures_are_those_of_the_dataset() -> None:
    told: list[str] = []
    subject = Subject("data", [b"x" * 5000] * 6, FORK)
    measured = measure(subject, (0, 1), Bounds(seconds=60, samples=12, step_s=0.001), told.append)
    assert told == ["samples, one by one", "num_workers=1", "num_workers=0"]
    assert measured.samples is not None
    assert measured.batch is not None
    assert measured.samples.count >= 12
    assert 5000 <= measured.samples.size_bytes <= 5200  # type: ignore[operator]
    assert measured.batch.samples == 2
    alone, one = measured.points
    assert (alone.num_workers, one.num_workers) == (0, 1)
    assert (alone.batches, one.batches) == (5, 3)  # of 6; the others are the warm-up
    for point in measured.points:
        assert point.samples == 2 * point.batches
        assert 0.001 * point.batches <= point.consumer_s <= point.elapsed_s
        assert point.first_s is not None
    assert alone.worker_bytes is None
    assert one.worker_bytes > 100_000  # type: ignore[operator]


def test_it_ends_whatever_samples_do() -> None:
    measured = measure(Subject("sleeper", Sleeper(), FORK), (0, 1), Bounds(seconds=0.9))
    assert (measured.samples, measured.batch) == (None, None)
    assert [point.samples_per_s for point in measured.points] == [None, None]
    assert [point.first_s for point in measured.points] == [None, None]


def test_a_stream_without_samples_is_refused() -> None:
    with pytest.raises(TargetError, match="empty gave no sample: there is nothing to measure"):
        measure(Subject("empty", Empty(), FORK), (0,), Bounds(seconds=60))


def test_what_a_sample_raises_is_raised() -> None:
    class Broken:
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> Any:
            raise LookupError(f"sample {index}")

    with pytest.raises(LookupError, match=r"sample \d"):
        measure(Subject("broken", Broken(), FORK), (0,), Bounds(seconds=60))


def test_a_sample_that_catches_all_exceptions_is_ended_too() -> None:
    def stubborn() -> None:
        try:
            time.sleep(300)
        except Exception:
            time.sleep(300)

    assert not call_within(0.05, stubborn)


def test_another_s_alarm_is_put_back() -> None:
    import signal

    before = signal.getsignal(signal.SIGALRM)
    assert call_within(60, lambda: None)
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
