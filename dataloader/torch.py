"""A data loader for torch: ``torch.utils.data.DataLoader`` with supervised workers.

    from dataloader.torch import DataLoader      # instead of: from torch.utils.data import DataLoader

It is a subclass of torch's, takes torch's arguments, and yields what torch's yields: tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import default_collate, default_convert, get_worker_info
from torch.utils.data.dataloader import _BaseDataLoaderIter, _DatasetKind
from typing_extensions import TypeVar

from dataloader import arguments
from dataloader._torch import datapipes
from dataloader._torch.iterators import Head, TorchInProcessIterator, TorchWorkerIterator
from dataloader._torch.joining import TensorColumn, collate_joined, is_torchs_alone
from dataloader._torch.supervising import SeenByAccelerate, supervise_as
from dataloader._torch.worker import REPLACEMENTS, TorchServer
from dataloader.batch_pool import BatchPool
from dataloader.datasets import IterableDataset
from dataloader.joining import Joiner
from dataloader.live_state import LiveState
from dataloader.opening import Opened, Start
from dataloader.recipe import Recipe
from dataloader.resume import Resume
from dataloader.sample_errors import OnError
from dataloader.sampler_chain import SamplerChain
from dataloader.samplers import BatchSampler, EpochSampler, checked_count, checked_flag, checked_seed
from dataloader.supervised import SupervisedLoader
from supervisor.policy import RestartPolicy

__all__ = ["DataLoader", "default_collate", "default_convert", "get_worker_info", "supervise"]

torch.utils.data.IterableDataset.register(IterableDataset)  # ours is one to torch's loader as well

TOO_MANY = "excessive worker creation might get DataLoader running slow"  # torch says so too

T_co = TypeVar("T_co", covariant=True, default=Any)


class DataLoader(torch.utils.data.DataLoader[T_co], SupervisedLoader, SeenByAccelerate):  # type: ignore[misc]
    """Loads a dataset in batches of tensors, in this process or in supervised worker processes.

    For the same seed the samples come in torch's order. What a batch holds does not depend on how many
    workers there are, nor on how many die.

    Parameters:
        dataset, batch_size, shuffle, sampler, batch_sampler, collate_fn, pin_memory, drop_last, in_order:
            as for torch's loader.
        num_workers: worker processes; 0 loads in this process.
        timeout: seconds that a worker may work on one batch, or on its piece of one that several workers
            make; 0: no limit. One that takes longer is ended, and
            its work tried again. Unlike torch's it does not bound the wait for a batch.
        worker_init_fn: called with the worker's id in each worker before its first sample, in a replacement
            too, with all random generators seeded by ``get_worker_info().seed``.
        multiprocessing_context: "forkserver", "fork" or "spawn", or a context of ``torch.multiprocessing`` or
            ``multiprocessing``. None: "forkserver".
        generator: a ``torch.Generator``: draws the order of samples, and a seed at each ``iter()``.
        prefetch_factor: batches per worker to have ahead of the user; by default 2, and up to 8 of batches
            that cost next to nothing.
        persistent_workers: keep the workers from one epoch to the next.
        pin_memory_device: not used, as in torch.
        seed: 0 to 2**64 - 1; decides the random state that samples are loaded with. None: what torch draws
            at each ``iter()``, from ``generator`` or from its default one.
        restart, on_error, worker_memory_limit, progress: see ``dataloader.DataLoader``.
        snapshot_every_n_steps: taken for ``torchdata``'s sake; every state is exact.

    Attributes:
        seed: the given one, or the one that was drawn last; None before the first epoch.

    The arguments are attributes too. As in torch, ``batch_size``, ``batch_sampler``, ``sampler``,
    ``drop_last``, ``dataset`` and ``persistent_workers`` cannot be set afterwards: ValueError. The others
    count from the next ``iter()`` on.

    Raises:
        ValueError, TypeError: naming the argument.

    Warns:
        UserWarning: more workers than cores that this process may use; pinned memory without an accelerator.

    >>> loader = DataLoader([1, 2, 3, 4, 5], batch_size=2, num_workers=2)
    >>> with loader:
    ...     [batch.tolist() for batch in loader]
    [[1, 2], [3, 4], [5]]
    """

    _in_process_iterator = TorchInProcessIterator
    _worker_iterator = TorchWorkerIterator
    _server = TorchServer
    _live: _LiveState

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
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
        snapshot_every_n_steps: int | None = 1,
    ) -> None:
        given = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        self._given, self._live = given, _LiveState()
        self.seed = None if seed is None else checked_seed(seed)
        self.restart = arguments.checked_restart(restart)
        self.on_error = arguments.checked_on_error(on_error)
        self.progress = checked_flag("progress", progress)
        self.worker_memory_limit = worker_memory_limit
        arguments.checked_memory_limit(worker_memory_limit, num_workers)
        self.snapshot_every_n_steps = snapshot_every_n_steps
        if snapshot_every_n_steps is not None:
            checked_count("snapshot_every_n_steps", snapshot_every_n_steps, least=1)
        torch.utils.data.DataLoader.__init__(
            self,
            dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            num_workers,
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            in_order=in_order,
        )
        if self._has_streams:
            arguments.refuse_unskippable(dataset, on_error)
            arguments.refuse_shrinking(restart, num_workers)

    def check_worker_number_rationality(self) -> None:
        """Warn of more workers than cores, as torch's does; the cgroup's quota counts too."""
        arguments.warn_of_too_many_workers(self.num_workers, TOO_MANY)

    # ---- epochs ----------------------------------------------------------------------------------

    def __iter__(self) -> _BaseDataLoaderIter:
        """Begin an epoch: see ``dataloader.DataLoader``.

        Raises what that raises, and AssertionError, as torch does, for a ``timeout`` without workers.
        """
        return self._get_iterator()

    def _get_iterator(self) -> _BaseDataLoaderIter:
        if self.num_workers == 0:
            datapipes.shard(self.dataset, datapipes.ranks())
        if self.timeout and self.num_workers == 0:
            raise AssertionError(f"timeout={self.timeout!r} without workers: set num_workers > 0")
        iterator: Any = self._begin_epoch()
        return iterator  # type: ignore[no-any-return]

    @property
    def _has_streams(self) -> bool:
        return bool(self._dataset_kind == _DatasetKind.Iterable)

    @property
    def _stated_length(self) -> int | None:
        length: int | None = self._IterableDataset_len_called
        return length

    def _start(self, epoch: int) -> Start:
        head, draws = self._live.head, self._live.head is None
        if head is None:
            head = Head(self)
            datapipes.draw_once_more(self, head)
            self._live.head = head if self.persistent_workers else None
        else:
            head.renew(self)
        given: int | None = self._given["seed"]
        self.seed = head.seed if given is None else given
        batches = self._in_batches(head.take_batches(), self.seed, epoch)
        return Start(self.seed, epoch, batches, head, draws, next_draws=not self.persistent_workers)

    def _open(self) -> Opened:
        opened = super()._open()
        if self._live.head is not None:
            self._live.head.seed = opened.seed  # that of all epochs of persistent workers
        return opened

    def _drawn(self, seed: int, epoch: int) -> Iterator[Any]:
        return self._in_batches(iter(self._index_sampler), seed, epoch)

    def _in_batches(self, batches: Iterator[Any], seed: int, epoch: int) -> Iterator[Any]:
        """Return an iterator of batches of indices, where ``batches`` is that of torch's index sampler.

        A plain sampler of batches is not begun: we draw the indices, and can ask their iterator where it is.
        Nor is a sampler of ours: it is asked for this epoch.
        """
        plain = self._plain_batches
        if plain is not None:
            return BatchSampler(plain.sampler, plain.batch_size, plain.drop_last).iterate(seed, epoch)
        if isinstance(self._index_sampler, EpochSampler):
            batches = self._index_sampler.iterate(seed, epoch)
        if self.batch_sampler is None:
            return iter(BatchSampler(batches, batch_size=1, drop_last=False))
        return batches

    @property
    def _plain_batches(self) -> torch.utils.data.BatchSampler | None:
        """The sampler of batches, if it is torch's own and nothing more."""
        batches = self.batch_sampler
        return batches if type(batches) is torch.utils.data.BatchSampler else None

    @property
    def _order_sampler(self) -> Any:
        plain = self._plain_batches
        return super()._order_sampler if plain is None else plain.sampler

    def _chain(self) -> SamplerChain:
        return SamplerChain(self.batch_sampler, self.sampler, self.generator)

    def _make_ready(self, pool: BatchPool, recipe: Any, seed: int) -> None:
        if datapipes.needs_new_workers(self.dataset):
            pool.stop()
        super()._make_ready(pool, recipe, seed)

    def _new_joiner(self, recipe: Any) -> Joiner | None:
        is_default = self.collate_fn is default_collate and is_torchs_alone(*REPLACEMENTS.values())
        if isinstance(recipe, Recipe) and recipe.loads_singly and is_default:
            return Joiner(collate_joined, TensorColumn)
        return None

    @property
    def start_method(self) -> str:
        """How workers are started: "forkserver", "fork" or "spawn".

        >>> DataLoader([1], num_workers=1, multiprocessing_context="fork").start_method
        'fork'
        """
        return arguments.checked_start_method(self.multiprocessing_context, self.num_workers)

    @property
    def num_items(self) -> int:
        """How many samples an epoch delivers.

        Raises TypeError where a sampler without a length decides, or a ``batch_sampler`` of the user's own.

        >>> DataLoader(range(10), batch_size=4, drop_last=True).num_items
        8
        """
        batches = self._plain_batches
        if batches is not None:
            samples = len(batches.sampler)  # type: ignore[arg-type]
            return samples - samples % batches.batch_size if batches.drop_last else samples
        return super().num_items

    def _part(self, start: int, stop: int) -> dict[str, Any]:
        part = super()._part(start, stop)
        seed = None if self._given["seed"] is None else part["seed"]
        return {**part, "generator": self.generator, "seed": seed}

    # ---- torch's view of it ----------------------------------------------------------------------

    @property
    def _iterator(self) -> Any:
        """The iterator of persistent workers, None where there are none. Setting it to None ends them."""
        return self._live.iterator()

    @_iterator.setter
    def _iterator(self, iterator: Any) -> None:
        if iterator is not None:
            raise AttributeError(f"_iterator={iterator!r}: it can only be dropped, by None")
        self.close()

    @_iterator.deleter
    def _iterator(self) -> None:
        self.close()


Loader = TypeVar("Loader")


def supervise(loader: Loader, like: Any = None, **extras: Any) -> Loader:
    """Let the workers of a loader that exists be supervised, and return it: it becomes one of ours, in place.

    Parameters:
        loader: of torch's class; one that Accelerate has prepared; or one of ours, which is changed.
        like: a loader of ours from which ``seed``, ``restart``, ``on_error``, ``worker_memory_limit`` and
            ``progress`` are taken, unless given in ``extras``: the one that was prepared, say.
        extras: these, or ``multiprocessing_context``, ``timeout``, ``prefetch_factor``, ``in_order``,
            ``worker_init_fn``. Torch's loader has "fork" by default, and ours has "forkserver".

    Raises:
        TypeError: it is no loader of torch's, or one of a class that iterates in a way of its own; or an
            argument that cannot be changed.
        ValueError, TypeError: as ``DataLoader`` does.

    >>> loader = supervise(torch.utils.data.DataLoader([1, 2, 3], batch_size=2), on_error="skip")
    >>> isinstance(loader, DataLoader), [batch.tolist() for batch in loader]
    (True, [[1, 2], [3]])
    """
    return supervise_as(DataLoader, loader, like, extras)


class _LiveState(LiveState):
    """What is running, and torch's part in the epochs of persistent workers."""

    head: Head | None = None

    def fresh(self) -> _LiveState:
        live = _LiveState(self.next_epoch)
        live.resume = self.resume
        return live

    def load(self, resume: Resume | None) -> None:
        super().load(resume)
        self.head = None  # the state says whether a seed is drawn

    def iterator(self) -> TorchWorkerIterator | None:
        if self.head is None or self.bookmark is None or not self.pools:
            return None
        pool, user = self.pools[-1]
        iterator = None if user is None else user()
        at_rest = TorchWorkerIterator.at_rest
        return iterator or at_rest(self.head, pool, self.bookmark)  # type: ignore[return-value]

    def close(self) -> None:
        super().close()
        self.head = None
