"""From the constructor to the first batch, with workers that need nothing but numpy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from benchmarks.works import Work


class NumpySamples:
    """Small arrays, cheap to make: what is waited for is the workers, not the samples."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> NDArray[np.float32]:
        return np.full((3, 32, 32), index, np.float32)


def _started_by(start_method: str) -> Work:
    return Work(
        f"first-batch/{start_method}",
        lambda length, _: NumpySamples(length),
        batch_size=32,
        batches=10,
        start_method=start_method,
        measures="first batch",
    )


WORKS = tuple(_started_by(start_method) for start_method in ("fork", "forkserver", "spawn"))
