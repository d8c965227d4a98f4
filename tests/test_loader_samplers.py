"""Which samples a loader asks for, by which sampler, and how they come: in batches, singly, all at once."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from dataloader import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    RandomSampler,
    Sampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from tests.datasets import Augmented
from tests.equality import fingerprint

WORKERS = pytest.mark.parametrize("num_workers", [0, 2])


def loader_of(dataset: Any, num_workers: int, **arguments: Any) -> DataLoader:
    if num_workers:
        arguments["multiprocessing_context"] = "fork"
    return DataLoader(dataset, num_workers=num_workers, **arguments)


def batches_of(loader: DataLoader) -> list[Any]:
    with loader:
        return [batch.tolist() if isinstance(batch, np.ndarray) else batch for batch in loader]


class Pairs(Sampler):
    """A generator: every second index."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.epochs: list[int] = []

    def __iter__(self) -> Iterator[int]:
        yield from range(0, self.count, 2)

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)


class WithoutLength:
    def __getitem__(self, index: Any) -> Any:
        return index


class Fetched(Dataset[tuple[int, int]]):
    """Knows which indices were asked for together."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index, 1

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[int, int]]:
        return [(index, len(indices)) for index in indices]


@WORKERS
def test_a_users_sampler_decides_which_samples_come(num_workers: int) -> None:
    pairs = loader_of(range(10), num_workers, sampler=Pairs(9), batch_size=2)
    assert batches_of(pairs) == [[0, 2], [4, 6], [8]]
    assert batches_of(loader_of(range(10), num_workers, sampler=[3, 3, 1], batch_size=2)) == [[3, 3], [1]]
    assert batches_of(loader_of(WithoutLength(), num_workers, sampler=[5, 9])) == [[5], [9]]


@WORKERS
def test_a_users_batch_sampler_decides_the_batches(num_workers: int) -> None:
    batches = [[3], (1, 2), np.array([4, 5, 6]), range(2)]
    expected = [[3], [1, 2], [4, 5, 6], [0, 1]]
    assert batches_of(loader_of(range(10), num_workers, batch_sampler=batches)) == expected


@WORKERS
def test_keys_may_be_anything(num_workers: int) -> None:
    data = {"a": 1, ("b", 2): 2, None: 3}
    assert batches_of(loader_of(data, num_workers, sampler=list(data), batch_size=3)) == [[1, 2, 3]]


@WORKERS
def test_an_endless_batch_sampler_is_drawn_as_needed(num_workers: int) -> None:
    counter = itertools.count()
    with loader_of(WithoutLength(), num_workers, batch_sampler=([i, i] for i in counter)) as loader:
        assert [batch.tolist() for batch in itertools.islice(loader, 20)] == [[i, i] for i in range(20)]
        with pytest.raises(TypeError, match="has no len"):
            len(loader)
    assert next(counter) < 30


@WORKERS
@pytest.mark.parametrize(
    "sampler",
    [
        RandomSampler(range(30), replacement=True, num_samples=50),
        SubsetRandomSampler([2, 4, 8]),
        WeightedRandomSampler(range(30), 9),
    ],
    ids=lambda sampler: type(sampler).__name__,
)
def test_a_random_samplers_order_follows_from_the_loaders_seed(num_workers: int, sampler: Any) -> None:
    def epochs(**arguments: Any) -> list[Any]:
        with loader_of(range(30), num_workers, batch_size=4, **arguments) as loader:
            return [[batch.tolist() for batch in loader] for _ in range(2)]

    first = epochs(sampler=sampler, seed=1)
    assert first == epochs(sampler=sampler, seed=1) != epochs(sampler=sampler, seed=2)
    assert first[0] != first[1]


def test_a_batch_sampler_of_ours_passes_the_seed_on() -> None:
    sampler = RandomSampler(range(30))
    direct = batches_of(DataLoader(range(30), 4, sampler=sampler, seed=3))
    assert batches_of(DataLoader(range(30), batch_sampler=BatchSampler(sampler, 4, False), seed=3)) == direct
    assert batches_of(DataLoader(range(30), 4, shuffle=True, seed=3)) == direct


def test_two_iterators_of_one_loader_have_their_own_orders() -> None:
    loader = DataLoader(range(30), shuffle=True, seed=0)
    first, second = iter(loader), iter(loader)
    mixed = [(int(next(first)[0]), int(next(second)[0])) for _ in range(30)]
    again = DataLoader(range(30), shuffle=True, seed=0)
    assert [a for a, _ in mixed] == [int(batch[0]) for batch in again]
    assert [b for _, b in mixed] == [int(batch[0]) for batch in again]


@WORKERS
def test_set_epoch_repeats_an_epoch_and_is_passed_on(num_workers: int) -> None:
    with loader_of(Augmented(), num_workers, shuffle=True, batch_size=8, seed=0) as loader:
        epochs = [fingerprint(list(loader)) for _ in range(3)]
        loader.set_epoch(1)
        assert [fingerprint(list(loader)) for _ in range(2)] == epochs[1:]
        with pytest.raises(ValueError, match=r"^epoch=-1: give at least 0"):
            loader.set_epoch(-1)
    pairs = Pairs(4)
    DataLoader(range(4), sampler=pairs).set_epoch(5)
    DataLoader(range(4), batch_sampler=BatchSampler(pairs, 2, False)).set_epoch(6)
    assert pairs.epochs == [5, 6]


class Rewinding:
    """A sampler that is its own iterator, and begins anew whenever it is asked for one."""

    def __iter__(self) -> Rewinding:
        self._next = 0
        return self

    def __next__(self) -> int:
        if self._next == 5:
            raise StopIteration
        self._next += 1
        return self._next - 1


@WORKERS
def test_a_sampler_is_asked_for_its_iterator_once_an_epoch(num_workers: int) -> None:
    with loader_of(range(5), num_workers, sampler=Rewinding(), batch_size=2) as loader:
        batches = [batch.tolist() for batch in itertools.islice(loader, 9)]
    assert batches == [[0, 1], [2, 3], [4]]


# ---- a sampler that raises -----------------------------------------------------------------------


class Raising:
    """Raises once before its third item, then goes on."""

    def __init__(self) -> None:
        self._given = 0
        self._raised = False

    def __iter__(self) -> Raising:
        return self

    def __next__(self) -> int:
        if self._given == 2 and not self._raised:
            self._raised = True
            raise OSError("no index now")
        if self._given == 5:
            raise StopIteration
        self._given += 1
        return self._given - 1


def until_it_raises(iterator: Iterator[Any]) -> list[list[int]]:
    taken: list[list[int]] = []
    while True:
        try:
            taken.append(next(iterator).tolist())
        except OSError:
            return taken


@WORKERS
def test_after_a_samplers_exception_the_next_batch_is_the_next_batch(num_workers: int) -> None:
    with loader_of(range(9), num_workers, sampler=Raising(), batch_size=3) as loader:
        try:
            iterator = iter(loader)
        except OSError:  # the first batches are drawn at once
            pytest.fail("an exception of the sampler belongs to next()")
        taken = until_it_raises(iterator)
        assert taken + [batch.tolist() for batch in iterator] == [[0, 1, 2], [3, 4]]


@pytest.mark.parametrize("batch_size", [2, None])
@WORKERS
def test_a_generator_that_raised_is_no_end_of_the_epoch(num_workers: int, batch_size: int | None) -> None:
    def indices() -> Iterator[int]:
        yield from (0, 1, 2)
        raise OSError("no index any more")

    collate = np.array if batch_size else (lambda sample: np.array([sample]))
    with loader_of(
        range(9), num_workers, sampler=indices(), batch_size=batch_size, collate_fn=collate
    ) as loader:
        iterator = iter(loader)
        assert until_it_raises(iterator) == ([[0, 1]] if batch_size else [[0], [1], [2]])
        for _ in range(2):
            with pytest.raises(RuntimeError, match="an exception ended the sampler's generator"):
                next(iterator)


@pytest.mark.parametrize("batch_size", [2, None])
@WORKERS
def test_a_sampler_that_can_be_iterated_once_is_warned_of_the_second_time(
    num_workers: int, batch_size: int | None
) -> None:
    with loader_of(range(9), num_workers, sampler=iter([1, 2, 3]), batch_size=batch_size) as loader:
        assert len(list(loader)) == (2 if batch_size else 3)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert list(loader) == []
        (warning,) = [warning for warning in caught if warning.category is UserWarning]
        assert "is an iterator: this epoch begins where the last one left it" in str(warning.message)
        assert warning.filename == __file__


# ---- single samples, and many at once ------------------------------------------------------------


@WORKERS
def test_without_batches_samples_come_as_they_are(num_workers: int) -> None:
    data = [1, "two", {"three": np.arange(3)}, None]
    expected = fingerprint(data)
    with loader_of(data, num_workers, batch_size=None) as loader:
        assert len(loader) == 4
        assert fingerprint(list(loader)) == expected
    doubled = loader_of(range(3), num_workers, batch_size=None, collate_fn=lambda sample: sample * 2)
    assert batches_of(doubled) == [0, 2, 4]
    shuffled = loader_of(range(9), num_workers, batch_size=None, shuffle=True, seed=0)
    assert sorted(batches_of(shuffled)) == list(range(9))


def test_without_batches_every_number_of_workers_gives_the_same_bytes() -> None:
    def bytes_with(num_workers: int) -> Any:
        loader = loader_of(Augmented(), num_workers, batch_size=None, shuffle=True, seed=0)
        return fingerprint(batches_of(loader))

    assert bytes_with(0) == bytes_with(1) == bytes_with(3)


@WORKERS
def test_getitems_is_asked_once_for_a_batch(num_workers: int) -> None:
    batches = batches_of(loader_of(Fetched(), num_workers, batch_size=16, collate_fn=list))
    assert batches == [[(i, 16) for i in range(16)], [(i, 4) for i in range(16, 20)]]
    assert batches_of(loader_of(Fetched(), num_workers, batch_size=None))[3] == (3, 1)


@WORKERS
def test_getitems_that_gives_too_few_says_so(num_workers: int) -> None:
    class Short(Fetched):
        def __getitems__(self, indices: Sequence[int]) -> list[tuple[int, int]]:
            return super().__getitems__(indices)[1:]

    with (
        loader_of(Short(), num_workers, batch_size=4) as loader,
        pytest.raises(ValueError, match=r"Short.__getitems__ gave 3 samples for 4 indices"),
    ):
        next(iter(loader))


@WORKERS
def test_subsets_and_concatenations(num_workers: int) -> None:
    data: Any = ConcatDataset([range(10), Subset(range(100), range(50, 60)), range(0)])
    assert len(data) == 20
    expected = [[0, 1, 2, 3, 4, 5, 6, 7], [8, 9, 50, 51, 52, 53, 54, 55], [56, 57, 58, 59]]
    assert batches_of(loader_of(data, num_workers, batch_size=8)) == expected


def test_the_length_follows_a_dataset_that_grows_between_epochs() -> None:
    data = list(range(3))
    with loader_of(data, 1, batch_size=2, shuffle=True) as loader:
        for length in (3, 5, 1):
            data[:] = range(length)
            assert sorted(i for batch in loader for i in batch.tolist()) == list(range(length))
            assert len(loader) == -(-length // 2)
