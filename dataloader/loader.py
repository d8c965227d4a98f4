"""DataLoader: what a user constructs. It keeps its checked arguments, and makes iterators."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterable, Iterator
from itertools import pairwise
from types import TracebackType
from typing import Any

from dataloader import arguments
from dataloader.batch_pool import BatchPool
from dataloader.datasets import Subset
from dataloader.iterators import InProcessIterator, WorkerIterator
from dataloader.pieces import derived_seed
from dataloader.recipe import Collate, Recipe, WorkerInit
from dataloader.review import Review
from dataloader.sample_errors import OnError, SampleError
from dataloader.samplers import BatchSampler, checked_count, checked_flag, iterate
from dataloader.stats import LoaderStats, Tally, sums
from dataloader.status import WorkerStatus
from dataloader.watch import Bar, Watch
from dataloader.worker import Server
from supervisor.payload import PayloadError
from supervisor.policy import RestartPolicy
from supervisor.report import ExitReport

ADVICE = (
    "leave it out of the pickle by __getstate__ and make it where it is used, or pass "
    "multiprocessing_context='fork', which pickles nothing"
)
_FROZEN = frozenset(
    [
        "batch_sampler",
        "batch_size",
        "dataset",
        "drop_last",
        "num_workers",
        "persistent_workers",
        "sampler",
        "seed",
    ]
)


class DataLoader:
    """Loads a dataset in batches, in this process or in supervised worker processes.

    The same batches come, in the same order, whatever ``num_workers`` is and however many workers die.

    Parameters:
        dataset: anything with ``__getitem__``, and with ``__len__`` unless a sampler is given. Where it has
            ``__getitems__``, that is called once with all indices of a batch.
        batch_size: samples per batch; None: deliver single samples, each passed through ``collate_fn``.
        shuffle: ask for the samples in a new random order each epoch.
        sampler: gives the indices of an epoch, in order: anything that can be iterated, anew each epoch.
        batch_sampler: gives lists of indices, each a batch; endless ones too.
        num_workers: worker processes; 0 loads in this process.
        collate_fn: makes a batch of a list of samples; by default ``default_collate``, with
            ``batch_size=None`` ``default_convert``.
        pin_memory, pin_memory_device: for tensors; NumPy arrays cannot be pinned.
        drop_last: leave out a last batch that is not full.
        timeout: seconds that a worker may work on one batch; 0: no limit. One that takes longer is ended, and
            its work tried again. Unlike torch's it does not bound the wait for a batch.
        worker_init_fn: called with the worker's id in each worker before its first sample, in a replacement
            too.
        multiprocessing_context: "forkserver" (default), "fork" or "spawn", or a context of
            ``multiprocessing`` or ``multiprocess``.
        generator: a ``numpy.random.Generator`` or ``random.Random`` to draw the seed from, once, now.
        prefetch_factor: batches per worker to have ahead of the user, at least 1; 2 by default.
        persistent_workers: keep the workers from one epoch to the next.
        in_order: deliver batches in the order of the sampler rather than of completion.
        seed: 0 to 2**64 - 1; decides the order of samples and the random state they are loaded with. None
            draws one, which ``loader.seed`` shows.
        restart: how often dead workers are replaced; None: never.
        on_error: what becomes of a sample that raises, or ends as many workers as ``restart`` lets it:
            "raise", "skip" (it is left out of its batch), or a function that is given a SampleError and
            returns one of these.
        worker_memory_limit: bytes, or text such as "2GiB", that a worker may have of its own: what it
            inherited or shares is not counted. Above it, it is replaced between two batches.
        progress: show each epoch's progress, its rate and the deaths on stderr. Needs tqdm.

    Attributes:
        seed: the given or drawn one.
        start_method: "forkserver", "fork" or "spawn".

    The arguments are attributes too. Those that say what is loaded, ``num_workers``, ``persistent_workers``
    and ``seed`` cannot be set afterwards: ValueError.

    Raises:
        ValueError, TypeError: naming the argument and what to write instead.
        NotImplementedError: an argument, or a kind of dataset, that is not there yet.

    Warns:
        UserWarning: more workers than cores that this process may use.

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
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        num_workers: int = 0,
        collate_fn: Collate | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: WorkerInit | None = None,
        multiprocessing_context: Any = None,
        generator: Any = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        seed: int | None = None,
        restart: RestartPolicy | None = RestartPolicy(),  # noqa: B008 (it is frozen)
        on_error: OnError = "raise",
        worker_memory_limit: int | str | None = None,
        progress: bool = False,
    ) -> None:
        self._given = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        self.dataset = arguments.checked_dataset(dataset)
        self.num_workers = checked_count("num_workers", num_workers, least=0)
        self.timeout = arguments.checked_timeout(timeout, num_workers)
        self.on_error = arguments.checked_on_error(on_error)
        self.worker_memory_limit = worker_memory_limit
        self._memory_limit_bytes = arguments.checked_memory_limit(worker_memory_limit, num_workers)
        arguments.refuse_pinning(pin_memory, pin_memory_device)
        self.pin_memory, self.pin_memory_device = False, ""
        self.worker_init_fn = arguments.checked_worker_init(worker_init_fn)
        self.prefetch_factor = arguments.checked_prefetch(prefetch_factor, num_workers)
        self.persistent_workers = arguments.checked_persistent(persistent_workers, num_workers)
        self.start_method = arguments.checked_start_method(multiprocessing_context, num_workers)
        self.multiprocessing_context = multiprocessing_context
        self.in_order = checked_flag("in_order", in_order)
        self.restart = arguments.checked_restart(restart)
        arguments.refuse_contradictions(batch_size, shuffle, sampler, batch_sampler, drop_last)
        self.drop_last = checked_flag("drop_last", drop_last, wrong_type=ValueError)
        self.sampler = arguments.chosen_sampler(dataset, sampler, batch_sampler, shuffle)
        self.batch_sampler = arguments.chosen_batch_sampler(
            self.sampler, batch_sampler, batch_size, drop_last
        )
        self.batch_size = None if batch_sampler is not None else batch_size
        self.collate_fn = arguments.checked_collate(collate_fn, in_batches=self.batch_sampler is not None)
        self.seed = arguments.checked_or_drawn_seed(seed, generator)
        self.generator = generator
        self.progress = checked_flag("progress", progress)
        self._next_epoch = 0
        self._tallies: list[Tally] = []
        self._past_worked_s: dict[int, float] = {}
        self._pools: list[tuple[BatchPool, weakref.ref[WorkerIterator] | None]] = []
        self._past_reports: list[ExitReport] = []
        self._locks: dict[int, threading.RLock] = {}
        self._is_made = True
        arguments.warn_of_too_many_workers(num_workers)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _FROZEN and getattr(self, "_is_made", False):
            raise ValueError(f"{name} of a DataLoader cannot be set once it is made: make a new DataLoader")
        super().__setattr__(name, value)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the processes: a copy starts its own."""
        nothing_yet: dict[str, Any] = {"_pools": [], "_past_reports": [], "_tallies": []}
        return {**self.__dict__, **nothing_yet, "_past_worked_s": {}, "_locks": {}}

    def __len__(self) -> int:
        """How many batches an epoch has; with ``batch_size=None`` how many samples.

        Raises TypeError where a sampler without a length decides.

        >>> len(DataLoader(range(10), batch_size=4)), len(DataLoader(range(10), batch_size=4, drop_last=True))
        (3, 2)
        """
        return len(self._batches)  # type: ignore[arg-type]

    @property
    def _batches(self) -> Iterable[Any]:
        return self.sampler if self.batch_sampler is None else self.batch_sampler

    def __iter__(self) -> Iterator[Any]:
        """Begin an epoch.

        With workers: starts them, or learns that those it has are alive and replaces the dead, before
        anything is sent.

        Raises:
            WorkerDiedError: a worker is dead and is not replaced.
            PayloadError: what the workers need cannot be pickled: it names the attribute.
            RuntimeError: the loader's workers belong to the process that this one was forked from; or, with
                workers, this is not Linux.
            ModuleNotFoundError: ``progress=True`` without tqdm.
            Exception: what a worker raised in its start-up, such as unpickling the dataset.
        """
        with self._lock:
            if self._tallies:
                arguments.warn_of_used_iterators(self.sampler, self.batch_sampler)
            epoch, self._next_epoch = self._next_epoch, self._next_epoch + 1
            recipe = Recipe.of(
                self.dataset,
                self.collate_fn,
                in_batches=self.batch_sampler is not None,
                may_skip=self.on_error != "raise",
            )
            if self.num_workers == 0:
                watch, review = self._new_watch(), self._review(epoch)
                return InProcessIterator(recipe, self._drawn(epoch), self.seed, watch, review)
            return self._iterate_with_workers(recipe, epoch)

    @property
    def _lock(self) -> threading.RLock:
        """Held by who begins an epoch or closes. A forked child has its own: nobody there frees the old."""
        return self._locks.setdefault(os.getpid(), threading.RLock())

    def _drawn(self, epoch: int) -> Iterator[Any]:
        """Begin to draw from the sampler: lists of indices, of one each where samples come singly."""
        if self.batch_sampler is None:
            return BatchSampler(self.sampler, batch_size=1, drop_last=False).iterate(self.seed, epoch)
        return iterate(self.batch_sampler, self.seed, epoch)

    def set_epoch(self, epoch: int) -> None:
        """Let the next ``iter()`` begin epoch number ``epoch``, counted from 0.

        A sampler of the user's that has ``set_epoch``, such as a distributed one, is told as well.

        Raises:
            ValueError, TypeError: ``epoch`` is no whole number of at least 0.

        >>> loader = DataLoader(range(9), shuffle=True)
        >>> first, second = list(loader), list(loader)
        >>> loader.set_epoch(0)
        >>> list(loader) == first != second
        True
        """
        self._next_epoch = checked_count("epoch", epoch, least=0)
        samplers = (self.batch_sampler, self.sampler, getattr(self.batch_sampler, "sampler", None))
        for sampler in {id(sampler): sampler for sampler in samplers}.values():
            tell = getattr(sampler, "set_epoch", None)
            if tell is not None:
                tell(self._next_epoch)

    # ---- parts -----------------------------------------------------------------------------------

    @property
    def num_items(self) -> int:
        """How many samples an epoch delivers.

        Raises TypeError where a sampler without a length decides, or a ``batch_sampler`` of the user's.

        >>> DataLoader(range(10), batch_size=4, drop_last=True).num_items
        8
        """
        if self.batch_sampler is None:
            return len(self.sampler)  # type: ignore[arg-type]
        if isinstance(self.batch_sampler, BatchSampler):
            return self.batch_sampler.num_items
        raise TypeError(f"batch_sampler={self.batch_sampler!r} does not tell how many samples it asks for")

    def slice(self, start: int, stop: int) -> DataLoader:
        """Return a loader of samples ``start`` to ``stop - 1`` of the dataset, like this one otherwise.

        Its seed follows from this loader's, ``start`` and ``stop``. It begins with epoch 0.

        Parameters:
            start, stop: 0 <= start <= stop <= the dataset's length.

        Raises:
            ValueError: there are no such samples, or a sampler of the user's decides.
            TypeError: a bound is no whole number.

        >>> loader = DataLoader(range(10), batch_size=4)
        >>> [batch.tolist() for batch in loader.slice(5, 10)]
        [[5, 6, 7, 8], [9]]
        """
        for name in ("sampler", "batch_sampler"):
            if self._given[name] is not None:
                raise ValueError(
                    f"{name}={self._given[name]!r} decides which samples come: slice that instead"
                )
        length = len(self.dataset)
        start, stop = checked_count("start", start, least=0), checked_count("stop", stop, least=0)
        if not start <= stop <= length:
            raise ValueError(f"start={start}, stop={stop}: give 0 <= start <= stop <= {length}")
        dataset: Any = Subset(self.dataset, range(start, stop))
        seed = derived_seed(self.seed, start, stop)
        return type(self)(**{**self._given, "dataset": dataset, "seed": seed, "generator": None})

    def split(self, n: int) -> list[DataLoader]:
        """Return ``n`` loaders that share the dataset's samples out between them, as equally as can be.

        Parameters:
            n: at least 1; beyond the number of samples some loaders have none.

        Raises:
            ValueError, TypeError: as ``slice`` does.

        >>> [part.num_items for part in DataLoader(range(10)).split(3)]
        [4, 3, 3]
        """
        size, longer = divmod(len(self.dataset), checked_count("n", n, least=1))
        starts = [part * size + min(part, longer) for part in range(n + 1)]
        return [self.slice(start, stop) for start, stop in pairwise(starts)]

    # ---- figures ---------------------------------------------------------------------------------

    def stats(self) -> LoaderStats:
        """Return figures of all epochs so far.

        >>> loader = DataLoader(range(10), batch_size=4)
        >>> _ = list(loader), list(loader)
        >>> stats = loader.stats()
        >>> stats.batches, stats.samples
        (6, 20)
        """
        delivered = [tally.delivered for tally in self._tallies]
        worked_s = self._past_worked_s
        for pool, _ in self._pools:
            worked_s = sums(worked_s, pool.worked_s())
        return LoaderStats(
            batches=sum(counts.batches for counts in delivered),
            samples=sum(counts.samples for counts in delivered),
            skipped=sum(counts.skipped for counts in delivered),
            bytes=sum(counts.bytes for counts in delivered),
            waited_s=sum(tally.waited_s for tally in self._tallies),
            worked_s=worked_s,
            deaths=self._deaths(),
        )

    @property
    def skipped(self) -> list[SampleError]:
        """The SampleError of every sample that was left out so far, in order of delivery.

        >>> loader = DataLoader(range(4), batch_size=2, collate_fn=lambda numbers: [1 // numbers[0]],
        ...                     on_error="skip")
        >>> list(loader), loader.skipped[0].index
        ([[0]], [0, 1])
        """
        return [error for tally in self._tallies for error in tally.skipped]

    def _deaths(self) -> int:
        return sum(report.is_death for report in self.reports)

    def _new_watch(self) -> Watch:
        self._tallies.append(Tally())
        try:
            total: int | None = self.num_items
        except TypeError:
            total = None
        return Watch(self._tallies[-1], total, Bar(total, self._deaths) if self.progress else None)

    # ---- workers ---------------------------------------------------------------------------------

    def _iterate_with_workers(self, recipe: Recipe, epoch: int) -> WorkerIterator:
        for pool, _ in self._pools:
            pool.require_ours()
        pool = self._idle_pool() or self._new_pool()
        with pool.turn:
            try:
                self._make_ready(pool, recipe)
            except BaseException:
                self._drop(pool)
                raise
            iterator = WorkerIterator(
                pool,
                self._drawn(epoch),
                seed=self.seed,
                window=self.num_workers * self._prefetch,
                in_order=self.in_order,
                keep_workers=self.persistent_workers,
                watch=self._new_watch(),
                review=self._review(epoch),
            )
        self._pools = [(p, weakref.ref(iterator) if p is pool else user) for p, user in self._pools]
        return iterator

    def _review(self, epoch: int) -> Review:
        max_attempts = (self.restart or RestartPolicy()).max_attempts
        return Review(self.on_error, epoch, max_attempts, self.timeout)

    def _make_ready(self, pool: BatchPool, recipe: Recipe) -> None:
        if self.persistent_workers and pool.workers and not pool.is_broken:
            pool.check()
            return
        if self.persistent_workers and not pool.has_raised:
            pool.raise_if_broken()  # by a death after which the epoch could still be completed
        pool.stop()
        server = Server(recipe, self.seed, self.worker_init_fn)
        try:
            pool.start(server.serve, server.set_up)
        except PayloadError as error:
            names = ("dataset", "collate_fn", "worker_init_fn")
            parts = {name: getattr(self, name) for name in names}
            named = PayloadError.about(parts, ADVICE) or error
            raise named from named.__cause__

    @property
    def _prefetch(self) -> int:
        return self.prefetch_factor or arguments.DEFAULT_PREFETCH

    def _new_pool(self) -> BatchPool:
        pool = BatchPool(
            self.num_workers,
            self.start_method,
            self.restart,
            self._prefetch,
            timeout_s=self.timeout or None,
            memory_limit_bytes=self._memory_limit_bytes,
            judges=self.on_error != "raise",
        )
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
        self._past_worked_s = sums(self._past_worked_s, pool.worked_s())
        self._past_reports += pool.reports
        self._pools = [(p, user) for p, user in self._pools if p is not pool]

    def workers(self) -> list[WorkerStatus]:
        """Return the WorkerStatus of each worker that lives now, in order of id; none before ``iter()``."""
        living = [worker for pool, _ in self._pools for worker in list(pool.workers.values())]
        return sorted((WorkerStatus.of(worker) for worker in living), key=lambda status: status.id)

    @property
    def reports(self) -> list[ExitReport]:
        """The ExitReport of every end of a worker so far, ordered stops included."""
        return self._past_reports + [report for pool, _ in self._pools for report in pool.reports]

    # ---- closing ---------------------------------------------------------------------------------

    def close(self) -> None:
        """End all workers and wait for their end.

        An iterator that has not delivered everything then raises RuntimeError, also while another thread
        waits in its ``next()``; an ``iter()`` under way is waited for. The loader can be iterated again, and
        ``close`` be called again. ``with`` closes a loader at its end.
        """
        with self._lock:
            for pool, user in list(self._pools):
                self._drop(pool)
                iterator = None if user is None else user()
                if iterator is not None:
                    iterator.close()

    def __enter__(self) -> DataLoader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _is_over(iterator: WorkerIterator | None) -> bool:
    return iterator is None or iterator.is_over
