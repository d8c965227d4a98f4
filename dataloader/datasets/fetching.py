"""Samples out of any map-style dataset: one, or several at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from dataloader.datasets.base import Dataset, T_co
from dataloader.datasets.kinds import is_iterable
from dataloader.datasets.rows import by_row

# Of torch's datasets those whose ``__getitems__`` only passes the indices on, and where to.
_PASSING_ON = {"Subset": "dataset", "StackDataset": "datasets"}


class DerivedDataset(Dataset[T_co]):
    """A map-style dataset made of others. Its ``__getitems__`` fetches from them, and is only as good."""

    @property
    def sources(self) -> Iterable[Any]:
        """The datasets that it is made of."""
        raise NotImplementedError

    def __getitems__(self, indices: Sequence[Any]) -> list[T_co]:
        raise NotImplementedError


def fetch(dataset: Any, index: Any) -> Any:
    """Return the sample at ``index``."""
    return by_row(dataset)[index]


def fetch_all(dataset: Any, indices: Sequence[Any]) -> list[Any]:
    """Return the samples at ``indices``, by ``dataset.__getitems__`` where it has one."""
    samples = fetch_together(dataset, indices)
    _require_length(dataset, samples, indices)
    return list(samples)


def fetch_together(dataset: Any, indices: Sequence[Any]) -> Any:
    """Return what ``dataset.__getitems__`` makes of ``indices``; where there is none, a list of the samples.

    The former may be no list at all, but columns for example, if the ``collate_fn`` knows what to do.
    """
    dataset = by_row(dataset)
    if not _has_getitems(dataset):
        return [dataset[index] for index in indices]
    if not len(indices):
        return []
    samples = dataset.__getitems__(indices)
    if isinstance(samples, list | tuple):
        _require_length(dataset, samples, indices)
    return samples


def _require_length(dataset: Any, samples: Any, indices: Sequence[Any]) -> None:
    if len(samples) != len(indices):
        raise ValueError(
            f"{type(dataset).__name__}.__getitems__ gave {len(samples)} samples for {len(indices)} indices"
        )


def loads_together(dataset: Any) -> bool:
    """Whether ``dataset``, or one that it is made of, has a ``__getitems__`` of its own.

    A dataset made of others, torch's too, has one only to pass it on: where there is nothing behind it,
    samples are loaded one by one, and each can be told from the others when it fails.

    >>> from dataloader import Subset
    >>> loads_together(Subset(range(10), [1, 2]))
    False
    """
    dataset = by_row(dataset)
    if not _has_getitems(dataset):
        return False
    sources = _sources(dataset)
    return sources is None or any(map(loads_together, sources))


def loads_singly(dataset: Any) -> bool:
    """Whether ``dataset`` has a ``__getitem__`` of its own, beside its ``__getitems__``."""
    if not hasattr(dataset, "__getitem__"):
        return False
    owner = _owner(dataset, "__getitem__")
    is_torchs = owner.__name__ == "Dataset" and owner.__module__.startswith("torch.utils.data")
    return owner is not Dataset and not is_torchs


def _has_getitems(dataset: Any) -> bool:
    """Whether it can be asked for several samples.

    Not where a user's subclass of one of ours has a ``__getitem__`` of its own, which our ``__getitems__``
    would pass by.
    """
    if isinstance(dataset, DerivedDataset):
        one, several = _owner(dataset, "__getitem__"), _owner(dataset, "__getitems__")
        return issubclass(several, one)
    return callable(getattr(dataset, "__getitems__", None))


def _owner(dataset: Any, method: str) -> type:
    """Return the class that defines what ``dataset`` has as ``method``."""
    return next(kind for kind in type(dataset).__mro__ if method in kind.__dict__)


def _sources(dataset: Any) -> Iterable[Any] | None:
    """Return what ``dataset`` passes indices on to, None where it loads samples itself."""
    if isinstance(dataset, DerivedDataset):
        is_ours = _owner(dataset, "__getitems__").__module__.startswith(f"{__package__}.")
        return dataset.sources if is_ours else None
    kind = type(dataset)
    if kind.__name__ not in _PASSING_ON or not kind.__module__.startswith("torch.utils.data"):
        return None
    sources = getattr(dataset, _PASSING_ON[kind.__name__])
    if isinstance(sources, dict):
        return sources.values()
    return sources if isinstance(sources, tuple) else (sources,)


def checked_map_style(name: str, dataset: Any) -> Any:
    """Return ``dataset``.

    Raises TypeError where it is a stream, or has no length.
    """
    if is_iterable(dataset) or not hasattr(dataset, "__len__"):
        raise TypeError(f"{name}={dataset!r} has no __len__: give a map-style dataset")
    return dataset
