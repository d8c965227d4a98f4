"""One epoch of tensors, as an iterator that is one of torch's too: what reads its private names finds them.

    Head       what torch's iterator does when it is made: it iterates the sampler, draws the seed, warns
       \\
        become: its attributes --> TorchInProcessIterator, TorchWorkerIterator: ours, in everything else

``next()`` is that of our iterators itself, and no call of it: see delivery.
"""

from __future__ import annotations

import weakref
from typing import Any

from torch.utils.data import _utils
from torch.utils.data.dataloader import _BaseDataLoaderIter

from dataloader._torch.processes import WorkerProcess
from dataloader.batch_pool import BatchPool
from dataloader.in_process_iterator import InProcessIterator
from dataloader.state import Bookmark
from dataloader.worker_iterator import WorkerIterator


class Head(_BaseDataLoaderIter):
    """Torch's part in an epoch. Persistent workers have one for all their epochs."""

    _sampler_iter: Any

    def renew(self, loader: Any) -> None:
        """Begin one more epoch of the same workers: nothing is drawn."""
        self._reset(loader)

    @property
    def seed(self) -> int:
        return int(self._base_seed)

    @seed.setter
    def seed(self, seed: int) -> None:
        self._base_seed = seed

    def take_batches(self) -> Any:
        """Return the iterator of the sampler, which is its user's alone from now on."""
        batches, self._sampler_iter = self._sampler_iter, iter(())
        return batches


class _TorchIterator(_BaseDataLoaderIter):
    """What torch's iterators have, for ours."""

    _bookmark: Bookmark

    def become(self, head: Head) -> None:
        """Know what torch's iterator would."""
        self.__dict__.update(vars(head))

    @property
    def _num_yielded(self) -> int:
        return self._bookmark.position.received

    @_num_yielded.setter
    def _num_yielded(self, batches: int) -> None:
        """Leave the count to our own figures."""

    def _finish(self, batch: Any) -> Any:
        """Return the batch, pinned where that was asked for."""
        return _utils.pin_memory.pin_memory(batch, self._pin_memory_device) if self._pin_memory else batch


class TorchInProcessIterator(_TorchIterator, InProcessIterator):  # type: ignore[misc]
    """Makes each batch when it is asked for."""

    __init__ = InProcessIterator.__init__
    __next__ = InProcessIterator.__next__


class TorchWorkerIterator(_TorchIterator, WorkerIterator):  # type: ignore[misc]
    """Delivers what workers make."""

    __next__ = WorkerIterator.__next__

    def __init__(self, pool: BatchPool, *arguments: Any, **keywords: Any) -> None:
        self._pool_of_workers = weakref.ref(pool)
        self._last_workers: list[WorkerProcess] = []
        WorkerIterator.__init__(self, pool, *arguments, **keywords)

    @classmethod
    def at_rest(cls, head: Head, pool: BatchPool, bookmark: Bookmark) -> TorchWorkerIterator:
        """Return an iterator that is over, as a view of workers which persist and have nothing to do."""
        iterator = cls.__new__(cls)
        iterator.become(head)
        iterator._pool_of_workers, iterator._last_workers = weakref.ref(pool), []
        iterator._pool, iterator._was_closed, iterator._keep_workers = None, False, True
        iterator._epoch, iterator._bookmark = pool.epoch, bookmark
        return iterator

    @property
    def _workers(self) -> list[WorkerProcess]:
        """The workers; once it is over, those that there were last."""
        pool = self._pool_of_workers()
        if pool is not None and pool.workers and pool.epoch is self._epoch:
            known = {process.pid: process for process in self._last_workers}
            workers = [worker for _, worker in sorted(pool.workers.items())]
            self._last_workers = [known.get(worker.pid) or WorkerProcess(worker, pool) for worker in workers]
        return list(self._last_workers)

    def _shutdown_workers(self) -> None:
        """End its workers, and wait for their end; ``next()`` then raises."""
        pool, _ = self._pool_of_workers(), self._workers
        self.close()
        if pool is not None and pool.epoch is self._epoch:
            pool.close()

    def close(self) -> None:
        _ = self._workers
        WorkerIterator.close(self)

    def _end(self, pool: BatchPool) -> None:
        _ = self._workers
        WorkerIterator._end(self, pool)
