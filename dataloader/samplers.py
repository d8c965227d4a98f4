"""Samplers: in which order a loader asks for samples.

A random sampler's order follows from a seed and the number of the epoch. Within a loader that is the
loader's seed, unless the sampler has a seed or a generator of its own; so the same loader can be run again,
and several epochs of it can live side by side. Outside, ``iter(sampler)`` counts its own epochs.

An exception out of a signal handler may strike at any instruction of an iterator written in Python. The
iterators here are C iterators or keep what they have drawn (see ``intake``): nothing is lost, and they go on.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import Any

import numpy as np

from dataloader.intake import Intake

SEEDS = range(2**64)
MAX_CHUNK = 10_000  # indices that are held while they are skipped


class Sampler:
    """What a loader takes indices from: whatever has ``__iter__`` will do, and subclassing is a convenience.

    >>> class Even(Sampler):
    ...     def __iter__(self):
    ...         return iter(range(0, 6, 2))
    >>> list(BatchSampler(Even(), batch_size=2, drop_last=False))
    [[0, 2], [4]]
    """

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError(f"{type(self).__name__} must define __iter__()")


class SequentialSampler(Sampler):
    """Indices 0, 1, 2 ... of ``data_source``.

    Parameters:
        data_source: what has the length, as it is when an epoch begins.

    >>> list(SequentialSampler("abc"))
    [0, 1, 2]
    """

    def __init__(self, data_source: Sized) -> None:
        self.data_source = data_source

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source)))

    def __len__(self) -> int:
        return len(self.data_source)


class EpochSampler(Sampler):
    """A sampler that a loader asks for one epoch, by its seed and the epoch's number."""

    def iterate(self, seed: int, epoch: int) -> Iterator[Any]:
        """Return what ``iter()`` gives, in one epoch of a loader with this seed."""
        raise NotImplementedError(f"{type(self).__name__} must define iterate(seed, epoch)")


class SeededSampler(EpochSampler):
    """A sampler whose order follows from a seed and the number of the epoch.

    Parameters:
        generator: a ``numpy.random.Generator`` or ``random.Random`` from which each epoch draws its seed.
        seed: 0 to 2**64 - 1; None: the loader's, or one that is drawn now.

    Raises:
        ValueError, TypeError: naming the argument and what to write instead.
    """

    def __init__(self, generator: Any = None, seed: int | None = None) -> None:
        if generator is not None and seed is not None:
            raise ValueError(f"seed={seed!r} and generator={generator!r}: give one of them")
        if generator is not None:
            checked_generator(generator)
        self.generator = generator
        self.seed = None if seed is None else checked_seed(seed)
        self.epoch = 0
        self._own_seed = secrets.randbelow(2**63) if seed is None else seed

    def set_epoch(self, epoch: int) -> None:
        """Let the next ``iter()`` outside a loader give the order of ``epoch``."""
        self.epoch = epoch

    def epoch_in(self, epoch: int) -> int | None:
        """Return which epoch of its own it has in epoch ``epoch`` of a loader; None: the loader's."""
        return None

    def __iter__(self) -> Iterator[int]:
        epoch, self.epoch = self.epoch, self.epoch + 1
        return self.iterate(self._own_seed, epoch)

    def iterate(self, seed: int, epoch: int) -> Iterator[int]:
        """Return one epoch's indices. ``seed`` is for samplers without a seed or generator of their own."""
        if self.generator is not None:
            seed, epoch = drawn_seed(self.generator), 0
        elif self.seed is not None:
            seed = self.seed
        return iter(self._order(np.random.Generator(np.random.Philox([seed, epoch]))))

    def _order(self, random: np.random.Generator) -> list[int]:
        raise NotImplementedError


class RandomSampler(SeededSampler):
    """Indices of ``data_source`` in random order.

    Parameters:
        data_source: what has the length.
        replacement: draw each index anew, so that one may come several times.
        num_samples: how many indices; by default as many as ``data_source`` has. Without replacement and
            beyond that, whole random orders follow one another.
        generator: a ``numpy.random.Generator`` or ``random.Random`` from which each epoch draws its seed.
        seed: 0 to 2**64 - 1; None: the loader's, or one that is drawn now.

    Raises:
        ValueError, TypeError: naming the argument and what to write instead. Where there is nothing to draw
            from, ValueError by ``iter()``.

    >>> sampler = RandomSampler("abcd", seed=1)
    >>> sorted(sampler), len(list(RandomSampler("abcd", num_samples=6)))
    ([0, 1, 2, 3], 6)
    """

    def __init__(
        self,
        data_source: Sized,
        replacement: bool = False,
        num_samples: int | None = None,
        generator: Any = None,
        *,
        seed: int | None = None,
    ) -> None:
        super().__init__(generator, seed)
        self.data_source = data_source
        self.replacement = checked_flag("replacement", replacement)
        self._num_samples = (
            None
            if num_samples is None
            else checked_count("num_samples", num_samples, least=1, wrong_type=ValueError)
        )

    @property
    def num_samples(self) -> int:
        """How many indices an epoch has: it may follow the length of ``data_source``."""
        return len(self.data_source) if self._num_samples is None else self._num_samples

    def _order(self, random: np.random.Generator) -> list[int]:
        length, wanted = len(self.data_source), self.num_samples
        if length == 0 and wanted:
            raise ValueError(f"num_samples={wanted}: data_source is empty")
        if self.replacement:
            return random.integers(length, size=wanted).tolist() if wanted else []
        order: list[int] = []
        while len(order) < wanted:
            order += random.permutation(length)[: wanted - len(order)].tolist()
        return order

    def __len__(self) -> int:
        return self.num_samples


class SubsetRandomSampler(SeededSampler):
    """The given ``indices`` in random order.

    Parameters:
        indices: a sequence of what the dataset takes as an index.
        generator: a ``numpy.random.Generator`` or ``random.Random`` from which each epoch draws its seed.
        seed: 0 to 2**64 - 1; None: the loader's, or one that is drawn now.

    Raises:
        ValueError, TypeError: naming the argument and what to write instead.

    >>> sorted(SubsetRandomSampler([7, 3, 5]))
    [3, 5, 7]
    """

    def __init__(self, indices: Sequence[Any], generator: Any = None, *, seed: int | None = None) -> None:
        super().__init__(generator, seed)
        self.indices = indices

    def _order(self, random: np.random.Generator) -> list[int]:
        return [self.indices[i] for i in random.permutation(len(self.indices)).tolist()]

    def __len__(self) -> int:
        return len(self.indices)


class WeightedRandomSampler(SeededSampler):
    """Indices 0 to len(weights) - 1, each as likely as its weight says.

    Parameters:
        weights: at least 0 each; they need not sum to 1.
        num_samples: how many indices an epoch has.
        replacement: whether an index may come several times.
        generator: a ``numpy.random.Generator`` or ``random.Random`` from which each epoch draws its seed.
        seed: 0 to 2**64 - 1; None: the loader's, or one that is drawn now.

    Raises:
        ValueError, TypeError: naming the argument and what to write instead; ValueError too where, without
            replacement, fewer weights are above 0 than ``num_samples``.

    >>> list(WeightedRandomSampler([0, 1, 0], num_samples=4))
    [1, 1, 1, 1]
    """

    def __init__(
        self,
        weights: Sequence[float],
        num_samples: int,
        replacement: bool = True,
        generator: Any = None,
        *,
        seed: int | None = None,
    ) -> None:
        super().__init__(generator, seed)
        self.weights = _checked_weights(weights)
        self.num_samples = checked_count("num_samples", num_samples, least=1, wrong_type=ValueError)
        self.replacement = checked_flag("replacement", replacement)
        possible = int(np.count_nonzero(self.weights))
        if not replacement and num_samples > possible:
            raise ValueError(
                f"num_samples={num_samples}: only {possible} weights are above 0: ask for at most that "
                "many, or set replacement=True"
            )

    def _order(self, random: np.random.Generator) -> list[int]:
        share = self.weights / self.weights.sum()
        order: list[int] = random.choice(
            len(share), self.num_samples, replace=self.replacement, p=share
        ).tolist()
        return order

    def __len__(self) -> int:
        return self.num_samples


class BatchSampler(EpochSampler):
    """Lists of ``batch_size`` consecutive indices of ``sampler``; the last may be shorter, or is dropped.

    Parameters:
        sampler: gives indices; ``len()`` asks for its length.
        batch_size: how many indices a batch has, at least 1.
        drop_last: leave out a last batch that is not full.

    Raises:
        ValueError: naming the argument and what to write instead.

    >>> list(BatchSampler(range(5), batch_size=2, drop_last=False))
    [[0, 1], [2, 3], [4]]
    >>> list(BatchSampler(range(5), batch_size=2, drop_last=True))
    [[0, 1], [2, 3]]
    """

    def __init__(self, sampler: Iterable[Any], batch_size: int, drop_last: bool) -> None:
        self.sampler = sampler
        self.batch_size = checked_count("batch_size", batch_size, least=1, wrong_type=ValueError)
        self.drop_last = checked_flag("drop_last", drop_last, wrong_type=ValueError)

    def __iter__(self) -> Iterator[list[Any]]:
        return Batches(iter(self.sampler), self.batch_size, self.drop_last)

    def iterate(self, seed: int, epoch: int) -> Iterator[list[Any]]:
        """Return the batches of one epoch: see SeededSampler."""
        return Batches(iterate(self.sampler, seed, epoch), self.batch_size, self.drop_last)

    @property
    def num_items(self) -> int:
        """How many indices its batches have together."""
        samples: int = len(self.sampler)  # type: ignore[arg-type]
        return samples - samples % self.batch_size if self.drop_last else samples

    def __len__(self) -> int:
        whole, rest = divmod(self.num_items, self.batch_size)
        return whole + bool(rest)


class Batches:
    """Batches of the indices that ``indices`` gives."""

    def __init__(self, indices: Iterator[Any], batch_size: int, drop_last: bool) -> None:
        self.indices = indices
        self._intake = Intake(indices)
        self._batch_size = batch_size
        self._least = batch_size if drop_last else 1
        self._batch: list[Any] = []

    def __iter__(self) -> Iterator[list[Any]]:
        return self

    def __next__(self) -> list[Any]:
        self._intake.draw(self._batch, self._batch_size - len(self._batch))
        if len(self._batch) < self._least:
            raise StopIteration
        batch, self._batch = self._batch, []  # no call from here on: see delivery
        return batch

    def skip(self, count: int) -> int:
        """Drop ``count`` batches, or all that there are; return how many."""
        left = count * self._batch_size
        while left:
            chunk: list[Any] = []
            self._intake.draw(chunk, min(left, MAX_CHUNK))
            left -= len(chunk)
            if not chunk:
                break
        whole, rest = divmod(count * self._batch_size - left, self._batch_size)
        return whole + (rest >= self._least)


def iterate(sampler: Iterable[Any], seed: int, epoch: int) -> Iterator[Any]:
    """Return the iterator of ``sampler`` for one epoch of a loader with this seed."""
    if isinstance(sampler, EpochSampler):
        return sampler.iterate(seed, epoch)
    return iter(sampler)


# ---- arguments -----------------------------------------------------------------------------------
# A value of a wrong type is a TypeError, or a ValueError where torch raises that.


def checked_count(name: str, value: Any, least: int, wrong_type: type[Exception] = TypeError) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise wrong_type(f"{name}={value!r}: give a whole number, at least {least}")
    if value < least:
        raise ValueError(f"{name}={value!r}: give at least {least}")
    return int(value)


def checked_flag(name: str, value: Any, wrong_type: type[Exception] = TypeError) -> bool:
    if not isinstance(value, bool | np.bool_ | int):
        raise wrong_type(f"{name}={value!r}: give True or False")
    return bool(value)


def checked_seed(seed: Any) -> int:
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
        raise TypeError(f"seed={seed!r}: give a whole number from 0 to 2**64 - 1, or None")
    if int(seed) not in SEEDS:
        raise ValueError(f"seed={seed!r}: give a whole number from 0 to 2**64 - 1, or None")
    return int(seed)


def checked_generator(generator: Any) -> Any:
    if not any(hasattr(generator, method) for method in ("integers", "getrandbits")):
        raise TypeError(
            f"generator={generator!r}: give a numpy.random.Generator or a random.Random, or seed=..."
        )
    return generator


def drawn_seed(generator: Any) -> int:
    """Return a seed that is drawn from ``generator``."""
    if hasattr(generator, "integers"):
        return int(generator.integers(2**63))
    return int(generator.getrandbits(63))


def _checked_weights(weights: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    array = np.asarray(weights, np.float64)
    if array.ndim != 1 or not len(array):
        raise ValueError(f"weights of shape {array.shape}: give one number for each index")
    if not np.all(np.isfinite(array)) or np.any(array < 0) or not np.any(array > 0):
        raise ValueError("weights: give finite numbers, at least 0, and one above 0")
    return array
