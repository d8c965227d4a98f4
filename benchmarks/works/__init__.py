"""What the loaders are given to do: one module per work, each with its ``WORKS``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from numpy.typing import NDArray

AsArray = Callable[[NDArray[Any]], Any]
Collate = Callable[[list[Any]], Any]

_QUICK = 20


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
    #: In one epoch.
    batches: int
    #: That are timed.
    epochs: int = 2
    collate_fn: Collate | None = None
    start_method: str | None = None
    persistent_workers: bool = True
    #: A cold first batch is waited for from the constructor on, a warm one from iter() on.
    measures: Literal["epochs", "cold first batch", "warm first batch"] = "epochs"
    #: What no loader can do without: the copy of a batch that lies ready, or the making of its samples,
    #: and of batches from them where there is a collate_fn.
    floor: Literal["copy", "samples"] = "samples"
    #: How often one of the workers gets SIGKILL.
    kill_every_s: float | None = None

    @property
    def samples(self) -> int:
        """Samples in one epoch."""
        return self.batch_size * self.batches

    def shortened(self) -> Work:
        """The same with so few batches that it only shows whether it runs."""
        return replace(self, batches=max(2, self.batches // _QUICK), epochs=min(2, self.epochs))
