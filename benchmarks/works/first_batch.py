"""From the constructor to the first batch, with workers that need nothing but numpy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from benchmarks.works import AsArray, Dataset, Work


class NumpySamples:
    """Small arrays, cheap to make: what is waited for is the workers, not the samples."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> NDArray[np.float32]:
        return np.full((3, 32, 32), index, np.float32)


def first_batches(group: str, dataset: Callable[[int, AsArray], Dataset], batches: int) -> tuple[Work, ...]:
    """One work for each start method."""
    return tuple(
        Work(
            f"{group}/{start_method}",
            dataset,
            batch_size=32,
            batches=batches,
            start_method=start_method,
            measures="cold first batch",
        )
        for start_method in ("fork", "forkserver", "spawn")
    )


WORKS = first_batches("first-batch", lambda length, _: NumpySamples(length), batches=10)
