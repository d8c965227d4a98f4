"""Samples that cannot be loaded are raised or left out, as the user says; nothing else is lost."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import pytest

from dataloader import (
    ConcatDataset,
    DataLoader,
    Dataset,
    ExitReason,
    RestartPolicy,
    SampleError,
    Subset,
    WorkerDiedError,
)

POLICY = RestartPolicy(backoff=0.0)


class Broken(Exception):
    """What a broken sample raises."""


def fail() -> None:
    raise Broken("a broken file")


def stop() -> None:
    raise StopIteration


def leave() -> None:
    raise SystemExit("enough")


def crash() -> None:
    os.abort()


@dataclass
class Samples:
    """Numbers with noise; ``bad`` says what happens instead at some."""

    bad: dict[int, Any] = field(default_factory=dict)
    length: int = 40

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[int, float]:
        if index in self.bad:
            self.bad[index]()
        return index, float(np.random.rand())


def loaded(dataset: Any, num_workers: int, **arguments: Any) -> tuple[list[Any], DataLoader]:
    """Return the indices in each batch that comes, and the loader."""
    given: dict[str, Any] = {"batch_size": 8, "seed": 3, "restart": POLICY, **arguments}
    if num_workers:
        given["multiprocessing_context"] = "fork"
    loader = DataLoader(dataset, num_workers=num_workers, **given)
    with loader:
        return [batch[0].tolist() for batch in loader], loader


def indices(loader: DataLoader) -> list[Any]:
    return [error.index for error in loader.skipped]


WITH_AND_WITHOUT_WORKERS = pytest.mark.parametrize("num_workers", [0, 2])


@WITH_AND_WITHOUT_WORKERS
def test_skipped_samples_leave_their_batches_shorter(num_workers: int) -> None:
    batches, loader = loaded(Samples({3: fail, 4: fail, 21: stop}), num_workers, on_error="skip")
    assert batches == [
        [0, 1, 2, 5, 6, 7],
        [*range(8, 16)],
        [*range(16, 21), 22, 23],
        [*range(24, 32)],
        [*range(32, 40)],
    ]
    assert indices(loader) == [3, 4, 21]
    first = loader.skipped[0]
    assert isinstance(first.exception, Broken)
    assert "a broken file" in first.traceback
    assert (first.report, first.epoch, first.batch) == (None, 0, 0)
    assert (loader.stats().samples, loader.stats().skipped, loader.stats().batches) == (37, 3, 5)


def test_the_others_are_the_same_with_and_without_workers() -> None:
    def noise(num_workers: int) -> bytes:
        loader = DataLoader(
            Samples({3: fail, 20: fail}), batch_size=16, num_workers=num_workers, seed=3, on_error="skip"
        )
        with loader:
            return b"".join(batch[1].tobytes() for batch in loader)

    assert noise(0) == noise(2)


@WITH_AND_WITHOUT_WORKERS
def test_a_batch_of_which_nothing_is_left_is_left_out(num_workers: int) -> None:
    dataset = Samples(dict.fromkeys(range(8, 16), fail))
    loader = DataLoader(dataset, batch_size=8, num_workers=num_workers, on_error="skip")
    with loader:
        iterator = iter(loader)
        batches = [batch[0].tolist() for batch in iterator]
        assert iterator.progress == (40, 40)  # type: ignore[attr-defined]
    assert [batch[0] for batch in batches] == [0, 16, 24, 32]
    assert indices(loader) == list(range(8, 16))
    assert loader.stats().batches == 4


@WITH_AND_WITHOUT_WORKERS
def test_all_may_be_left_out(num_workers: int) -> None:
    batches, loader = loaded(Samples(dict.fromkeys(range(40), fail)), num_workers, on_error="skip")
    assert (batches, len(loader.skipped)) == ([], 40)


@WITH_AND_WITHOUT_WORKERS
def test_a_function_decides_about_each(num_workers: int) -> None:
    asked: list[SampleError] = []

    def only_odd(error: SampleError) -> Any:
        asked.append(error)
        return "skip" if error.index % 2 else "raise"

    loader = DataLoader(
        Samples({3: fail, 17: fail, 18: fail}), batch_size=8, num_workers=num_workers, on_error=only_odd
    )
    with loader:
        iterator = iter(loader)
        assert next(iterator)[0].tolist() == [0, 1, 2, 4, 5, 6, 7]
        assert next(iterator)[0].tolist() == list(range(8, 16))
        with pytest.raises(Broken):
            next(iterator)
        assert next(iterator)[0].tolist() == list(range(24, 32))
    assert [error.index for error in asked] == [3, 17, 18]


@WITH_AND_WITHOUT_WORKERS
def test_a_function_that_returns_no_word_is_told_so(num_workers: int) -> None:
    loader = DataLoader(Samples({1: fail}), num_workers=num_workers, on_error=lambda error: None)  # type: ignore[arg-type,return-value]
    with loader:
        iterator = iter(loader)
        next(iterator)
        with pytest.raises(ValueError, match="on_error returned None: let it return 'raise' or 'skip'"):
            next(iterator)
        assert next(iterator)[0].tolist() == [2]


@WITH_AND_WITHOUT_WORKERS
def test_a_function_that_raises_is_heard(num_workers: int) -> None:
    def rethrow(error: SampleError) -> Any:
        raise LookupError(f"no excuse for sample {error.index}") from error.exception

    loader = DataLoader(Samples({1: fail}), num_workers=num_workers, on_error=rethrow)
    with loader:
        iterator = iter(loader)
        next(iterator)
        with pytest.raises(LookupError, match="no excuse for sample 1"):
            next(iterator)
        assert next(iterator)[0].tolist() == [2]


class Together(Samples):
    """Loads the samples of a batch by one call."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class OnlyTogether(Dataset[Any]):
    """Loads the samples of a batch by one call, and cannot load one."""

    def __init__(self, samples: Samples) -> None:
        self.samples = samples

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self.samples[index] for index in indices]

    def __len__(self) -> int:
        return len(self.samples)


@WITH_AND_WITHOUT_WORKERS
def test_where_it_cannot_be_told_which_sample_failed_the_batch_is_skipped(num_workers: int) -> None:
    batches, loader = loaded(OnlyTogether(Samples({9: fail})), num_workers, on_error="skip")
    assert [batch[0] for batch in batches] == [0, 16, 24, 32]
    assert indices(loader) == [list(range(8, 16))]


@WITH_AND_WITHOUT_WORKERS
@pytest.mark.parametrize("error", [fail, stop, leave])
def test_where_samples_load_singly_too_only_that_one_is_skipped(num_workers: int, error: Any) -> None:
    batches, loader = loaded(Together({9: error}), num_workers, on_error="skip")
    assert [batch[:2] for batch in batches] == [[0, 1], [8, 10], [16, 17], [24, 25], [32, 33]]
    assert indices(loader) == [9]


def test_of_samples_that_load_together_the_failing_one_is_named() -> None:
    loader = DataLoader(Together({9: fail}), batch_size=8, num_workers=1, multiprocessing_context="fork")
    with loader, pytest.raises(Broken) as raised:
        list(loader)
    assert "batch 1, sample 9" in str(raised.value.__cause__)


class Clumsy(Together):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return super().__getitems__(indices)[1:]


def test_what_is_wrong_with_getitems_itself_is_raised() -> None:
    with pytest.raises(ValueError, match=r"Clumsy.__getitems__ gave 7 samples for 8 indices"):
        list(DataLoader(Clumsy({}), batch_size=8))


class Refusing(Samples):
    """Refuses to load what is bad together with others."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        if self.bad.keys() & set(indices):
            fail()
        return [self[index] for index in indices]


def test_a_sample_that_crashes_when_loaded_singly_is_all_that_is_lost() -> None:
    batches, loader = loaded(
        Refusing({9: crash, 12: fail}),
        1,
        on_error="skip",
        restart=RestartPolicy(backoff=0.0, max_attempts=1),
    )
    assert list(chain(*batches)) == [index for index in range(40) if index not in (9, 12)]
    assert indices(loader) == [9, 12]


def collate_all_but_9(samples: list[Any]) -> Any:
    if any(index == 9 for index, _ in samples):
        raise Broken("no 9 please")
    return [np.array([index for index, _ in samples])]


PARTS: dict[str, Callable[[Any], Any]] = {
    "a subset": lambda dataset: Subset(dataset, range(40)),
    "a subset of a subset": lambda dataset: Subset(Subset(dataset, range(40)), range(40)),
    "a chain": lambda dataset: ConcatDataset([dataset]),
}


@WITH_AND_WITHOUT_WORKERS
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("error", [fail, stop, leave])
def test_parts_of_datasets_lose_no_more_than_the_whole(num_workers: int, part: str, error: Any) -> None:
    batches, loader = loaded(PARTS[part](Samples({9: error})), num_workers, on_error="skip")
    assert batches[1] == [8, 10, 11, 12, 13, 14, 15]
    assert indices(loader) == [9]


def test_a_subset_of_what_loads_together_loads_together() -> None:
    sizes: set[int] = set()

    class Counting(Together):
        def __getitems__(self, indices: list[int]) -> list[Any]:
            sizes.add(len(indices))
            return super().__getitems__(indices)

    loaded(Subset(Counting(), range(40)), 0)
    assert sizes == {8}


@WITH_AND_WITHOUT_WORKERS
def test_a_function_that_raises_stopiteration_ends_no_loop(num_workers: int) -> None:
    def budget(error: SampleError) -> Any:
        return next(iter(()))

    loader = DataLoader(Samples({1: fail}, length=4), num_workers=num_workers, on_error=budget)
    with loader:
        iterator = iter(loader)
        next(iterator)
        with pytest.raises(RuntimeError, match="StopIteration in on_error") as raised:
            next(iterator)
        assert isinstance(raised.value.__cause__, Broken)
        assert [batch[0].tolist() for batch in iterator] == [[2], [3]]


@WITH_AND_WITHOUT_WORKERS
def test_the_first_that_is_skipped_is_a_warning(num_workers: int, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="dataloader"):
        loaded(Samples({3: fail, 4: fail, 21: fail}), num_workers, on_error="skip")
    levels = [record.levelno for record in caplog.records if record.name == "dataloader"]
    assert levels == [logging.WARNING, logging.INFO, logging.INFO]
    text = caplog.records[0].getMessage()
    assert text.startswith("sample 3 of batch 0, epoch 0: Broken was raised: a broken file is left out")


@WITH_AND_WITHOUT_WORKERS
def test_what_collate_raises_is_the_batchs(num_workers: int) -> None:
    batches, loader = loaded(Samples(), num_workers, on_error="skip", collate_fn=collate_all_but_9)
    assert [batch[0] for batch in batches] == [0, 16, 24, 32]
    assert (indices(loader), loader.stats().skipped) == ([list(range(8, 16))], 8)


@WITH_AND_WITHOUT_WORKERS
def test_single_samples_are_left_out(num_workers: int) -> None:
    loader = DataLoader(
        Samples({2: fail}, length=5), batch_size=None, num_workers=num_workers, on_error="skip"
    )
    with loader:
        assert [index for index, _ in loader] == [0, 1, 3, 4]
    assert indices(loader) == [2]


@pytest.mark.slow
def test_many_failures_of_any_size_travel() -> None:
    def fail_at_length() -> None:
        raise Broken("x" * 3_000)

    dataset = Samples(dict.fromkeys(range(0, 40, 2), fail_at_length))
    loader = DataLoader(dataset, batch_size=40, num_workers=1, on_error="skip", seed=0)
    with loader:
        assert [batch[0].tolist() for batch in loader] == [list(range(1, 40, 2))]
    assert all(len(str(error.exception)) == 3_000 for error in loader.skipped)


# ---- samples that end their workers --------------------------------------------------------------


@pytest.mark.parametrize("start_method", ["fork", "forkserver"])
def test_poison_is_skipped_and_its_mates_are_kept(start_method: str) -> None:
    loader = DataLoader(
        Samples({3: crash, 5: crash, 17: crash, 21: fail}),
        batch_size=8,
        num_workers=2,
        multiprocessing_context=start_method,
        seed=3,
        on_error="skip",
        restart=RestartPolicy(max_restarts=2, backoff=0.0, max_attempts=2),
    )
    with loader:
        batches = [batch[0].tolist() for batch in loader]
    assert sorted(chain(*batches)) == [index for index in range(40) if index not in (3, 5, 17, 21)]
    assert sorted(indices(loader)) == [3, 5, 17, 21]
    died = next(error for error in loader.skipped if error.index == 3)
    assert isinstance(died.exception, WorkerDiedError)
    assert [report.sample for report in died.exception.reports] == [3, 3]
    assert [report.attempt for report in died.exception.reports] == [1, 2]
    assert died.report is died.exception.report
    assert died.report.reason is ExitReason.CRASHED
    assert "crash" in died.traceback  # the function's name is in the stack


@pytest.mark.slow
def test_a_hundred_poison_samples_are_survived_though_ten_deaths_are_allowed() -> None:
    dataset = Samples(dict.fromkeys(range(0, 400, 4), crash), length=400)
    batches, loader = loaded(
        dataset, 3, on_error="skip", restart=RestartPolicy(max_restarts=10, max_attempts=1, backoff=0.0)
    )
    assert list(chain(*batches)) == [index for index in range(400) if index % 4]
    assert indices(loader) == list(range(0, 400, 4))


def test_poison_is_raised_at_its_turn_and_the_epoch_goes_on() -> None:
    loader = DataLoader(
        Samples({9: crash}), batch_size=8, num_workers=2, multiprocessing_context="fork", restart=POLICY
    )
    with loader:
        iterator = iter(loader)
        assert next(iterator)[0].tolist() == list(range(8))
        with pytest.raises(WorkerDiedError) as raised:
            next(iterator)
        assert [batch[0][0] for batch in iterator] == [16, 24, 32]
    assert len(raised.value.reports) == 3
    assert "Sample 9 has ended 3 workers, and is not tried again: RestartPolicy(max_attempts=3)" in str(
        raised.value
    )
    assert loader.skipped == []


def test_without_restarts_poison_raises_at_once() -> None:
    loader = DataLoader(
        Samples({9: crash}), num_workers=1, multiprocessing_context="fork", restart=None, on_error="skip"
    )
    with loader, pytest.raises(WorkerDiedError, match="restart=None"):
        list(loader)


def test_deaths_that_are_no_samples_fault_still_count() -> None:
    """Sample 3 crashes twice and then loads: it is no poison, so its deaths count after all."""
    batches: list[Any] = []
    with pytest.raises(WorkerDiedError, match="max_restarts=1"):
        batches, _ = loaded(
            CrashesTwice(), 2, on_error="skip", restart=RestartPolicy(max_restarts=1, backoff=0.0)
        )
    assert batches == []


class CrashesTwice(Samples):
    """Sample 3 ends the first two workers that load it."""

    def __init__(self) -> None:
        super().__init__(length=8_000)
        self.marks = os.memfd_create("marks")

    def __getitem__(self, index: int) -> tuple[int, float]:
        if index == 3 and os.fstat(self.marks).st_size < 2:
            os.write(self.marks, b"x")
            crash()
        return super().__getitem__(index)


def crash_on_9(samples: list[Any]) -> Any:
    if samples[0][0] <= 9 <= samples[-1][0]:
        crash()
    return [np.array([index for index, _ in samples])]


def test_a_crash_in_collate_is_the_batchs() -> None:
    batches, loader = loaded(Samples(), 2, on_error="skip", collate_fn=crash_on_9)
    assert [batch[0] for batch in batches] == [0, 16, 24, 32]
    assert indices(loader) == [list(range(8, 16))]
    assert "Batch 1 has ended 3 workers" in str(loader.skipped[0].exception)
