"""Pickling, copying and deep-copying a loader, and dropping one."""

from __future__ import annotations

import copy
import gc
import multiprocessing
import pickle
import random
import weakref
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import cloudpickle
import numpy as np
import pytest

from dataloader import DataLoader, RestartPolicy, SequentialSampler
from tests.datasets import Augmented, LargeArrays
from tests.equality import fingerprint
from tests.processes import belongings, living_descendants, wait_until

pytestmark = pytest.mark.slow

GONE_WITHIN_S = 2.0


def pickled(loader: DataLoader) -> DataLoader:
    copied: DataLoader = pickle.loads(pickle.dumps(loader))
    return copied


Copy = Callable[[DataLoader], DataLoader]
COPIES = pytest.mark.parametrize("make_copy", [copy.copy, copy.deepcopy, pickled])


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    before = belongings()
    yield
    assert belongings() == before


def forked(dataset: Any, **arguments: Any) -> DataLoader:
    return DataLoader(dataset, num_workers=2, multiprocessing_context="fork", **arguments)


# ---- copies --------------------------------------------------------------------------------------


@COPIES
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_copy_delivers_what_its_original_would(make_copy: Copy, num_workers: int) -> None:
    with DataLoader(Augmented(), 4, shuffle=True, num_workers=num_workers) as loader:
        with make_copy(loader) as copied:
            assert copied.seed == loader.seed
            assert fingerprint(list(copied)) == fingerprint(list(loader))
            assert fingerprint(list(copied)) == fingerprint(list(loader))
        copied.set_epoch(0)
        loader.set_epoch(0)
        assert fingerprint(list(copied)) == fingerprint(list(loader))
        copied.close()


@COPIES
def test_a_copy_made_in_the_middle_has_workers_and_figures_of_its_own(make_copy: Copy) -> None:
    with forked(Augmented(), persistent_workers=True) as loader:
        iterator = iter(loader)
        next(iterator)
        copied = make_copy(loader)
        assert (copied.workers(), copied.reports, copied.stats().batches) == ([], [], 0)
        pids = {worker.pid for worker in loader.workers()}
        assert len(list(copied)) == 50
        assert {worker.pid for worker in copied.workers()}.isdisjoint(pids)
        copied.close()
        assert {worker.pid for worker in loader.workers()} == pids
        assert len(list(iterator)) == 49
        assert loader.stats().batches == 50


@COPIES
def test_a_copy_keeps_every_setting_and_stays_frozen(make_copy: Copy) -> None:
    loader = DataLoader(
        np.arange(20),
        4,
        num_workers=2,
        sampler=SequentialSampler(range(10)),
        drop_last=True,
        worker_init_fn=print,
        multiprocessing_context=multiprocessing.get_context("fork"),
        generator=random.Random(1),
        prefetch_factor=3,
        persistent_workers=True,
        in_order=False,
        restart=RestartPolicy(max_restarts=2),
    )
    copied = make_copy(loader)
    for name in (
        "batch_size",
        "num_workers",
        "drop_last",
        "worker_init_fn",
        "start_method",
        "prefetch_factor",
        "persistent_workers",
        "in_order",
        "restart",
        "seed",
        "collate_fn",
        "num_items",
    ):
        assert getattr(copied, name) == getattr(loader, name), name
    assert [list(batch) for batch in copied.batch_sampler or ()] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    with pytest.raises(ValueError, match="batch_size of a DataLoader cannot be set"):
        copied.batch_size = 1


def test_a_copy_shares_the_dataset_and_a_deep_copy_does_not() -> None:
    loader = DataLoader(np.zeros(5))
    assert copy.copy(loader).dataset is loader.dataset
    deep = copy.deepcopy(loader)
    deep.dataset[:] = 1
    assert [float(batch[0]) for batch in deep] == [1] * 5
    assert [float(batch[0]) for batch in loader] == [0] * 5


@COPIES
def test_parts_of_a_copy_are_those_of_its_original(make_copy: Copy) -> None:
    loader = DataLoader(range(10), shuffle=True)
    for part, other in zip(loader.split(3), make_copy(loader).split(3), strict=True):
        assert fingerprint(list(part)) == fingerprint(list(other))


def test_a_loader_with_a_lambda_is_refused_by_pickle_and_taken_by_cloudpickle() -> None:
    loader = forked(range(10), batch_size=5, collate_fn=lambda samples: samples[::-1])
    with pytest.raises((AttributeError, pickle.PicklingError), match="lambda"):
        pickle.dumps(loader)
    with cloudpickle.loads(cloudpickle.dumps(loader)) as copied:
        assert list(copied) == [[4, 3, 2, 1, 0], [9, 8, 7, 6, 5]]


# ---- drops ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("taken", [0, 1, 9, 10], ids="{} taken".format)
@pytest.mark.parametrize("persistent", [False, True], ids=["anew", "persistent"])
@pytest.mark.parametrize("first", ["loader", "iterator"])
def test_a_loader_may_be_dropped_at_any_point(taken: int, persistent: bool, first: str) -> None:
    """Its iterator goes on; when that is dropped too, or was before, nothing is left."""
    owned: dict[str, Any] = {"loader": forked(LargeArrays(10), persistent_workers=persistent)}
    owned["iterator"] = iter(owned["loader"])
    kept = list(islice(owned["iterator"], taken))
    del owned[first]
    if first == "loader":
        kept += list(owned["iterator"])
    owned.clear()
    assert [int(batch[0, -1]) for batch in kept] == list(range(len(kept)))
    assert wait_until(lambda: not living_descendants(), GONE_WITHIN_S)


def test_a_loader_in_a_cycle_goes_with_the_garbage() -> None:
    loader = forked(LargeArrays(10))
    loader.itself = loader
    loader.iterator = iter(loader)
    batch = next(loader.iterator)  # type: ignore[attr-defined]
    gone = weakref.ref(loader)
    del loader
    gc.collect()
    assert gone() is None
    assert int(batch[0, -1]) == 0
    assert wait_until(lambda: not living_descendants(), GONE_WITHIN_S)


def test_a_loader_that_was_never_iterated_is_just_dropped() -> None:
    gone = weakref.ref(forked(range(10), persistent_workers=True))
    assert gone() is None
