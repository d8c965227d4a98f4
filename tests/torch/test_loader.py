"""What users of torch's loader rely on: batches, errors, workers, and what may be changed."""

from __future__ import annotations

import ctypes
import inspect
import math
import os
import pickle
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.utils.data as data

from dataloader import RestartPolicy, WorkerDiedError
from dataloader import get_worker_info as our_worker_info
from dataloader.torch import DataLoader
from tests.torch.datasets import (
    Augmented,
    Counting,
    Failing,
    InWorker,
    Mixed,
    Slow,
    stacked_by_torch,
    start,
)

FORK: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": "fork"}


def same(one: Any, other: Any) -> bool:
    """Whether both are the same, down to types, dtypes and bits."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


# ---- batches -------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [{}, FORK], ids=["in process", "workers"])
@pytest.mark.parametrize("batch_size", [3, None])
def test_batches_are_torchs(workers: dict[str, Any], batch_size: int | None) -> None:
    given = list(DataLoader(Mixed(8), batch_size, **workers))
    assert same(given, list(data.DataLoader(Mixed(8), batch_size)))


def test_batches_depend_on_the_seed_and_not_on_workers_or_their_deaths() -> None:
    def epochs(**arguments: Any) -> Any:
        torch.manual_seed(11)
        with DataLoader(Augmented(60), 16, shuffle=True, **arguments) as loader:
            first = []
            for batch in loader:
                first.append(batch)
                if len(first) == 1 and arguments:
                    os.kill(loader.workers()[0].pid, 9)
            return [first, list(loader)]

    assert same(epochs(), epochs(**FORK))


def test_the_users_own_random_state_is_left_alone() -> None:
    torch.manual_seed(1)
    list(DataLoader(Augmented(4), seed=3))
    after = torch.rand(3)
    torch.manual_seed(1)
    list(DataLoader(Counting(4), seed=4))
    assert torch.equal(torch.rand(3), after)


def test_no_memory_of_torchs_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any) -> Any:
        raise AssertionError("torch's shared memory was asked for")

    for name in ("_new_using_fd_cpu", "_new_using_filename_cpu", "_share_fd_cpu_", "_share_filename_cpu_"):
        monkeypatch.setattr(torch.UntypedStorage, name, refuse)
    batches = list(DataLoader(Augmented(8), 4, collate_fn=stacked_by_torch, **FORK))
    assert [batch["noise"].shape for batch in batches] == [(4, 200, 100)] * 2
    listed = list(DataLoader(Augmented(8), 4, collate_fn=list, **FORK))
    assert listed[0][3]["noise"].untyped_storage().nbytes() == 200 * 100 * 4


def test_a_replaced_collate_function_of_the_users_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    collate_fns = data._utils.collate.default_collate_fn_map
    monkeypatch.setitem(collate_fns, int, lambda batch, *, collate_fn_map: sum(batch))
    assert list(DataLoader(Counting(8), 4, **FORK)) == [6, 22]


def test_a_collate_function_of_the_users_for_containers_wins_too(monkeypatch: pytest.MonkeyPatch) -> None:
    collate_fns = data._utils.collate.default_collate_fn_map
    monkeypatch.setitem(collate_fns, (set, tuple), lambda batch, *, collate_fn_map: len(batch))
    assert list(DataLoader(data.TensorDataset(torch.arange(8)), 4, **FORK)) == [4, 4]


@pytest.mark.parametrize("collate_fn", [None, lambda samples: data.default_collate(samples)])
def test_collate_functions_of_worker_init_fn_count(collate_fn: Any) -> None:
    def keep_dicts(worker: int) -> None:
        collate_fns = data._utils.collate.default_collate_fn_map
        collate_fns[dict] = lambda samples, *, collate_fn_map: ("mine", list(samples))

    samples = [{"a": 1}, {"a": 2}]
    loader = DataLoader(samples, batch_size=2, collate_fn=collate_fn, worker_init_fn=keep_dicts, **FORK)
    assert list(loader) == [("mine", samples)]


class Doubled(int):
    """A number with a collate function of its own."""


@dataclass
class Double:
    """A collate function that has no hash."""

    factor: int

    def __call__(self, samples: list[Doubled], *, collate_fn_map: Any) -> Any:
        return torch.tensor(samples) * self.factor


def test_a_collate_function_of_the_users_may_be_any_callable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(data._utils.collate.default_collate_fn_map, Doubled, Double(2))
    ((batch, _),) = DataLoader([(Doubled(1), 1), (Doubled(2), 2)], batch_size=2, **FORK)
    assert batch.tolist() == [2, 4]


class AsIndex:
    """Can stand for a number where an index is wanted, and no tensor can be made of it."""

    def __index__(self) -> int:
        return 3


@pytest.mark.parametrize("workers", [{}, FORK], ids=["in process", "workers"])
def test_what_torch_makes_no_tensor_of_is_refused(workers: dict[str, Any]) -> None:
    with pytest.raises(RuntimeError, match="Could not infer dtype of AsIndex"):
        list(DataLoader([1, AsIndex()], batch_size=2, **workers))


class Columns:
    """Gives whole columns instead of samples."""

    def __len__(self) -> int:
        return 4

    def __getitems__(self, indices: list[int]) -> dict[str, list[int]]:
        return {"x": indices, "y": [-index for index in indices]}


@pytest.mark.parametrize("workers", [{}, FORK], ids=["in process", "workers"])
@pytest.mark.parametrize("loader", [DataLoader, data.DataLoader], ids=["ours", "torch"])
def test_what_getitems_gives_is_collated_as_it_is(loader: Any, workers: dict[str, Any]) -> None:
    assert list(loader(Columns(), batch_size=2, collate_fn=dict, **workers)) == [
        {"x": [0, 1], "y": [0, -1]},
        {"x": [2, 3], "y": [-2, -3]},
    ]


def test_kept_batches_keep_their_values() -> None:
    batches = list(DataLoader(Augmented(80), 1, **FORK))
    assert [int(batch["index"]) for batch in batches] == list(range(80))
    assert len({float(batch["noise"].sum()) for batch in batches}) == 80


def test_slow_batches_hold_up_the_others_only_in_order() -> None:
    in_order, as_they_come = (
        [int(batch) for batch in DataLoader(Slow(8), in_order=in_order, **FORK)] for in_order in (True, False)
    )
    assert in_order == list(range(8))
    assert sorted(as_they_come) == in_order
    assert as_they_come.index(2) > 2


def test_the_first_batches_go_to_the_workers_in_turn() -> None:
    with DataLoader(
        InWorker(40), 2, collate_fn=list, num_workers=3, multiprocessing_context="fork"
    ) as loader:
        ids = [[sample[0] for sample in batch] for batch in loader]
    assert ids[:6] == [[worker] * 2 for worker in (0, 1, 2, 0, 1, 2)]


# ---- in a worker ---------------------------------------------------------------------------------


def test_what_code_in_a_worker_sees() -> None:
    dataset = InWorker(12)
    before = os.sched_getaffinity(0)
    loader = DataLoader(dataset, 3, collate_fn=list, worker_init_fn=start, **FORK)
    iterator: Any = iter(loader)
    samples = [sample for batch in iterator for sample in batch]
    pids = [worker.pid for worker in iterator._workers]
    for worker, num_workers, seed, pid, threads, started, cores in samples:
        assert (num_workers, pid, threads) == (2, pids[worker], 1)
        assert seed == loader.seed + worker
        assert started == (worker, seed)
        assert cores == [min(before)]
    assert (data.get_worker_info(), our_worker_info()) == (None, None)
    assert (dataset.started, os.sched_getaffinity(0)) == (None, before)


def test_torchs_worker_info_cannot_be_changed_and_ours_is_there_too() -> None:
    def collate(samples: Any) -> Any:
        info: Any = data.get_worker_info()
        ours: Any = our_worker_info()
        with pytest.raises((AttributeError, RuntimeError), match="annot assign"):
            info.id = 5
        return (info.id, info.num_workers, info.seed) == (ours.id, ours.num_workers, ours.seed)

    assert all(DataLoader(Counting(4), collate_fn=collate, **FORK))


@pytest.mark.slow
def test_under_forkserver_it_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """One start of fresh interpreters, which import torch, for all that differs there."""

    def doubled(batch: Any, *, collate_fn_map: Any = None) -> Any:
        return [2 * number for number in batch]

    monkeypatch.setitem(data._utils.collate.default_collate_fn_map, int, doubled)
    loader = DataLoader(InWorker(12), 3, num_workers=2, worker_init_fn=start, seed=2**63)
    assert (loader.start_method, loader.multiprocessing_context) == ("forkserver", None)
    with loader:
        batches = list(loader)
    assert [batch[0] for batch in batches] == [[0] * 3, [2] * 3] * 2
    assert [batch[4] for batch in batches] == [[2] * 3] * 4
    assert batches[1][5][1] == [2 * (2**63 + 1)] * 3


# ---- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [{}, FORK], ids=["in process", "workers"])
def test_every_batch_that_fails_raises_and_the_next_is_the_next(workers: dict[str, Any]) -> None:
    iterator: Any = iter(DataLoader(Failing(41), 2, shuffle=True, **workers))
    for _ in range(math.ceil(41 / 2)):
        with pytest.raises(NotImplementedError):
            next(iterator)
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(iterator)


def test_an_error_in_worker_init_fn_is_raised_by_iter() -> None:
    def fail(worker: int) -> None:
        raise RuntimeError("no such disk")

    with pytest.raises(RuntimeError, match="no such disk"):
        iter(DataLoader(Counting(4), worker_init_fn=fail, **FORK))


def test_a_crash_reads_as_torchs_does() -> None:
    def crash(samples: Any) -> None:
        ctypes.string_at(0)

    message = r"DataLoader worker \(pid \d+\) is killed by signal: Segmentation fault"
    with pytest.raises(RuntimeError, match=message) as raised:
        list(DataLoader(Counting(4), collate_fn=crash, restart=None, **FORK))
    assert isinstance(raised.value, WorkerDiedError)


def test_a_time_out_reads_as_torchs_does() -> None:
    policy = RestartPolicy(max_attempts=1)
    loader = DataLoader(
        Slow(4), collate_fn=lambda samples: time.sleep(60), timeout=0.3, restart=policy, **FORK
    )
    with loader, pytest.raises(RuntimeError, match=r"DataLoader timed out after 0\.3 seconds"):
        next(iter(loader))


SAMPLER = data.SequentialSampler(Counting(9))
BATCH_SAMPLER = data.BatchSampler(SAMPLER, 3, False)
WRONG: dict[str, dict[str, Any]] = {
    "num_workers": {"num_workers": -1},
    "timeout": {"timeout": -1},
    "drop_last": {"batch_size": None, "drop_last": True},
    "context without workers": {"multiprocessing_context": "fork"},
    "unknown context": {"num_workers": 1, "multiprocessing_context": "bad"},
    "no context": {"num_workers": 1, "multiprocessing_context": object()},
    "sampler and shuffle": {"batch_size": 11, "sampler": SAMPLER, "shuffle": True},
    "three": {"batch_sampler": BATCH_SAMPLER, "sampler": SAMPLER, "shuffle": 3},
    "batch_size": {"batch_size": 11, "batch_sampler": BATCH_SAMPLER},
    "shuffle": {"shuffle": True, "batch_sampler": BATCH_SAMPLER},
    "drop_last and batches": {"drop_last": 3, "batch_sampler": BATCH_SAMPLER},
    "prefetch without workers": {"prefetch_factor": 2},
    "prefetch": {"num_workers": 1, "prefetch_factor": -1},
    "persistent": {"persistent_workers": True},
    "batch_size 0": {"batch_size": 0},
    "batch_size 1.5": {"batch_size": 1.5},
    "drop_last 3": {"drop_last": 3},
}


@pytest.mark.parametrize("name", WRONG)
def test_what_torch_refuses_is_refused_in_its_words(name: str) -> None:
    with pytest.raises((ValueError, TypeError)) as torchs:
        data.DataLoader(Counting(9), **WRONG[name])
    with pytest.raises((ValueError, TypeError)) as ours:
        DataLoader(Counting(9), **WRONG[name])
    assert (type(ours.value), str(ours.value)) == (type(torchs.value), str(torchs.value))


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"seed": -1}, ValueError, "seed=-1: give"),
        ({"restart": 3}, TypeError, "restart=3: give"),
        ({"on_error": "stop"}, ValueError, "on_error='stop': give"),
        ({"worker_memory_limit": "2GiB"}, ValueError, "worker_memory_limit='2GiB' without workers"),
        ({"progress": "yes"}, TypeError, "progress='yes': give"),
        ({"snapshot_every_n_steps": 0}, ValueError, "snapshot_every_n_steps=0: give at least 1"),
    ],
)
def test_wrong_arguments_of_our_own_are_refused(
    wrong: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        DataLoader(Counting(9), **wrong)


def test_a_time_out_without_workers_is_refused_at_iter() -> None:
    with pytest.raises(AssertionError, match="without workers"):
        iter(DataLoader(Counting(4), timeout=1))


def test_more_workers_than_cores_are_warned_of() -> None:
    with pytest.warns(UserWarning, match="excessive worker creation might get DataLoader running slow"):
        DataLoader(Counting(4), num_workers=1000)


# ---- what it is ----------------------------------------------------------------------------------


def test_it_is_one_of_torchs_and_can_be_made_from_its_attributes() -> None:
    loader: Any = DataLoader(Counting(4), 2, shuffle=True, restart=None, num_workers=1, seed=8, timeout=5)
    assert isinstance(loader, data.DataLoader)
    theirs, ours = (
        list(inspect.signature(kind).parameters.values()) for kind in (data.DataLoader, DataLoader)
    )
    assert [(p.name, p.kind, p.default) for p in ours[: len(theirs)]] == [
        (p.name, p.kind, p.default) for p in theirs
    ]
    names = {parameter.name for parameter in ours} - {"shuffle"}
    known = {**vars(loader), "multiprocessing_context": loader.multiprocessing_context}
    assert names <= known.keys()
    arguments = {name: known[name] for name in names - {"batch_size", "sampler", "drop_last"}}
    again = DataLoader(**arguments)
    assert all(getattr(again, name) == known[name] for name in names - {"batch_size", "sampler"})
    assert DataLoader[int] is not DataLoader


def test_a_copy_starts_afresh() -> None:
    loader = DataLoader(Counting(4), **FORK, persistent_workers=True)
    with loader:
        list(loader)
        copied = pickle.loads(pickle.dumps(loader))
        assert (copied.workers(), copied._iterator) == ([], None)
        assert len(loader.workers()) == 2
        assert [int(batch) for batch in copied] == [0, 1, 2, 3]
        assert {worker.pid for worker in copied.workers()}.isdisjoint(w.pid for w in loader.workers())
        copied.close()


@pytest.mark.parametrize(
    "name", ["batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"]
)
def test_what_torch_freezes_is_frozen(name: str) -> None:
    message = f"{name} attribute should not be set after DataLoader is initialized"
    with pytest.raises(ValueError, match=message):
        setattr(DataLoader(Counting(4)), name, {})


def test_the_rest_may_be_set_and_counts_from_the_next_epoch_on() -> None:
    with DataLoader(InWorker(6), 2, collate_fn=list, **FORK) as loader:
        list(loader)
        loader.num_workers, loader.collate_fn = 1, len
        assert list(loader) == [2, 2, 2]
        loader.worker_init_fn, loader.collate_fn, loader.in_order = start, list, False
        assert {sample[1] for batch in loader for sample in batch} == {1}


@pytest.mark.parametrize("is_there", [False, True])
def test_pinning_goes_through_torch(is_there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def pinned(batch: Any, device: Any) -> Any:
        return device, batch.tolist()

    monkeypatch.setattr(data._utils.pin_memory, "pin_memory", pinned)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: is_there)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    message = None if is_there else "no accelerator is found"
    for workers in ({}, FORK):
        loader = DataLoader(Counting(2), 2, pin_memory=True, **workers)
        if message is None:
            assert list(loader) == [("cuda", [0, 1])]
            continue
        with pytest.warns(UserWarning, match=message):
            assert [batch.tolist() for batch in loader] == [[0, 1]]


def test_a_profiler_sees_nothing_else_and_nothing_warns() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(list(DataLoader(Counting(4), 2, **FORK))) == 2


# ---- several -------------------------------------------------------------------------------------


def test_several_loaders_and_iterators_go_on_side_by_side() -> None:
    make: Callable[..., Any] = DataLoader
    with make(Counting(20), **FORK) as one, make(Counting(20), **FORK, persistent_workers=True) as two:
        iterators = [iter(one), iter(two), iter(one), iter(two)]
        seen: list[list[int]] = [[], [], [], []]
        for _ in range(20):
            for numbers, iterator in zip(seen, iterators, strict=True):
                numbers.append(int(next(iterator)))
        assert seen == [list(range(20))] * 4


def test_persistent_workers_keep_their_dataset() -> None:
    class Started(Counting):
        start = 0

        def __getitem__(self, index: int) -> int:
            return self.start

    for persistent, expected in ((True, 0), (False, 7)):
        dataset = Started(2)
        with DataLoader(dataset, **FORK, persistent_workers=persistent) as loader:
            list(loader)
            dataset.start = 7
            assert {int(batch) for batch in loader} == {expected}
