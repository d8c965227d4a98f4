"""The loader as its user sees it: its arguments and its batches."""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import pytest

from dataloader import DataLoader, Dataset, IterableDataset, RestartPolicy
from dataloader.pieces import Seeds
from dataloader.random_state import set_random_state
from supervisor.payload import PayloadError
from tests.datasets import (
    Augmented,
    Faulty,
    LargeArrays,
    Memo,
    TwoArguments,
    Unloadable,
    Unpicklable,
    raise_two_arguments,
)
from tests.equality import fingerprint
from tests.processes import living_descendants, wait_until

START_METHODS = ["forkserver", "fork", "spawn"]
GONE_WITHIN_S = 2.0


def forked(dataset: Any, num_workers: int = 2, **arguments: Any) -> DataLoader:
    """Make a loader with the start method that starts fastest, for tests of what it has no part in."""
    return DataLoader(dataset, num_workers=num_workers, multiprocessing_context="fork", **arguments)


class Stream(IterableDataset[int]):
    pass


# ---- lengths -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("samples", "batch_size", "drop_last", "batches"),
    [
        (10, 3, False, 4),
        (10, 3, True, 3),
        (9, 3, False, 3),
        (9, 3, True, 3),
        (2, 3, False, 1),
        (2, 3, True, 0),
        (0, 3, False, 0),
    ],
)
def test_the_length_is_the_number_of_batches(
    samples: int, batch_size: int, drop_last: bool, batches: int
) -> None:
    loader = DataLoader(range(samples), batch_size, drop_last=drop_last)
    assert len(loader) == len(list(loader)) == batches
    with forked(range(samples), batch_size=batch_size, drop_last=drop_last) as loader:
        assert len(loader) == len(list(loader)) == batches


def test_the_length_follows_the_dataset() -> None:
    data = [0, 1, 2]
    with forked(data) as loader:
        assert len(loader) == len(list(loader)) == 3
        data.append(3)
        assert len(loader) == len(list(loader)) == 4


# ---- batches -------------------------------------------------------------------------------------


def two_epochs(loader: DataLoader) -> Any:
    with loader:
        return fingerprint([list(loader), list(loader)])


AUGMENTED: dict[str, Any] = {"batch_size": 20, "shuffle": True, "seed": 7}
ALONE = two_epochs(DataLoader(Augmented(), **AUGMENTED))


@pytest.mark.parametrize(("num_workers", "persistent"), [(1, False), (2, True), (5, False)])
@pytest.mark.parametrize("method", START_METHODS)
def test_every_number_of_workers_gives_the_same_bytes(
    method: str, num_workers: int, persistent: bool
) -> None:
    loader = DataLoader(
        Augmented(),
        num_workers=num_workers,
        multiprocessing_context=method,
        persistent_workers=persistent,
        **AUGMENTED,
    )
    assert two_epochs(loader) == ALONE


def test_the_bytes_are_final() -> None:
    """What a seed gives in this version it has to give in the next."""
    first = next(iter(DataLoader(Augmented(), **AUGMENTED)))
    assert first["index"].tolist()[:6] == [1, 44, 14, 36, 18, 21]
    assert first["name"][:2] == ["1.jpg", "44.jpg"]
    digest = hashlib.sha256(first["crop"].tobytes() + first["noise"].tobytes()).hexdigest()
    assert digest[:16] == "11e9ee347c684605"


@pytest.mark.parametrize(
    "arguments",
    [
        {"prefetch_factor": 1},
        {"prefetch_factor": 100},
        {"prefetch_factor": 3, "persistent_workers": True},
        {"restart": None},
        {"restart": RestartPolicy(max_restarts=0)},
    ],
    ids=str,
)
def test_no_other_argument_changes_a_byte(arguments: dict[str, Any]) -> None:
    assert two_epochs(forked(Augmented(), **AUGMENTED, **arguments)) == ALONE


def test_out_of_order_the_same_batches_come() -> None:
    def by_content(loader: DataLoader) -> Any:
        with loader:
            return sorted(map(repr, map(fingerprint, loader)))

    alone = by_content(DataLoader(Augmented(), **AUGMENTED))
    assert by_content(forked(Augmented(), in_order=False, **AUGMENTED)) == alone


def test_in_order_is_the_order_of_the_sampler() -> None:
    with forked(range(1000), num_workers=5, batch_size=7) as loader:
        assert [n for batch in loader for n in batch] == list(range(1000))


def test_a_seed_decides_everything() -> None:
    def run(seed: int) -> Any:
        return fingerprint(list(DataLoader(Augmented(), batch_size=20, shuffle=True, seed=seed)))

    assert run(0) == run(0)
    assert len({repr(run(seed)) for seed in (0, 1, 2**64 - 1)}) == 3


def test_a_drawn_seed_can_be_read_and_used_again() -> None:
    drawn = DataLoader(Augmented(), shuffle=True)
    again = DataLoader(Augmented(), shuffle=True, seed=drawn.seed)
    assert fingerprint(list(drawn)) == fingerprint(list(again))
    assert DataLoader(Augmented()).seed != drawn.seed


def test_drawing_a_seed_leaves_the_users_random_state_alone() -> None:
    set_random_state(Seeds(1, 1, 1))
    expected = random.random(), np.random.random()
    set_random_state(Seeds(1, 1, 1))
    with forked(Augmented(), shuffle=True) as loader:
        list(loader)
    assert (random.random(), np.random.random()) == expected


@pytest.mark.parametrize("num_workers", [0, 2])
def test_each_epoch_has_its_own_order_and_augmentation(num_workers: int) -> None:
    start: dict[str, Any] = {"multiprocessing_context": "fork"} if num_workers else {}
    with DataLoader(Augmented(), batch_size=50, shuffle=True, num_workers=num_workers, **start) as loader:
        (first,), (second,) = loader, loader
    assert first["index"].tolist() != second["index"].tolist()
    assert sorted(first["index"]) == sorted(second["index"]) == list(range(50))
    assert first["noise"].tobytes() != second["noise"].tobytes()


@pytest.mark.parametrize("method", START_METHODS)
def test_a_dataset_may_keep_what_it_collates(method: str) -> None:
    expected = fingerprint(list(DataLoader(Memo(6), batch_size=2, shuffle=True, seed=1)))
    arguments: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": method}
    with DataLoader(Memo(6), batch_size=2, shuffle=True, seed=1, **arguments) as loader:
        assert fingerprint(list(loader)) == expected


@pytest.mark.parametrize("dataset", [[3, 1, 2], "abc", range(3), np.arange(6.0).reshape(3, 2)], ids=type)
def test_whatever_has_items_and_a_length_is_a_dataset(dataset: Any) -> None:
    alone = fingerprint(list(DataLoader(dataset, batch_size=2)))
    with forked(dataset, batch_size=2) as loader:
        assert fingerprint(list(loader)) == alone


def test_an_empty_dataset_is_an_empty_epoch() -> None:
    with forked([]) as loader:
        assert list(loader) == []


@pytest.mark.parametrize("method", ["forkserver", "fork"])
def test_workers_that_do_not_persist_see_the_dataset_as_it_is(method: str) -> None:
    data = [1, 2]
    with DataLoader(data, num_workers=1, multiprocessing_context=method) as loader:
        assert [batch.tolist() for batch in loader] == [[1], [2]]
        data[0] = 5
        assert [batch.tolist() for batch in loader] == [[5], [2]]


def test_persistent_workers_keep_the_dataset_as_it_was() -> None:
    data = [1, 2]
    with forked(data, persistent_workers=True) as loader:
        list(loader)
        data[0] = 5
        assert [batch.tolist() for batch in loader] == [[1], [2]]


# ---- what travels --------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["forkserver", "fork"])
def test_a_dataset_without_a_pickle_needs_fork(method: str) -> None:
    class Locked(Dataset[int]):
        def __init__(self) -> None:
            self.lock = threading.Lock()

        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> int:
            with self.lock:
                return index

    with DataLoader(Locked(), num_workers=1, multiprocessing_context=method) as loader:
        if method == "fork":
            assert [batch.tolist() for batch in loader] == [[0], [1], [2]]
        else:
            with pytest.raises(
                PayloadError, match=r"^dataset\.lock, a _thread\.lock, cannot be pickled .*'fork'"
            ):
                iter(loader)
    assert wait_until(lambda: not living_descendants(), GONE_WITHIN_S)


def test_lambdas_and_local_classes_travel_both_ways() -> None:
    class Local:
        def __init__(self, value: int) -> None:
            self.value = value

    loader = DataLoader(range(4), 2, num_workers=2, collate_fn=lambda samples: [Local(s) for s in samples])
    with loader:
        batches = list(loader)
    assert [[local.value for local in batch] for batch in batches] == [[0, 1], [2, 3]]


@pytest.mark.parametrize("method", ["forkserver", "fork"])
def test_a_batch_of_any_number_of_samples_travels(method: str) -> None:
    """Of 40,000 indices neither the task nor the result fits into a message."""
    with DataLoader(range(100_000), 40_000, num_workers=2, multiprocessing_context=method) as loader:
        sizes = [(len(batch), batch[0], batch[-1]) for batch in loader]
    assert sizes == [(40_000, 0, 39_999), (40_000, 40_000, 79_999), (20_000, 80_000, 99_999)]


def test_objects_of_any_size_travel() -> None:
    texts = ["x" * n for n in (10, 50_000, 70_000, 5_000_000)] * 5
    with forked(texts, collate_fn=list) as loader:
        assert list(loader) == [[text] for text in texts]


def test_thousands_of_large_arrays_in_a_batch_travel() -> None:
    with forked(LargeArrays(2500, 70_000), num_workers=1, batch_size=2500, collate_fn=list) as loader:
        (batch,) = loader
    assert [int(array[-1]) for array in batch] == [index % 251 for index in range(2500)]


class OneIs:
    """A dataset of numbers, one of which is something else."""

    def __init__(self, index: int, make: Callable[[], Any]) -> None:
        self.index = index
        self.make = make

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Any:
        return self.make() if index == self.index else index


@pytest.mark.parametrize("make", [Unpicklable, Unloadable])
def test_a_batch_that_cannot_travel_raises_for_itself_alone(make: Any) -> None:
    with forked(OneIs(5, make), collate_fn=list) as loader:
        iterator = iter(loader)
        pids = [worker.pid for worker in loader.workers()]
        assert list(islice(iterator, 5)) == [[n] for n in range(5)]
        with pytest.raises(PayloadError):
            next(iterator)
        assert [worker.pid for worker in loader.workers()] == pids
        assert list(iterator) == [[n] for n in range(6, 10)]
        assert not any(report.is_death for report in loader.reports)


@pytest.mark.parametrize("method", START_METHODS)
def test_an_exception_arrives_with_its_type_arguments_and_place(method: str) -> None:
    dataset = Faulty(40, at=21, fault=raise_two_arguments)
    with DataLoader(dataset, 4, num_workers=2, multiprocessing_context=method) as loader:
        iterator = iter(loader)
        assert len(list(islice(iterator, 5))) == 5
        workers = {f"worker {worker.id} (pid {worker.pid})" for worker in loader.workers()}
        with pytest.raises(TwoArguments) as raised:
            next(iterator)
        assert (raised.value.path, raised.value.line) == ("a.jpg", 17)
        text = str(raised.value.__cause__)
        assert text.strip().splitlines()[0] in {f"in {worker}, batch 5, sample 21:" for worker in workers}
        assert "in raise_two_arguments" in text
        assert next(iterator).tolist() == [24, 25, 26, 27]


# ---- base classes --------------------------------------------------------------------------------


def test_what_a_dataset_lacks_is_named() -> None:
    class Unfinished(Dataset[int]):
        pass

    with pytest.raises(NotImplementedError, match="Unfinished must define __getitem__"):
        Unfinished()[0]
    with pytest.raises(NotImplementedError, match="Stream must define __iter__"):
        iter(Stream())
