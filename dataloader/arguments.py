"""What a DataLoader takes as arguments. An error names the argument, its value and what to write instead."""

from __future__ import annotations

import math
import os
import re
import secrets
import warnings
from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from numbers import Integral, Real
from typing import Any

from dataloader.collate import default_collate, default_convert
from dataloader.datasets.kinds import is_iterable
from dataloader.samplers import (
    BatchSampler,
    RandomSampler,
    SequentialSampler,
    checked_count,
    checked_flag,
    checked_generator,
    checked_seed,
    drawn_seed,
)
from dataloader.stream_state import has_exact_state
from supervisor.cgroup import cpu_quota
from supervisor.policy import RestartPolicy
from supervisor.pool import START_METHODS

MAX_TIMEOUT_S = 1e9  # thirty years
DEFAULT_PREFETCH = 2
"""Batches per worker ahead of the user."""


def checked_dataset(dataset: Any) -> Any:
    if isinstance(dataset, type):
        raise TypeError(f"dataset={dataset!r} is a class: give an instance of it")
    if is_iterable(dataset) or hasattr(dataset, "__getitem__") or hasattr(dataset, "__getitems__"):
        return dataset
    if isinstance(dataset, Iterator):
        raise TypeError(
            f"dataset={dataset!r} is an iterator, which can be iterated only once: give an IterableDataset, "
            "whose __iter__ makes one"
        )
    raise TypeError(f"dataset={dataset!r} has no __getitem__ and no __iter__: give a dataset that has either")


# ---- iterable datasets ---------------------------------------------------------------------------


def refuse_for_streams(shuffle: Any, sampler: Any, batch_sampler: Any) -> None:
    """Refuse what cannot be asked of an iterable dataset, which decides its order itself."""
    if shuffle:
        raise ValueError(
            f"shuffle={shuffle!r} with an iterable dataset, which decides its order: leave it out, and "
            "shuffle in the dataset's __iter__"
        )
    for name, value in {"sampler": sampler, "batch_sampler": batch_sampler}.items():
        if value is not None:
            raise ValueError(f"{name}={value!r} with an iterable dataset, which has no indices: leave it out")


def refuse_unskippable(dataset: Any, on_error: Any) -> None:
    """Refuse to skip samples of a stream that has no way to go on past one."""
    if on_error != "raise" and not has_exact_state(dataset):
        raise ValueError(
            f"on_error={on_error!r} with an iterable dataset that has no exact state: an exception ends its "
            "iterator. Give it a state_dict and a load_state_dict, or leave on_error out"
        )


def refuse_shrinking(restart: RestartPolicy | None, num_workers: int) -> None:
    """Refuse to go on with fewer workers, each of which has a stream that no other can go on with."""
    if restart is not None and restart.shrink_on_oom and num_workers:
        raise ValueError(
            "restart=RestartPolicy(shrink_on_oom=True) with an iterable dataset: no other worker can go on "
            "with a worker's stream: leave shrink_on_oom out"
        )


def checked_callable(name: str, function: Any, takes: str) -> Any:
    if not callable(function):
        raise TypeError(f"{name}={function!r} cannot be called: give a function of {takes}")
    return function


def checked_collate(collate_fn: Any, *, in_batches: bool) -> Callable[[Any], Any]:
    if collate_fn is None:
        return default_collate if in_batches else default_convert
    takes = "a list of samples" if in_batches else "a sample"
    return checked_callable("collate_fn", collate_fn, takes)  # type: ignore[no-any-return]


def checked_worker_init(worker_init_fn: Any) -> Callable[[int], None] | None:
    if worker_init_fn is None:
        return None
    return checked_callable("worker_init_fn", worker_init_fn, "a worker's id")  # type: ignore[no-any-return]


def checked_timeout(timeout: Any, num_workers: int) -> float:
    if isinstance(timeout, bool) or not isinstance(timeout, Real):
        raise TypeError(f"timeout={timeout!r}: give a number of seconds, or 0 for no limit")
    if not 0 <= timeout < MAX_TIMEOUT_S:  # type: ignore[operator]
        raise ValueError(f"timeout={timeout!r}: give a number of seconds, at least 0")
    if timeout and num_workers == 0:
        raise ValueError(f"timeout={timeout!r} without workers: set num_workers > 0 or leave it out")
    return float(timeout)


def checked_prefetch(prefetch_factor: Any, num_workers: int) -> int | None:
    """Return it with its default, which is None without workers."""
    if prefetch_factor is None:
        return DEFAULT_PREFETCH if num_workers else None
    if num_workers == 0:
        raise ValueError(
            f"prefetch_factor={prefetch_factor!r} without workers: set num_workers > 0 or leave it out"
        )
    return checked_count("prefetch_factor", prefetch_factor, least=1)


def checked_persistent(persistent_workers: Any, num_workers: int) -> bool:
    if checked_flag("persistent_workers", persistent_workers) and num_workers == 0:
        raise ValueError("persistent_workers=True without workers: set num_workers > 0 or leave it out")
    return bool(persistent_workers)


def checked_or_drawn_seed(seed: Any, generator: Any) -> int:
    if generator is None:
        return secrets.randbelow(2**63) if seed is None else checked_seed(seed)
    checked_generator(generator)
    if seed is not None:
        raise ValueError(
            f"seed={seed!r} and generator={generator!r}: a generator only draws the seed: leave one out"
        )
    return drawn_seed(generator)


def checked_restart(restart: Any) -> RestartPolicy | None:
    if restart is not None and not isinstance(restart, RestartPolicy):
        raise TypeError(f"restart={restart!r}: give a RestartPolicy, or None to never replace a worker")
    return restart


def checked_start_method(context: Any, num_workers: int) -> str:
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


def checked_on_error(on_error: Any) -> Any:
    if callable(on_error) or on_error in ("raise", "skip"):
        return on_error
    if isinstance(on_error, str):
        raise ValueError(f"on_error={on_error!r}: give 'raise', 'skip', or a function of a SampleError")
    raise TypeError(f"on_error={on_error!r}: give 'raise', 'skip', or a function of a SampleError")


_UNITS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?\s*", re.IGNORECASE)


def checked_memory_limit(limit: Any, num_workers: int) -> int | None:
    """Return ``worker_memory_limit`` in bytes."""
    if limit is None:
        return None
    limit_bytes = bytes_in(limit) if isinstance(limit, str) else limit
    if isinstance(limit, bool) or not isinstance(limit, Integral | str):
        raise TypeError(f"worker_memory_limit={limit!r}: give a number of bytes, or text such as '2GiB'")
    if limit_bytes is None or limit_bytes < 1:
        raise ValueError(f"worker_memory_limit={limit!r}: give a number of bytes, or text such as '2GiB'")
    if num_workers == 0:
        raise ValueError(
            f"worker_memory_limit={limit!r} without workers: set num_workers > 0 or leave it out"
        )
    return int(limit_bytes)


def bytes_in(text: str) -> int | None:
    """Return the size that ``text`` states, in bytes; None where it states none.

    >>> bytes_in("2GiB"), bytes_in("1.5 MB"), bytes_in("300"), bytes_in("many")
    (2147483648, 1500000, 300, None)
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        return None
    number, unit, binary = match.groups()
    return int(float(number) * (1024 if binary else 1000) ** _UNITS[unit.upper()])


def refuse_pinning(pin_memory: Any, pin_memory_device: Any) -> None:
    if pin_memory:
        raise ValueError(
            f"pin_memory={pin_memory!r}: batches are NumPy arrays, which cannot be pinned: leave it out, "
            "or use dataloader.torch.DataLoader, whose tensors can be"
        )
    if pin_memory_device:
        raise ValueError(f"pin_memory_device={pin_memory_device!r} without pin_memory: leave it out")


# ---- samplers ------------------------------------------------------------------------------------


def refuse_contradictions(
    batch_size: Any, shuffle: Any, sampler: Any, batch_sampler: Any, drop_last: Any
) -> None:
    """Refuse arguments of which one would not be heard."""
    if sampler is not None and shuffle:
        raise ValueError(
            f"shuffle={shuffle!r} and sampler={sampler!r}: the sampler decides the order: leave one out"
        )
    if batch_sampler is not None:
        others = {
            "batch_size": (batch_size, batch_size != 1),
            "shuffle": (shuffle, bool(shuffle)),
            "sampler": (sampler, sampler is not None),
            "drop_last": (drop_last, bool(drop_last)),
        }
        for name, (value, is_given) in others.items():
            if is_given:
                raise ValueError(
                    f"{name}={value!r} and batch_sampler={batch_sampler!r}: the batch_sampler decides: leave "
                    "one of them out"
                )
    if batch_size is None and drop_last:
        raise ValueError(
            f"drop_last={drop_last!r} and batch_size=None: without batches none is short: leave drop_last out"
        )


class NoIndices:
    """Stands for a sampler where the dataset is a stream: None without end, and the length that it states."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __iter__(self) -> Iterator[None]:
        return repeat(None)

    def __len__(self) -> int:
        return len(self.dataset)


def chosen_sampler(dataset: Any, sampler: Any, batch_sampler: Any, shuffle: Any) -> Iterable[Any]:
    """Return the sampler of indices."""
    if is_iterable(dataset):
        return NoIndices(dataset)
    if sampler is None:
        if batch_sampler is None and not hasattr(dataset, "__len__"):
            raise TypeError(
                f"dataset={dataset!r} has no __len__: define it, or give a sampler or a batch_sampler"
            )
        shuffled = shuffle is not None and checked_flag("shuffle", shuffle)
        return RandomSampler(dataset) if shuffled else SequentialSampler(dataset)
    return checked_iterable("sampler", sampler, "indices")


def checked_iterable(name: str, sampler: Any, of: str) -> Iterable[Any]:
    if not isinstance(sampler, Iterable) and not hasattr(sampler, "__getitem__"):
        raise TypeError(f"{name}={sampler!r} cannot be iterated: give a sampler, or a list of {of}")
    return sampler  # type: ignore[no-any-return]


def chosen_batch_sampler(
    sampler: Iterable[Any], batch_sampler: Any, batch_size: Any, drop_last: Any
) -> Iterable[Any] | None:
    """Return the sampler of batches, None where samples come singly."""
    if batch_sampler is not None:
        return checked_iterable("batch_sampler", batch_sampler, "batches of indices")
    return None if batch_size is None else BatchSampler(sampler, batch_size, drop_last)


def warn_of_used_iterators(*samplers: Iterable[Any] | None) -> None:
    """Warn, as an epoch begins that is not the first, where a sampler can be iterated only once."""
    for sampler in samplers:
        if isinstance(sampler, Iterator):
            warnings.warn(
                f"{sampler!r} is an iterator: this epoch begins where the last one left it, and is empty if "
                "that used it up: give a sampler that can be iterated anew",
                stacklevel=3,
            )


# ---- cores ---------------------------------------------------------------------------------------


TOO_MANY = "more workers make loading slower, unless they mostly wait"


def warn_of_too_many_workers(num_workers: int, advice: str = TOO_MANY) -> None:
    """Warn where there are more workers than cores that this process may use."""
    cores = usable_cores(os.sched_getaffinity(0), cpu_quota())
    if num_workers > cores:
        warnings.warn(
            f"num_workers={num_workers}, but this process may use {cores} core{'s' if cores > 1 else ''} "
            f"(affinity and cgroup quota counted): {advice}",
            stacklevel=3,
        )


def usable_cores(affinity: set[int], quota: float | None) -> int:
    """Return how many cores may be used.

    >>> usable_cores({0, 1, 2, 3}, quota=1.5), usable_cores({0, 1}, quota=None)
    (2, 2)
    """
    return len(affinity) if quota is None else min(len(affinity), max(1, math.ceil(quota)))
