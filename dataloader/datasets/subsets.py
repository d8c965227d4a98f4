"""Some of a dataset's samples, or all of them in another order: chosen once, when the dataset is made."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataloader.datasets.base import T_co
from dataloader.datasets.fetching import DerivedDataset, fetch, fetch_all
from dataloader.datasets.indices import plain
from dataloader.samplers import RandomSampler


class Subset(DerivedDataset[T_co]):
    """Those samples of ``dataset`` that ``indices`` name, in that order.

    Parameters:
        dataset: anything with ``__getitem__``.
        indices: a sequence of what ``dataset`` takes as an index; one may come several times.

    >>> Subset("abcdef", [5, 0])[0]
    'f'
    """

    def __init__(self, dataset: Any, indices: Sequence[Any] | NDArray[Any]) -> None:
        self.dataset = dataset
        self.indices = indices

    @property
    def sources(self) -> tuple[Any]:
        return (self.dataset,)

    def __getitem__(self, index: Any) -> T_co:
        sample: T_co = fetch(self.dataset, plain(self.indices[index]))
        return sample

    def __getitems__(self, indices: Sequence[Any]) -> list[T_co]:
        """Return several samples, by the dataset's ``__getitems__`` where it has one."""
        return fetch_all(self.dataset, [plain(self.indices[index]) for index in indices])

    def __len__(self) -> int:
        return len(self.indices)


class SamplerDataset(Subset[T_co]):
    """``num_samples`` samples of ``dataset``, drawn by chance: the same in every epoch.

    For others in each epoch give the loader a ``RandomSampler``.

    Parameters:
        dataset: a map-style dataset.
        num_samples: how many samples; by default as many as ``dataset`` has. Without replacement and beyond
            that, whole random orders follow one another.
        replacement: draw each sample anew, so that one may come several times.
        generator: a ``numpy.random.Generator`` or ``random.Random`` from which the seed is drawn.
        seed: 0 to 2**64 - 1; None draws one.

    Raises:
        ValueError, TypeError: naming the argument and what to write instead.

    >>> drawn = SamplerDataset("abc", num_samples=7, seed=0)
    >>> len(drawn), set(drawn) <= set("abc")
    (7, True)
    """

    def __init__(
        self,
        dataset: Any,
        num_samples: int | None = None,
        replacement: bool = True,
        generator: Any = None,
        *,
        seed: int | None = None,
    ) -> None:
        sampler = RandomSampler(dataset, replacement, num_samples, generator, seed=seed)
        super().__init__(dataset, _drawn(sampler))


class ShuffledDataset(Subset[T_co]):
    """The samples of ``dataset`` in a random order: the same in every epoch.

    For another order in each epoch give the loader ``shuffle=True``.

    Parameters:
        dataset: a map-style dataset.
        generator: a ``numpy.random.Generator`` or ``random.Random`` from which the seed is drawn.
        seed: 0 to 2**64 - 1; None draws one.

    Raises:
        ValueError, TypeError: naming the argument and what to write instead.

    >>> "".join(ShuffledDataset("abcdef", seed=1)), "".join(ShuffledDataset("abcdef", seed=1))
    ('afebdc', 'afebdc')
    """

    def __init__(self, dataset: Any, generator: Any = None, *, seed: int | None = None) -> None:
        super().__init__(dataset, _drawn(RandomSampler(dataset, generator=generator, seed=seed)))


def random_split(
    dataset: Any, lengths: Sequence[float], generator: Any = None, *, seed: int | None = None
) -> list[Subset[Any]]:
    """Return parts of ``dataset`` that have no sample in common and all of them together, drawn by chance.

    Parameters:
        dataset: a map-style dataset.
        lengths: of the parts: whole numbers whose sum is the dataset's length, or fractions whose sum is 1.
            What fractions leave over goes to the first parts, one sample each.
        generator: a ``numpy.random.Generator`` or ``random.Random`` from which the seed is drawn.
        seed: 0 to 2**64 - 1; None draws one.

    Raises:
        ValueError, TypeError: naming the argument and what to write instead.

    Warns:
        UserWarning: a part is empty.

    >>> train, test = random_split(range(10), [0.75, 0.25], seed=0)
    >>> len(train), len(test), sorted([*train, *test]) == list(range(10))
    (8, 2, True)
    """
    counts = _counts(lengths, len(dataset))
    order = _drawn(RandomSampler(dataset, generator=generator, seed=seed))
    for part, count in enumerate(counts):
        if count == 0:
            warnings.warn(f"lengths[{part}]={lengths[part]!r}: this part has no samples", stacklevel=2)
    return [Subset(dataset, indices) for indices in np.split(order, np.cumsum(counts)[:-1])]


def _drawn(sampler: RandomSampler) -> NDArray[np.int64]:
    """Return the indices as an array, which is smaller than a list and quicker to pickle."""
    return np.array(list(sampler), np.int64)


def _counts(lengths: Sequence[float], samples: int) -> list[int]:
    """Return how many samples each part has."""
    if not len(lengths):
        raise ValueError("lengths=[]: give at least one length")
    for part, length in enumerate(lengths):
        if not isinstance(length, Real) or isinstance(length, bool):
            raise TypeError(f"lengths[{part}]={length!r}: give a whole number or a fraction")
        if not length >= 0:
            raise ValueError(f"lengths[{part}]={length!r}: give a number of at least 0")
    if math.isclose(sum(lengths), 1):
        return _shares(lengths, samples)
    if not all(isinstance(length, Integral) for length in lengths) or sum(lengths) != samples:
        raise ValueError(
            f"lengths={lengths!r}, whose sum is {sum(lengths)}: give whole numbers that add up to the "
            f"dataset's length, {samples}, or fractions that add up to 1"
        )
    return [int(length) for length in lengths]


def _shares(fractions: Sequence[float], samples: int) -> list[int]:
    counts = [math.floor(samples * fraction) for fraction in fractions]
    left = samples - sum(counts)
    return [count + (part < left) for part, count in enumerate(counts)]
