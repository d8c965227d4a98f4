"""The private names of torch's loader that others read: trainers, other libraries, torch's own tests."""

from __future__ import annotations

import pickle
from itertools import islice
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.utils.data as data
from torch.utils.data.dataloader import _BaseDataLoaderIter

from dataloader.torch import DataLoader
from tests.torch.datasets import Counting

FORK: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": "fork"}
BOUND_S = 30.0


def test_a_loader_has_torchs_names() -> None:
    for arguments in ({}, {"batch_size": None}, {"batch_sampler": [[1], [2]]}):
        ours: Any = DataLoader(Counting(4), **arguments)
        theirs: Any = data.DataLoader(Counting(4), **arguments)
        for name in ("_auto_collation", "_dataset_kind", "_DataLoader__initialized", "_iterator"):
            assert getattr(ours, name) == getattr(theirs, name), name
        assert ours._IterableDataset_len_called is None
        sampler = ours.sampler if arguments.get("batch_size", 1) is None else ours.batch_sampler
        assert ours._index_sampler is sampler


@pytest.mark.parametrize("workers", [{}, FORK], ids=["in process", "workers"])
def test_an_iterator_is_one_of_torchs(workers: dict[str, Any]) -> None:
    loader: Any = DataLoader(Counting(4), 2, **workers)
    iterator: Any = loader._get_iterator()
    theirs: Any = vars(iter(data.DataLoader(Counting(4), 2)))
    assert isinstance(iterator, _BaseDataLoaderIter)
    names = {name for name in theirs if name not in ("_dataset_fetcher", "_sampler_iter")}
    for name in names - {"_base_seed", "_index_sampler", "_dataset", "_num_workers", "_profile_name"}:
        assert getattr(iterator, name) == theirs[name], name
    assert (iterator._index_sampler, iterator._dataset) == (loader.batch_sampler, loader.dataset)
    assert (iterator._num_workers, len(iterator)) == (loader.num_workers, 2)
    assert [(batch.tolist(), iterator._num_yielded) for batch in iterator] == [([0, 1], 1), ([2, 3], 2)]
    with pytest.raises(NotImplementedError):
        pickle.dumps(iterator)


def test_workers_are_seen_as_processes() -> None:
    loader: Any = DataLoader(Counting(40), **FORK)
    iterator: Any = iter(loader)
    workers = iterator._workers
    assert [worker.pid for worker in workers] == [worker.pid for worker in loader.workers()]
    assert all(worker.is_alive() and worker.exitcode is None and worker.daemon for worker in workers)
    workers[0].join(0.01)
    assert "alive" in repr(workers[0])
    iterator._shutdown_workers()
    for worker in workers:
        worker.join(BOUND_S)
        assert (worker.is_alive(), worker.exitcode) == (False, 0)
    assert [worker.pid for worker in iterator._workers] == [worker.pid for worker in workers]
    with pytest.raises(RuntimeError, match="closed"):
        next(iterator)
    iterator._shutdown_workers()
    assert len(list(loader)) == 40


@pytest.mark.parametrize("end", ["terminate", "kill"])
def test_a_worker_can_be_ended_and_is_replaced(end: str) -> None:
    with DataLoader(Counting(40), **FORK) as loader:
        iterator: Any = iter(loader)
        worker = iterator._workers[1]
        getattr(worker, end)()
        worker.join(BOUND_S)
        assert worker.exitcode == (-15 if end == "terminate" else -9)
        assert len(list(iterator)) == 40
        assert len(iterator._workers) == 2


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_of_a_dropped_iterator_end(persistent: bool) -> None:
    loader: Any = DataLoader(Counting(100), 2, **FORK, persistent_workers=persistent)
    iterator: Any = iter(loader)
    workers = iterator._workers
    assert len(list(islice(iterator, 10))) == 10
    del iterator
    if persistent:
        assert all(worker.is_alive() for worker in workers)
        del loader
    for worker in workers:
        worker.join(BOUND_S)
        assert not worker.is_alive()


def test_a_worker_keeps_no_loader_alive_and_tells_what_it_knows() -> None:
    iterator: Any = iter(DataLoader(Counting(4), **FORK))
    workers = iterator._workers
    del iterator
    for worker in workers:
        worker.join(BOUND_S)
        assert (worker.is_alive(), worker.exitcode) == (False, None)
        worker.terminate()
        worker.kill()


def test_only_persistent_workers_have_an_iterator_to_show() -> None:
    loader: Any = DataLoader(Counting(4), **FORK)
    iterator: Any = iter(loader)
    assert loader._iterator is None
    del iterator


@pytest.mark.parametrize("how", ["None", "del", "shutdown"])
def test_persistent_workers_end_with_their_iterator(how: str) -> None:
    loader: Any = DataLoader(Counting(8), **FORK, persistent_workers=True)
    before, iterator = loader._iterator, loader._get_iterator()
    assert (before, loader._iterator) == (None, iterator)
    workers = iterator._workers
    list(iterator)
    assert loader._iterator is iterator
    del iterator
    at_rest: Any = loader._iterator
    assert _BaseDataLoaderIter in type(at_rest).mro()
    assert [worker.pid for worker in at_rest._workers] == [worker.pid for worker in workers]
    assert all(worker.is_alive() for worker in workers)
    assert at_rest._num_yielded == 8
    with pytest.raises(StopIteration):
        next(at_rest)
    if how == "shutdown":
        at_rest._shutdown_workers()
    elif how == "del":
        del loader._iterator
    loader._iterator = None
    for worker in workers:
        worker.join(BOUND_S)
        assert (worker.is_alive(), worker.exitcode) == (False, 0)
    assert loader._iterator is None
    assert len(list(loader)) == 8
    assert {w.pid for w in loader.workers()}.isdisjoint(w.pid for w in workers)
    loader.close()


def test_an_old_iterator_ends_no_workers_of_a_newer_one() -> None:
    with DataLoader(Counting(8), **FORK, persistent_workers=True) as loader:
        old: Any = iter(loader)
        list(old)
        new: Any = iter(loader)
        old._shutdown_workers()
        assert [int(batch) for batch in new] == list(range(8))


def test_an_iterator_cannot_be_put_in_place() -> None:
    loader: Any = DataLoader(Counting(4))
    with pytest.raises(AttributeError, match="it can only be dropped"):
        loader._iterator = iter(loader)
