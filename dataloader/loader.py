"""DataLoader: what a user constructs. It checks its arguments, and makes iterators."""

from __future__ import annotations

import secrets
import weakref
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from dataloader.batch_pool import BatchPool
from dataloader.collate import default_collate
from dataloader.datasets import IterableDataset
from dataloader.iterators import InProcessIterator, WorkerIterator
from dataloader.recipe import Collate, Recipe
from dataloader.samplers import BatchSampler, RandomSampler, SequentialSampler
from dataloader.status import WorkerStatus
from dataloader.worker import Server
from supervisor.policy import RestartPolicy
from supervisor.pool import START_METHODS
from supervisor.report import ExitReport

DEFAULT_PREFETCH = 2
SEEDS = range(2**64)


class DataLoader:
    """Loads a dataset in batches, in this process or in supervised worker processes.

    The same batches come, in the same order, whatever ``num_workers`` is and however many workers die.

    Parameters:
        dataset: anything with ``__getitem__`` and ``__len__``.
        batch_size: samples per batch.
        shuffle: ask for the samples in a new random order each epoch.
        num_workers: worker processes; 0 loads in this process.
        collate_fn: makes a batch of a list of samples; by default ``default_collate``.
        drop_last: leave out a last batch that is not full.
        multiprocessing_context: "forkserver" (default), "fork" or "spawn", or a context of
            ``multiprocessing`` or ``multiprocess``.
        prefetch_factor: batches per worker to have ahead of the user; 2 by default.
        persistent_workers: keep the workers from one epoch to the next.
        in_order: deliver batches in the order of the sampler rather than of completion.
        seed: 0 to 2**64 - 1; decides the order of samples and the random state they are loaded with. None
            draws one, which ``loader.seed`` shows.
        restart: how often dead workers are replaced; None: never.

    The other parameters of ``torch.utils.data.DataLoader``, and ``on_error`` and ``worker_memory_limit``, are
    known but not there yet.

    Raises:
        ValueError, TypeError: naming the argument and what to write instead.
        NotImplementedError: an argument that is not there yet.

    >>> loader = DataLoader([1, 2, 3, 4, 5], batch_size=2, num_workers=2)
    >>> with loader:
    ...     [batch.tolist() for batch in loader]
    [[1, 2], [3, 4], [5]]
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        num_workers: int = 0,
        collate_fn: Collate | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Any = None,
        multiprocessing_context: Any = None,
        generator: Any = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        seed: int | None = None,
        restart: RestartPolicy | None = RestartPolicy(),  # noqa: B008 (it is frozen)
        on_error: Any = "raise",
        worker_memory_limit: int | str | None = None,
    ) -> None:
        _refuse_what_is_not_there_yet(
            batch_size=(batch_size, batch_size is None),
            sampler=(sampler, sampler is not None),
            batch_sampler=(batch_sampler, batch_sampler is not None),
            pin_memory=(pin_memory, bool(pin_memory)),
            timeout=(timeout, timeout != 0),
            worker_init_fn=(worker_init_fn, worker_init_fn is not None),
            generator=(generator, generator is not None),
            pin_memory_device=(pin_memory_device, bool(pin_memory_device)),
            on_error=(on_error, on_error != "raise"),
            worker_memory_limit=(worker_memory_limit, worker_memory_limit is not None),
        )
        self.dataset = _checked_dataset(dataset)
        self.batch_size = _checked_count("batch_size", batch_size, least=1)
        self.num_workers = _checked_count("num_workers", num_workers, least=0)
        self.collate_fn = _checked_collate(collate_fn)
        self.drop_last = drop_last
        self.timeout = timeout
        self.prefetch_factor = _checked_prefetch(prefetch_factor, num_workers)
        self.persistent_workers = _checked_persistent(persistent_workers, num_workers)
        self.in_order = in_order
        self.seed = _checked_seed(seed)
        self.restart = _checked_restart(restart)
        self.start_method = _checked_start_method(multiprocessing_context, num_workers)
        self.sampler = RandomSampler(dataset, self.seed) if shuffle else SequentialSampler(dataset)
        self.batch_sampler = BatchSampler(self.sampler, self.batch_size, drop_last)
        self._next_epoch = 0
        self._pools: list[tuple[BatchPool, weakref.ref[WorkerIterator] | None]] = []
        self._past_reports: list[ExitReport] = []

    def __len__(self) -> int:
        """How many batches an epoch has."""
        return len(self.batch_sampler)

    def __iter__(self) -> Iterator[Any]:
        """Begin an epoch.

        With workers: starts them, or learns that those it has are alive and replaces the dead, before
        anything is sent.

        Raises:
            WorkerDiedError: a worker is dead and is not replaced.
            RuntimeError: the loader's workers belong to the process that this one was forked from.
            Exception: what a worker raised in its start-up, such as unpickling the dataset.
        """
        epoch, self._next_epoch = self._next_epoch, self._next_epoch + 1
        if isinstance(self.sampler, RandomSampler):
            self.sampler.set_epoch(epoch)
        recipe = Recipe(self.dataset, self.collate_fn)
        if self.num_workers == 0:
            return InProcessIterator(recipe, self.batch_sampler, self.seed, epoch)
        return self._iterate_with_workers(recipe, epoch)

    # ---- workers ---------------------------------------------------------------------------------

    def _iterate_with_workers(self, recipe: Recipe, epoch: int) -> WorkerIterator:
        for pool, _ in self._pools:
            pool.require_ours()
        pool = self._idle_pool() or self._new_pool()
        try:
            self._make_ready(pool, recipe)
        except BaseException:
            self._drop(pool)
            raise
        iterator = WorkerIterator(
            pool,
            self.batch_sampler,
            seed=self.seed,
            epoch=epoch,
            window=self.num_workers * self.prefetch_factor,
            in_order=self.in_order,
            keep_workers=self.persistent_workers,
        )
        self._pools = [(p, weakref.ref(iterator) if p is pool else user) for p, user in self._pools]
        return iterator

    def _make_ready(self, pool: BatchPool, recipe: Recipe) -> None:
        if self.persistent_workers and pool.workers and not pool.is_broken:
            pool.check()
            return
        if self.persistent_workers and not pool.has_raised:
            pool.raise_if_broken()  # by a death after which the epoch could still be completed
        pool.stop()
        server = Server(recipe)
        pool.start(server.serve)

    def _new_pool(self) -> BatchPool:
        pool = BatchPool(self.num_workers, self.start_method, self.restart, self.prefetch_factor)
        self._pools.append((pool, None))
        return pool

    def _idle_pool(self) -> BatchPool | None:
        """Return a pool that no living iterator uses; close what others are idle."""
        idle = [pool for pool, user in self._pools if user is None or _is_over(user())]
        for pool in idle[1:]:
            self._drop(pool)
        return idle[0] if idle else None

    def _drop(self, pool: BatchPool) -> None:
        pool.close()
        self._past_reports += pool.reports
        self._pools = [(p, user) for p, user in self._pools if p is not pool]

    def workers(self) -> list[WorkerStatus]:
        """Return what lives now, in order of id."""
        living = [worker for pool, _ in self._pools for worker in list(pool.workers.values())]
        return sorted((WorkerStatus.of(worker) for worker in living), key=lambda status: status.id)

    @property
    def reports(self) -> list[ExitReport]:
        """The ExitReport of every end of a worker so far, ordered stops included."""
        return self._past_reports + [report for pool, _ in self._pools for report in pool.reports]

    # ---- closing ---------------------------------------------------------------------------------

    def close(self) -> None:
        """End all workers and wait for their end. The loader can be iterated again afterwards."""
        for pool, user in list(self._pools):
            iterator = None if user is None else user()
            if iterator is not None:
                iterator.close()
            self._drop(pool)

    def __enter__(self) -> DataLoader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _is_over(iterator: WorkerIterator | None) -> bool:
    return iterator is None or iterator.is_over


# ---- arguments -----------------------------------------------------------------------------------


def _refuse_what_is_not_there_yet(**arguments: tuple[Any, bool]) -> None:
    for name, (value, is_given) in arguments.items():
        if is_given:
            raise NotImplementedError(
                f"DataLoader({name}={value!r}) is not there yet: leave {name} out for now"
            )


def _checked_dataset(dataset: Any) -> Any:
    if isinstance(dataset, IterableDataset):
        raise NotImplementedError("an IterableDataset is not supported yet: use a dataset with __getitem__")
    for method in ("__getitem__", "__len__"):
        if not hasattr(dataset, method):
            raise TypeError(f"dataset={dataset!r} has no {method}: give a map-style dataset")
    return dataset


def _checked_count(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name}={value!r}: give a whole number, at least {least}")
    if value < least:
        raise ValueError(f"{name}={value!r}: give at least {least}")
    return value


def _checked_collate(collate_fn: Any) -> Collate:
    if collate_fn is None:
        return default_collate
    if not callable(collate_fn):
        raise TypeError(f"collate_fn={collate_fn!r} cannot be called: give a function of a list of samples")
    return collate_fn  # type: ignore[no-any-return]


def _checked_prefetch(prefetch_factor: int | None, num_workers: int) -> int:
    if prefetch_factor is None:
        return DEFAULT_PREFETCH
    if num_workers == 0:
        raise ValueError(
            f"prefetch_factor={prefetch_factor!r} without workers: set num_workers > 0 or leave it out"
        )
    return _checked_count("prefetch_factor", prefetch_factor, least=1)


def _checked_persistent(persistent_workers: bool, num_workers: int) -> bool:
    if persistent_workers and num_workers == 0:
        raise ValueError("persistent_workers=True without workers: set num_workers > 0 or leave it out")
    return persistent_workers


def _checked_seed(seed: int | None) -> int:
    if seed is None:
        return secrets.randbelow(2**63)
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise TypeError(f"seed={seed!r}: give a whole number from 0 to 2**64 - 1, or None")
    if seed not in SEEDS:
        raise ValueError(f"seed={seed!r}: give a whole number from 0 to 2**64 - 1, or None")
    return seed


def _checked_restart(restart: RestartPolicy | None) -> RestartPolicy | None:
    if restart is not None and not isinstance(restart, RestartPolicy):
        raise TypeError(f"restart={restart!r}: give a RestartPolicy, or None to never replace a worker")
    return restart


def _checked_start_method(context: Any, num_workers: int) -> str:
    if context is None:
        return START_METHODS[0]
    if num_workers == 0:
        raise ValueError(
            f"multiprocessing_context={context!r} without workers: set num_workers > 0 or leave it out"
        )
    method = context if isinstance(context, str) else _method_of(context)
    if method not in START_METHODS:
        raise ValueError(f"multiprocessing_context={context!r}: give one of {', '.join(START_METHODS)}")
    return method


def _method_of(context: Any) -> str:
    if not hasattr(context, "get_start_method"):
        raise TypeError(
            f"multiprocessing_context={context!r}: give one of {', '.join(START_METHODS)}, or a context"
        )
    method: str = context.get_start_method()
    return method
