"""No loader at all: the loop that one would write without one, in one process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from benchmarks.batches import Batches
from benchmarks.works import Dataset, Work

as_array = np.asarray


class InProcess:
    """Loads each batch when it is asked for."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        return (self._batches[number] for number in range(len(self._batches)))


def open_loader(dataset: Dataset, work: Work, num_workers: int) -> Iterable[Any]:
    """The number of workers makes no difference here."""
    return InProcess(Batches(dataset, work))
