"""A loader's arguments: what is taken, what is refused and in which words, what can be changed later."""

from __future__ import annotations

import multiprocessing
import random
import warnings
from typing import Any

import multiprocess
import numpy as np
import pytest

from dataloader import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    RestartPolicy,
    SequentialSampler,
    arguments,
    default_collate,
    default_convert,
)

START_METHODS = ["forkserver", "fork", "spawn"]


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"batch_size": 0}, ValueError, "batch_size=0: give at least 1"),
        ({"batch_size": -3}, ValueError, "batch_size=-3: give at least 1"),
        ({"batch_size": 1.5}, ValueError, r"batch_size=1\.5: give a whole number, at least 1"),
        ({"batch_size": True}, ValueError, "batch_size=True: give a whole number"),
        ({"batch_size": "4"}, ValueError, "batch_size='4': give a whole number"),
        ({"num_workers": -1}, ValueError, "num_workers=-1: give at least 0"),
        ({"num_workers": 2.0}, TypeError, r"num_workers=2\.0: give a whole number, at least 0"),
        ({"num_workers": None}, TypeError, "num_workers=None: give a whole number"),
        ({"collate_fn": 5}, TypeError, "collate_fn=5 cannot be called: give a function of a list of samples"),
        ({"num_workers": 1, "prefetch_factor": 0}, ValueError, "prefetch_factor=0: give at least 1"),
        ({"num_workers": 1, "prefetch_factor": 2.0}, TypeError, r"prefetch_factor=2\.0: give a whole number"),
        (
            {"prefetch_factor": 2},
            ValueError,
            "prefetch_factor=2 without workers: set num_workers > 0 or leave",
        ),
        (
            {"persistent_workers": True},
            ValueError,
            "persistent_workers=True without workers: set num_workers",
        ),
        (
            {"multiprocessing_context": "fork"},
            ValueError,
            "multiprocessing_context='fork' without workers: set",
        ),
        (
            {"num_workers": 1, "multiprocessing_context": "thread"},
            ValueError,
            "multiprocessing_context='thread': give one of forkserver, fork, spawn",
        ),
        (
            {"num_workers": 1, "multiprocessing_context": 5},
            TypeError,
            "multiprocessing_context=5: give one of forkserver, fork, spawn, or a context",
        ),
        ({"seed": -1}, ValueError, r"seed=-1: give a whole number from 0 to 2\*\*64 - 1, or None"),
        ({"seed": 2**64}, ValueError, f"seed={2**64}: give a whole number from 0"),
        ({"seed": 1.0}, TypeError, r"seed=1\.0: give a whole number from 0"),
        ({"seed": True}, TypeError, "seed=True: give a whole number from 0"),
        (
            {"generator": 5},
            TypeError,
            "generator=5: give a numpy.random.Generator or a random.Random, or seed=",
        ),
        ({"generator": random.Random(), "seed": 3}, ValueError, "seed=3 and generator=.*: leave one out"),
        ({"timeout": -1, "num_workers": 1}, ValueError, "timeout=-1: give a number of seconds, at least 0"),
        ({"timeout": float("nan"), "num_workers": 1}, ValueError, "timeout=nan: give a number of seconds"),
        ({"timeout": "5", "num_workers": 1}, TypeError, "timeout='5': give a number of seconds, or 0 for no"),
        ({"timeout": 5}, ValueError, "timeout=5 without workers: set num_workers > 0 or leave it out"),
        ({"on_error": "ignore"}, ValueError, "on_error='ignore': give 'raise', 'skip', or a function of a"),
        (
            {"on_error": None},
            TypeError,
            "on_error=None: give 'raise', 'skip', or a function of a SampleError",
        ),
        ({"worker_memory_limit": "much", "num_workers": 1}, ValueError, "worker_memory_limit='much': give a"),
        ({"worker_memory_limit": 0, "num_workers": 1}, ValueError, "worker_memory_limit=0: give a number of"),
        ({"worker_memory_limit": 1.5, "num_workers": 1}, TypeError, "worker_memory_limit=1.5: give a number"),
        (
            {"worker_memory_limit": True, "num_workers": 1},
            TypeError,
            "worker_memory_limit=True: give a number",
        ),
        (
            {"worker_memory_limit": 1},
            ValueError,
            "worker_memory_limit=1 without workers: set num_workers > 0",
        ),
        (
            {"worker_init_fn": 5},
            TypeError,
            "worker_init_fn=5 cannot be called: give a function of a worker's id",
        ),
        (
            {"pin_memory": True},
            ValueError,
            "pin_memory=True: batches are NumPy arrays, which cannot be pinned",
        ),
        ({"pin_memory_device": "cuda"}, ValueError, "pin_memory_device='cuda' without pin_memory: leave it"),
        ({"drop_last": "no"}, ValueError, "drop_last='no': give True or False"),
        ({"shuffle": "no"}, TypeError, "shuffle='no': give True or False"),
        ({"in_order": None}, TypeError, "in_order=None: give True or False"),
        ({"sampler": 5}, TypeError, "sampler=5 cannot be iterated: give a sampler, or a list of indices"),
        (
            {"batch_sampler": 5},
            TypeError,
            "batch_sampler=5 cannot be iterated: give a sampler, or a list of bat",
        ),
        (
            {"sampler": [1], "shuffle": True},
            ValueError,
            r"shuffle=True and sampler=\[1\]: the sampler decides",
        ),
        ({"batch_sampler": [[1]], "batch_size": 2}, ValueError, r"batch_size=2 and batch_sampler=\[\[1\]\]"),
        ({"batch_sampler": [[1]], "batch_size": None}, ValueError, "batch_size=None and batch_sampler="),
        ({"batch_sampler": [[1]], "shuffle": True}, ValueError, "shuffle=True and batch_sampler="),
        ({"batch_sampler": [[1]], "sampler": [1]}, ValueError, r"sampler=\[1\] and batch_sampler="),
        ({"batch_sampler": [[1]], "drop_last": True}, ValueError, "drop_last=True and batch_sampler="),
        (
            {"batch_size": None, "drop_last": True},
            ValueError,
            "drop_last=True and batch_size=None: without batc",
        ),
        ({"restart": 3}, TypeError, "restart=3: give a RestartPolicy, or None to never replace a worker"),
    ],
)
def test_a_wrong_argument_is_named_with_what_to_write_instead(
    arguments: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=f"^{message}"):
        DataLoader(range(10), **arguments)


@pytest.mark.parametrize(
    ("given", "limit_bytes"),
    [
        (1, 1),
        ("2GiB", 2 << 30),
        ("1.5 MB", 1_500_000),
        ("300k", 300_000),
        ("64 MiB", 64 << 20),
        ("7B", 7),
        (None, None),
    ],
)
def test_a_memory_limit_is_bytes_or_text(given: Any, limit_bytes: int | None) -> None:
    loader = DataLoader(range(10), num_workers=1, worker_memory_limit=given)
    assert loader.worker_memory_limit == given
    assert arguments.checked_memory_limit(given, num_workers=1) == limit_bytes


class WithoutLength:
    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize(
    ("dataset", "kind", "message"),
    [
        (5, TypeError, "dataset=5 has no __getitem__ and no __iter__: give a dataset that has either"),
        (iter("abc"), TypeError, "is an iterator, which can be iterated only once: give an IterableDataset"),
        (WithoutLength, TypeError, "WithoutLength'> is a class: give an instance of it"),
        (WithoutLength(), TypeError, "has no __len__: define it, or give a sampler or a batch_sampler"),
    ],
    ids=["number", "iterator", "a class", "without length"],
)
def test_a_wrong_dataset_is_refused(dataset: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        DataLoader(dataset)


def test_the_arguments_of_torch_come_in_its_order() -> None:
    loader = DataLoader(range(10), 4, True, None, None, 2, list, False, True, 0, None, "fork", None)
    assert (loader.batch_size, loader.num_workers, loader.drop_last) == (4, 2, True)
    assert (loader.collate_fn, loader.start_method) == (list, "fork")


@pytest.mark.parametrize("library", [multiprocessing, multiprocess])
@pytest.mark.parametrize("method", START_METHODS)
def test_a_start_method_is_a_name_or_a_context(library: Any, method: str) -> None:
    for context in (method, library.get_context(method)):
        assert DataLoader(range(3), num_workers=1, multiprocessing_context=context).start_method == method


def test_the_defaults() -> None:
    loader = DataLoader(range(3), num_workers=1)
    assert loader.start_method == "forkserver"
    assert loader.prefetch_factor == 2
    assert loader.restart == RestartPolicy(max_restarts=10, period=60.0, backoff=0.1, max_attempts=3)


def test_what_torch_users_read_is_there() -> None:
    loader = DataLoader(range(9), 4, num_workers=1, prefetch_factor=3, multiprocessing_context="fork")
    assert (loader.batch_size, loader.drop_last, loader.timeout, loader.in_order) == (4, False, 0, True)
    assert isinstance(loader.sampler, SequentialSampler)
    assert isinstance(loader.batch_sampler, BatchSampler)
    assert loader.batch_sampler.sampler is loader.sampler
    assert (loader.collate_fn, loader.worker_init_fn, loader.generator) == (default_collate, None, None)
    assert (loader.multiprocessing_context, loader.prefetch_factor) == ("fork", 3)
    assert (loader.pin_memory, loader.pin_memory_device, loader.persistent_workers) == (False, "", False)
    assert isinstance(DataLoader(range(9), shuffle=True).sampler, RandomSampler)
    assert DataLoader(range(9)).prefetch_factor is None


def test_a_batch_sampler_leaves_no_batch_size() -> None:
    batches = [[0, 1], [2]]
    loader = DataLoader(range(3), batch_sampler=batches)
    assert (loader.batch_size, loader.batch_sampler, len(loader)) == (None, batches, 2)


def test_without_batches_there_is_no_batch_sampler() -> None:
    loader = DataLoader(range(3), batch_size=None)
    assert (loader.batch_size, loader.batch_sampler, loader.collate_fn) == (None, None, default_convert)
    assert len(loader) == 3


def test_numpy_integers_and_flags_are_numbers_and_flags() -> None:
    loader = DataLoader(range(9), np.int64(2), drop_last=np.True_, seed=np.uint64(3))  # type: ignore[arg-type]
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert (loader.seed, type(loader.seed)) == (3, int)


@pytest.mark.parametrize("name", ["dataset", "batch_size", "sampler", "batch_sampler", "drop_last", "seed"])
def test_what_a_loader_was_made_of_stays(name: str) -> None:
    loader = DataLoader(range(3))
    before = getattr(loader, name)
    with pytest.raises(ValueError, match=f"^{name} of a DataLoader cannot be set once it is made"):
        setattr(loader, name, before)
    assert getattr(loader, name) is before


@pytest.mark.parametrize("generator", [np.random.default_rng, random.Random])
def test_a_generator_decides_the_seed(generator: Any) -> None:
    first, second = (DataLoader(range(3), generator=generator(1)).seed for _ in range(2))
    shared = generator(1)
    assert first == second == DataLoader(range(3), generator=shared).seed
    assert DataLoader(range(3), generator=shared).seed != first


# ---- cores ---------------------------------------------------------------------------------------


def test_more_workers_than_cores_are_warned_of_once_where_the_loader_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(arguments, "cpu_quota", lambda: 1.5)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 2, 3})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        DataLoader(range(3), num_workers=2)
        assert caught == []
        loader = DataLoader(range(3), num_workers=3, multiprocessing_context="fork")
        with loader:
            list(loader)
    (warning,) = [warning for warning in caught if warning.category is UserWarning]
    assert str(warning.message).startswith("num_workers=3, but this process may use 2 cores (affinity and")
    assert warning.filename == __file__


@pytest.mark.parametrize(
    ("affinity", "quota", "cores"),
    [({0}, None, 1), ({0, 1, 5}, None, 3), ({0, 1}, 8.0, 2), ({0, 1}, 0.5, 1), ({0, 1, 2}, 2.0, 2)],
)
def test_affinity_and_quota_bound_the_cores(affinity: set[int], quota: float | None, cores: int) -> None:
    assert arguments.usable_cores(affinity, quota) == cores
