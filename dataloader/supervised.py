"""What every loader of ours does, whichever class it is: epochs in process or by supervised workers.

    DataLoader (numpy)            torch.DataLoader (a subclass of torch's)
        arguments, samplers           torch's arguments, samplers, draws
              \\                         /
               SupervisedLoader: begins epochs, keeps workers, tells figures
                          |             \\
                     LiveState           ResumableLoader: opens epochs, states
                  what is running

A class that inherits from this has its arguments as attributes, and ``_given``: them as they were given.
"""

from __future__ import annotations

from itertools import pairwise
from types import TracebackType
from typing import Any, TypeVar

from dataloader import arguments
from dataloader.batch_by_cost import BatchByCost
from dataloader.batch_pool import BatchPool
from dataloader.datasets import Subset
from dataloader.in_process_iterator import InProcessIterator
from dataloader.joining import Joiner
from dataloader.opening import Opened
from dataloader.pace import Pace
from dataloader.pieces import derived_seed
from dataloader.recipe import Collate, Recipe, WorkerInit
from dataloader.resumable import ResumableLoader
from dataloader.review import Review
from dataloader.sample_errors import OnError, SampleError
from dataloader.samplers import BatchSampler, checked_count
from dataloader.state import Bookmark
from dataloader.stats import LoaderStats
from dataloader.status import WorkerStatus
from dataloader.stream_recipe import StreamRecipe
from dataloader.watch import Bar, Watch
from dataloader.worker import Server
from dataloader.worker_iterator import WorkerIterator
from supervisor.payload import PayloadError
from supervisor.policy import RestartPolicy
from supervisor.report import ExitReport

ADVICE = (
    "leave it out of the pickle by __getstate__ and make it where it is used, or pass "
    "multiprocessing_context='fork', which pickles nothing"
)

Self = TypeVar("Self", bound="SupervisedLoader")


class SupervisedLoader(ResumableLoader):
    """Begins epochs, keeps workers, and tells figures of both."""

    collate_fn: Collate
    worker_init_fn: WorkerInit | None
    prefetch_factor: int | None
    persistent_workers: bool
    timeout: float
    restart: RestartPolicy | None
    on_error: OnError
    worker_memory_limit: int | str | None
    progress: bool

    _in_process_iterator: type[InProcessIterator] = InProcessIterator
    _worker_iterator: type[WorkerIterator] = WorkerIterator
    _server: type[Server] = Server

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is running: a copy starts its own."""
        return {**self.__dict__, "_live": self._live.fresh()}

    # ---- epochs ----------------------------------------------------------------------------------

    def _begin_epoch(self) -> InProcessIterator | WorkerIterator:
        """Return the iterator of one more epoch, or of what is left of one."""
        with self._live.lock:
            live = self._live
            recipe = self._recipe()
            begin = self._begin_with_workers if self.num_workers else self._begin_in_process
            iterator, bookmark = begin(recipe)
            live.note_opened(bookmark)
            return iterator

    def _recipe(self) -> Recipe | StreamRecipe:
        may_skip = self.on_error != "raise"
        if not self._has_streams:
            in_batches = self.batch_sampler is not None
            return Recipe.of(self.dataset, self.collate_fn, in_batches=in_batches, may_skip=may_skip)
        return StreamRecipe(
            self.dataset,
            self.collate_fn,
            self.batch_size,
            drop_last=self.drop_last,
            may_skip=may_skip,
            is_in_process=self.num_workers == 0,
        )

    def _begin_in_process(self, recipe: Recipe | StreamRecipe) -> tuple[InProcessIterator, Bookmark]:
        opened = self._open()
        watch, review = self._new_watch(opened, self._live.deaths()), self._review(opened.epoch)
        iterator = self._in_process_iterator(
            recipe, opened.source, opened.seed, watch, review, opened.bookmark
        )
        iterator.become(opened.head)
        return iterator, opened.bookmark

    def _begin_with_workers(self, recipe: Recipe | StreamRecipe) -> tuple[WorkerIterator, Bookmark]:
        for pool, _ in self._live.pools:
            pool.require_ours()
        opened, deaths_before = self._open(), self._live.deaths()
        pool = self._fitting_pool() or self._live.add(self._new_pool())
        with pool.turn:
            try:
                self._make_ready(pool, recipe, opened.seed)
            except BaseException:
                self._live.drop(pool)
                raise
            iterator = self._worker_iterator(
                pool,
                opened.source,
                seed=opened.seed,
                pace=self._new_pace(pool),
                in_order=self.in_order,
                keep_workers=self.persistent_workers,
                watch=self._new_watch(opened, deaths_before),
                review=self._review(opened.epoch),
                bookmark=opened.bookmark,
                joiner=self._joiner(recipe) if self.num_workers > 1 else None,
            )
            iterator.become(opened.head)
        self._live.note_user(pool, iterator)
        return iterator, opened.bookmark

    def _new_pace(self, pool: BatchPool) -> Pace:
        by_default = self._prefetch == arguments.DEFAULT_PREFETCH and not self._has_streams
        worked_s = sum(pool.worked_s().values())
        return Pace(
            self.num_workers,
            self._prefetch,
            may_go_ahead=by_default,
            worked_s=worked_s,
            in_pieces=pool.in_pieces,
        )

    def _joiner(self, recipe: Recipe | StreamRecipe) -> Joiner | None:
        """Return the loader's joiner, which knows of earlier epochs; None where it is of no use."""
        joiner = self._new_joiner(recipe)
        if joiner is None:
            return None
        joiner = self._live.joiner = self._live.joiner or joiner
        return None if joiner.gave_up else joiner

    def _new_joiner(self, recipe: Recipe | StreamRecipe) -> Joiner | None:
        """Return what puts batches together that are made in pieces; None: they cannot be."""
        return Joiner() if isinstance(recipe, Recipe) and recipe.can_make_pieces else None

    def _new_watch(self, opened: Opened, deaths_before: int) -> Watch:
        try:
            total: int | None = self.num_items
        except TypeError:
            total = None
        live = self._live
        bar = Bar(total, lambda: live.deaths() - deaths_before) if self.progress else None
        return Watch(live.new_tally(), total, bar, opened.bookmark.position.items)

    def _review(self, epoch: int) -> Review:
        max_attempts = (self.restart or RestartPolicy()).max_attempts
        return Review(self.on_error, epoch, max_attempts, self.timeout)

    # ---- workers ---------------------------------------------------------------------------------

    def _make_ready(self, pool: BatchPool, recipe: Recipe | StreamRecipe, seed: int) -> None:
        keeps = self.persistent_workers and self._live.resume is None  # what was loaded is for new workers
        if keeps and pool.workers and not pool.is_broken:
            pool.check()
            return
        if self.persistent_workers and not pool.has_raised:
            pool.raise_if_broken()  # by a death after which the epoch could still be completed
        pool.stop()
        server = self._server(recipe, seed, self.worker_init_fn)
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

    @property
    def start_method(self) -> str:
        """How workers are started: "forkserver", "fork" or "spawn".

        >>> from dataloader import DataLoader
        >>> DataLoader(range(9)).start_method
        'forkserver'
        """
        raise NotImplementedError

    def _fitting_pool(self) -> BatchPool | None:
        """Return an idle pool; close one that was made with other settings than those of now."""
        pool = self._live.idle_pool()
        if pool is not None and pool.settings != self._pool_settings():
            self._live.drop(pool)
            return None
        return pool

    def _new_pool(self) -> BatchPool:
        return BatchPool(**self._pool_settings())

    def _pool_settings(self) -> dict[str, Any]:
        return {
            "num_workers": self.num_workers,
            "start_method": self.start_method,
            "policy": self.restart,
            "prefetch": self._prefetch,
            "timeout_s": self.timeout or None,
            "memory_limit_bytes": arguments.checked_memory_limit(self.worker_memory_limit, self.num_workers),
            "judges": self.on_error != "raise",
        }

    def workers(self) -> list[WorkerStatus]:
        """Return the WorkerStatus of each worker that lives now, in order of id; none before ``iter()``.

        >>> from dataloader import DataLoader
        >>> DataLoader(range(9), num_workers=2).workers()
        []
        """
        self._live.hear()
        return self._live.workers()

    @property
    def reports(self) -> list[ExitReport]:
        """The ExitReport of every end of a worker so far, ordered stops included.

        >>> from dataloader import DataLoader
        >>> with DataLoader([7], num_workers=1) as loader:
        ...     _ = list(loader)
        >>> [report.reason.name for report in loader.reports]
        ['CLOSED']
        """
        self._live.hear()
        return self._live.reports

    def close(self) -> None:
        """End all workers and wait for their end.

        An iterator that has not delivered everything then raises RuntimeError, also while another thread
        waits in its ``next()``; an ``iter()`` under way is waited for. The loader can be iterated again, and
        ``close`` be called again. ``with`` closes a loader at its end.
        """
        self._live.close()

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- figures ---------------------------------------------------------------------------------

    def stats(self) -> LoaderStats:
        """Return figures of all epochs so far.

        >>> from dataloader import DataLoader
        >>> loader = DataLoader(range(10), batch_size=4)
        >>> _ = list(loader), list(loader)
        >>> stats = loader.stats()
        >>> stats.batches, stats.samples
        (6, 20)
        """
        self._live.hear()
        return self._live.stats()

    @property
    def skipped(self) -> list[SampleError]:
        """The SampleError of every sample that was left out so far, in order of delivery.

        >>> from dataloader import DataLoader
        >>> loader = DataLoader(range(4), batch_size=2, collate_fn=lambda numbers: [1 // numbers[0]],
        ...                     on_error="skip")
        >>> list(loader), loader.skipped[0].index
        ([[0]], [0, 1])
        """
        return self._live.skipped

    # ---- parts -----------------------------------------------------------------------------------

    @property
    def num_items(self) -> int:
        """How many samples an epoch delivers.

        Raises TypeError where a sampler without a length decides, or a ``batch_sampler`` of the user's.

        >>> from dataloader import DataLoader
        >>> DataLoader(range(10), batch_size=4, drop_last=True).num_items
        8
        """
        if self.batch_sampler is None:
            return len(self.sampler)  # type: ignore[arg-type]
        if isinstance(self.batch_sampler, BatchSampler | BatchByCost):
            return self.batch_sampler.num_items
        raise TypeError(f"batch_sampler={self.batch_sampler!r} does not tell how many samples it asks for")

    def slice(self: Self, start: int, stop: int) -> Self:
        """Return a loader of samples ``start`` to ``stop - 1`` of the dataset, like this one otherwise.

        Its seed follows from this loader's, ``start`` and ``stop``. It begins with epoch 0.

        Parameters:
            start, stop: 0 <= start <= stop <= the dataset's length.

        Raises:
            ValueError: there are no such samples, or a sampler of the user's decides.
            TypeError: a bound is no whole number, or the dataset is iterable.

        >>> from dataloader import DataLoader
        >>> loader = DataLoader(range(10), batch_size=4)
        >>> [batch.tolist() for batch in loader.slice(5, 10)]
        [[5, 6, 7, 8], [9]]
        """
        for name in ("sampler", "batch_sampler"):
            if self._given[name] is not None:
                raise ValueError(
                    f"{name}={self._given[name]!r} decides which samples come: slice that instead"
                )
        self._require_indices()
        length = len(self.dataset)
        start, stop = checked_count("start", start, least=0), checked_count("stop", stop, least=0)
        if not start <= stop <= length:
            raise ValueError(f"start={start}, stop={stop}: give 0 <= start <= stop <= {length}")
        part = type(self)(**{**self._given, **self._part(start, stop)})
        part._given = {**part._given, "seed": None if self._given["seed"] is None else part.seed}
        return part

    def _require_indices(self) -> None:
        if self._has_streams:
            raise TypeError(
                f"dataset={self.dataset!r} is iterable, and has no samples by number: share it out in its "
                "__iter__ instead"
            )

    def _part(self, start: int, stop: int) -> dict[str, Any]:
        """Return the arguments that differ in a part of this loader."""
        seed = None if self.seed is None else derived_seed(self.seed, start, stop)
        return {"dataset": Subset(self.dataset, range(start, stop)), "seed": seed, "generator": None}

    def split(self: Self, n: int) -> list[Self]:
        """Return ``n`` loaders that share the dataset's samples out between them, as equally as can be.

        Parameters:
            n: at least 1; beyond the number of samples some loaders have none.

        Raises:
            ValueError, TypeError: as ``slice`` does.

        >>> from dataloader import DataLoader
        >>> [part.num_items for part in DataLoader(range(10)).split(3)]
        [4, 3, 3]
        """
        self._require_indices()
        size, longer = divmod(len(self.dataset), checked_count("n", n, least=1))
        starts = [part * size + min(part, longer) for part in range(n + 1)]
        return [self.slice(start, stop) for start, stop in pairwise(starts)]
