"""What every loader of ours does, whichever class it is: epochs in process or by supervised workers.

    DataLoader (numpy)            torch.DataLoader (a subclass of torch's)
        arguments, samplers           torch's arguments, samplers, draws
              \\                         /
               SupervisedLoader: begins epochs, keeps workers, tells figures
                          |
                     LiveState: what is running

A class that inherits from this has its arguments as attributes, and ``_given``: them as they were given.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from types import TracebackType
from typing import Any, TypeVar

from dataloader import arguments
from dataloader.batch_by_cost import BatchByCost
from dataloader.batch_pool import BatchPool
from dataloader.datasets import Subset
from dataloader.datasets.kinds import is_iterable
from dataloader.iterators import InProcessIterator, WorkerIterator
from dataloader.live_state import LiveState
from dataloader.opening import Opened, Opener, Start
from dataloader.pieces import derived_seed
from dataloader.ranks import rank_here
from dataloader.recipe import Collate, Recipe, WorkerInit
from dataloader.review import Review
from dataloader.sample_errors import OnError, SampleError
from dataloader.sampler_chain import SamplerChain
from dataloader.samplers import BatchSampler, checked_count, iterate
from dataloader.state import Bookmark, Position, Resume, checked_state
from dataloader.stats import LoaderStats
from dataloader.status import WorkerStatus
from dataloader.stream_ledger import OwnStream, Streams, StreamSource
from dataloader.stream_resume import progress_of
from dataloader.streams import StreamRecipe
from dataloader.watch import Bar, Watch
from dataloader.worker import Server
from supervisor.payload import PayloadError
from supervisor.policy import RestartPolicy
from supervisor.report import ExitReport

ADVICE = (
    "leave it out of the pickle by __getstate__ and make it where it is used, or pass "
    "multiprocessing_context='fork', which pickles nothing"
)

Self = TypeVar("Self", bound="SupervisedLoader")


class SupervisedLoader:
    """Begins epochs, keeps workers, and tells figures of both."""

    dataset: Any
    batch_size: int | None
    drop_last: bool
    sampler: Iterable[Any]
    batch_sampler: Iterable[Any] | None
    collate_fn: Collate
    worker_init_fn: WorkerInit | None
    num_workers: int
    prefetch_factor: int | None
    persistent_workers: bool
    timeout: float
    in_order: bool
    restart: RestartPolicy | None
    on_error: OnError
    worker_memory_limit: int | str | None
    progress: bool
    seed: int | None
    _given: Mapping[str, Any]
    _live: LiveState

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

    def _open(self) -> Opened:
        opened = self._opener().open(self._live.next_epoch, self._live.resume)
        if self._given["seed"] is None:
            self.__dict__["seed"] = opened.seed
        return opened

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
                window=self.num_workers * self._prefetch,
                in_order=self.in_order,
                keep_workers=self.persistent_workers,
                watch=self._new_watch(opened, deaths_before),
                review=self._review(opened.epoch),
                bookmark=opened.bookmark,
            )
            iterator.become(opened.head)
        self._live.note_user(pool, iterator)
        return iterator, opened.bookmark

    def _start(self, epoch: int) -> Start:
        """Return what the epoch begins with, having drawn whatever there is to draw."""
        raise NotImplementedError

    def _drawn(self, seed: int, epoch: int) -> Iterator[Any]:
        """Begin to draw from the sampler: lists of indices, of one each where samples come singly."""
        if self.batch_sampler is None:
            return BatchSampler(self.sampler, batch_size=1, drop_last=False).iterate(seed, epoch)
        return iterate(self.batch_sampler, seed, epoch)

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

    def set_epoch(self, epoch: int) -> None:
        """Let the next ``iter()`` begin epoch number ``epoch``, counted from 0.

        A sampler of the user's that has ``set_epoch``, such as a distributed one, is told as well.

        Raises:
            ValueError, TypeError: ``epoch`` is no whole number of at least 0.

        >>> from dataloader import DataLoader
        >>> loader = DataLoader(range(9), shuffle=True)
        >>> first, second = list(loader), list(loader)
        >>> loader.set_epoch(0)
        >>> list(loader) == first != second
        True
        """
        self._live.next_epoch = checked_count("epoch", epoch, least=0)
        resume = self._live.resume
        if resume is not None and resume.is_middle and resume.epoch != self._live.next_epoch:
            self._live.resume = None
            warnings.warn(
                f"set_epoch({epoch}) after a state of epoch {resume.epoch} was loaded: epoch {epoch} begins "
                "at its first batch",
                stacklevel=2,
            )
        samplers = (self.batch_sampler, self.sampler, getattr(self.batch_sampler, "sampler", None))
        for sampler in {id(sampler): sampler for sampler in samplers}.values():
            tell = getattr(sampler, "set_epoch", None)
            if tell is not None:
                tell(self._live.next_epoch)

    # ---- state -----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return where the user of the iterator that was made last is: see ``load_state_dict``.

        It counts the batches that the user has received. It can be had at any time, before the first epoch,
        in the middle of one, or between two; it draws nothing and starts nothing. The dict is the caller's,
        and can be written as JSON if the states of the dataset and the sampler can, where these have one.

        >>> from dataloader import DataLoader
        >>> loader = DataLoader(range(10), batch_size=4)
        >>> for batch in loader:
        ...     break
        >>> loader.state_dict()["_num_yielded"]
        1
        """
        live = self._live
        if live.resume is not None:
            state = copy.deepcopy(dict(live.resume.state))
            return state if live.resume.is_middle else {**state, **live.resume.renumbered(live.next_epoch)}
        if live.bookmark is not None:
            return live.bookmark.state_dict(live.next_epoch)
        opener = self._opener()
        beginning = opener.beginning(live.next_epoch, self.seed)
        return Bookmark(beginning, opener.facts, position=Position(mark=opener.begin_mark())).state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Let the next ``iter()`` go on where ``state_dict`` was taken.

        The batches that are left come as they would have come then, random augmentation included, whatever
        ``num_workers`` is; samples of those before are not loaded. A state of an epoch's end lets the next
        epoch begin. Where ``seed`` was not given, the loader has the state's from now on.

        Parameters:
            state_dict: what ``state_dict()`` of a loader like this returned, of another rank's too. An empty
                one undoes an earlier call.

        Raises:
            TypeError, ValueError: it is no such state, or one of another loader: the message names what
                differs.

        Warns:
            UserWarning: what cannot be exact: the dataset has a state of its own, and workers changed it.

        >>> from dataloader import DataLoader
        >>> loader, other = [DataLoader(range(10), batch_size=4, shuffle=True) for _ in range(2)]
        >>> iterator = iter(loader)
        >>> _ = next(iterator)
        >>> other.load_state_dict(loader.state_dict())
        >>> [batch.tolist() for batch in other] == [batch.tolist() for batch in iterator]
        True
        """
        live = self._live
        if state_dict == {}:
            live.load(None)
            return
        opener = self._opener()
        resume = checked_state(state_dict, opener.facts)
        if resume.has_older_dataset:
            warnings.warn(
                "the dataset's own state that was loaded is that of its epoch's beginning: what workers' "
                "copies of it had become is not known, and samples that depend on it are not the same",
                stacklevel=2,
            )
        if self._has_streams and not resume.position.finished:
            progress_of(resume.state["streams"], self.num_workers, self.dataset)
        with live.lock:
            resume = self._with_seed_of(resume)
            opener.chain.set_epochs(resume.sampler_epochs)
            live.load(resume)

    def _with_seed_of(self, resume: Resume) -> Resume:
        """Take the state's seed for this loader, or this loader's for the state, where they differ."""
        seed = resume.beginning.seed
        if self.seed is None or seed is None or seed == self.seed:
            return resume
        if self._given["seed"] is None:
            self.__dict__["seed"] = seed
            return resume
        if resume.beginning.rank == rank_here():
            raise ValueError(
                f"state_dict is of a loader with seed={seed}, and this one has seed={self.seed}: give "
                f"seed={seed}, or none, or begin anew without the state"
            )
        return resume.with_seed(self.seed)

    def _opener(self) -> Opener:
        chain = self._chain()
        ours = {"batch_size": self.batch_size, "drop_last": self.drop_last}
        twice = [] if self.batch_size is None else [f"batch_sampler.{name}" for name in ours]
        facts = {"len(dataset)": _length(self.dataset), **ours, **chain.facts()}
        facts = {name: value for name, value in facts.items() if name not in twice}
        streams = self._streams if self._has_streams else None
        return Opener(self.dataset, chain, self._order_sampler, facts, self._start, self._drawn, streams)

    @property
    def _has_streams(self) -> bool:
        """Whether the dataset is iterable, so that each worker has a stream of its own."""
        return is_iterable(self.dataset)

    def _streams(self, state: Any) -> StreamSource:
        """Return the workers' streams, which go on from what a state says of them."""
        streams = Streams(
            workers=self.num_workers,
            size=self.batch_size or 1,
            rank=rank_here(),
            name=type(self.dataset).__name__,
            length=self._stated_length,
            warned=self._live.warned,
        )
        progress = progress_of(state, self.num_workers, self.dataset)
        if self.num_workers == 0:
            return OwnStream(streams, progress=progress)
        return StreamSource(streams, self._prefetch, in_order=self.in_order, progress=progress)

    @property
    def _stated_length(self) -> int | None:
        """How many samples an iterable dataset was said to have; None: nobody asked."""
        return self._live.stated_length

    def _chain(self) -> SamplerChain:
        return SamplerChain(self.batch_sampler, self.sampler)

    @property
    def _order_sampler(self) -> Any:
        """The sampler whose own state counts, if it has one."""
        if self.batch_sampler is None:
            return self.sampler
        return _behind(self.batch_sampler)

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
            pool.start(server.serve, server.set_up, server.warm_up)
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
            TypeError: a bound is no whole number.

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
        length = len(self.dataset)
        start, stop = checked_count("start", start, least=0), checked_count("stop", stop, least=0)
        if not start <= stop <= length:
            raise ValueError(f"start={start}, stop={stop}: give 0 <= start <= stop <= {length}")
        part = type(self)(**{**self._given, **self._part(start, stop)})
        part._given = {**part._given, "seed": None if self._given["seed"] is None else part.seed}
        return part

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
        size, longer = divmod(len(self.dataset), checked_count("n", n, least=1))
        starts = [part * size + min(part, longer) for part in range(n + 1)]
        return [self.slice(start, stop) for start, stop in pairwise(starts)]


def _behind(batch_sampler: Iterable[Any]) -> Iterable[Any]:
    """Return whose indices the batches are made of, where that is all that ``batch_sampler`` does."""
    return batch_sampler.sampler if isinstance(batch_sampler, BatchSampler) else batch_sampler


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        return None
