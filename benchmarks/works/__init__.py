"""What the loaders are given to do: one module per work, each with its ``WORKS``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from numpy.typing import NDArray

AsArray = Callable[[NDArray[Any]], Any]
Collate = Callable[[list[Any]], Any]


class Dataset(Protocol):
    """A map-style dataset, as every loader here takes it."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


@dataclass(frozen=True)
class Work:
    """A dataset and how it is batched; ``None`` leaves a choice to the loader."""

    name: str
    #: From a number of samples, and how the loader likes an array that is ready before it is asked for.
    dataset: Callable[[int, AsArray], Dataset]
    batch_size: int
    batches: int
    collate_fn: Collate | None = None
    start_method: str | None = None
    measures: Literal["epoch", "first batch"] = "epoch"

    @property
    def samples(self) -> int:
        """Samples in one epoch."""
        return self.batch_size * self.batches
