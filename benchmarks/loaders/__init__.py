"""The loaders that are compared: one adapter each, which is also an example of how that loader is used.

An adapter is a module with two functions. ``as_array`` turns a sample that lies ready in memory into what the
loader collates fastest; it is called before the clock runs. ``open_loader`` gives something to iterate once
for each epoch; it raises CannotError for a work that the loader has no way to do.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from numpy.typing import NDArray

from benchmarks.works import Dataset, Work


class CannotError(Exception):
    """A loader has no way to do a work; the text says why."""


def only_spawns(work: Work) -> None:
    """For loaders whose workers are fresh interpreters, whatever a user may want.

    Raises CannotError where the work asks for another start method.
    """
    if work.start_method not in (None, "spawn"):
        raise CannotError("its workers are always fresh interpreters")


class Adapter(Protocol):
    """What a module in this package offers."""

    def as_array(self, array: NDArray[Any], /) -> Any:
        """The same values, held as this loader likes them best."""

    def open_loader(self, dataset: Dataset, work: Work, num_workers: int) -> Iterable[Any]:
        """A loader whose workers stay from epoch to epoch, or not, as the work has it."""
