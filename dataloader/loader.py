"""DataLoader: what a user constructs. It keeps its checked arguments, and makes iterators."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from dataloader import arguments
from dataloader.datasets.kinds import is_iterable
from dataloader.live_state import LiveState
from dataloader.opening import Start
from dataloader.recipe import Collate, WorkerInit
from dataloader.sample_errors import OnError
from dataloader.samplers import checked_count, checked_flag
from dataloader.supervised import SupervisedLoader
from supervisor.policy import RestartPolicy

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


class DataLoader(SupervisedLoader):
    """Loads a dataset in batches, in this process or in supervised worker processes.

    The same batches come, in the same order, whatever ``num_workers`` is and however many workers die.

    Parameters:
        dataset: anything with ``__getitem__``, and with ``__len__`` unless a sampler is given. Where it has
            ``__getitems__``, that is called once with all indices of a batch. Or a stream: an
            IterableDataset, or what else has ``__iter__`` and no ``__getitem__``.
        batch_size: samples per batch; None: deliver single samples, each passed through ``collate_fn``.
        shuffle: ask for the samples in a new random order each epoch.
        sampler: gives the indices of an epoch, in order: anything that can be iterated, anew each epoch.
        batch_sampler: gives lists of indices, each a batch; endless ones too.
        num_workers: worker processes; 0 loads in this process.
        collate_fn: makes a batch of a list of samples; by default ``default_collate``, with
            ``batch_size=None`` ``default_convert``.
        pin_memory, pin_memory_device: for tensors; NumPy arrays cannot be pinned.
        drop_last: leave out a last batch that is not full.
        timeout: seconds that a worker may work on one batch, or on its piece of one that several workers
            make; 0: no limit. One that takes longer is ended, and
            its work tried again. Unlike torch's it does not bound the wait for a batch.
        worker_init_fn: called with the worker's id in each worker before its first sample, in a replacement
            too.
        multiprocessing_context: "forkserver" (default), "fork" or "spawn", or a context of
            ``multiprocessing`` or ``multiprocess``.
        generator: a ``numpy.random.Generator`` or ``random.Random`` to draw the seed from, once, now.
        prefetch_factor: batches per worker to have ahead of the user, at least 1; by default 2, and up to 8
            of batches that cost next to nothing.
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
        arguments.checked_memory_limit(worker_memory_limit, num_workers)
        arguments.refuse_pinning(pin_memory, pin_memory_device)
        self.pin_memory, self.pin_memory_device = False, ""
        self.worker_init_fn = arguments.checked_worker_init(worker_init_fn)
        self.prefetch_factor = arguments.checked_prefetch(prefetch_factor, num_workers)
        self.persistent_workers = arguments.checked_persistent(persistent_workers, num_workers)
        self._start_method = arguments.checked_start_method(multiprocessing_context, num_workers)
        self.multiprocessing_context = multiprocessing_context
        self.in_order = checked_flag("in_order", in_order)
        self.restart = arguments.checked_restart(restart)
        if is_iterable(dataset):
            arguments.refuse_for_streams(shuffle, sampler, batch_sampler)
            arguments.refuse_unskippable(dataset, on_error)
            arguments.refuse_shrinking(self.restart, num_workers)
        arguments.refuse_contradictions(batch_size, shuffle, sampler, batch_sampler, drop_last)
        self.drop_last = checked_flag("drop_last", drop_last, wrong_type=ValueError)
        self.sampler = arguments.chosen_sampler(dataset, sampler, batch_sampler, shuffle)
        self.batch_sampler = arguments.chosen_batch_sampler(
            self.sampler, batch_sampler, batch_size, drop_last
        )
        self.batch_size = None if batch_sampler is not None else batch_size
        self.collate_fn = arguments.checked_collate(collate_fn, in_batches=self.batch_sampler is not None)
        self.seed: int = arguments.checked_or_drawn_seed(seed, generator)
        self.generator = generator
        self.progress = checked_flag("progress", progress)
        self._live = LiveState()
        self._is_made = True
        arguments.warn_of_too_many_workers(num_workers)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _FROZEN and getattr(self, "_is_made", False):
            raise ValueError(f"{name} of a DataLoader cannot be set once it is made: make a new DataLoader")
        super().__setattr__(name, value)

    def __len__(self) -> int:
        """How many batches an epoch has; with ``batch_size=None`` how many samples.

        Of an iterable dataset it is what its ``__len__`` says; where more come than that, a UserWarning
        tells. Raises TypeError where a sampler or an iterable dataset without a length decides.

        >>> len(DataLoader(range(10), batch_size=4)), len(DataLoader(range(10), batch_size=4, drop_last=True))
        (3, 2)
        """
        if self._has_streams:
            self._live.stated_length = len(self.dataset)
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
        with self._live.lock:
            if self._live.tallies:
                arguments.warn_of_used_iterators(self.sampler, self.batch_sampler)
            return self._begin_epoch()

    def _start(self, epoch: int) -> Start:
        return Start(self.seed, epoch, self._drawn(self.seed, epoch))

    @property
    def start_method(self) -> str:
        return self._start_method
