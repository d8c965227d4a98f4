"""The first batch of a dataset that holds 1 GiB, which has to reach each worker."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.works import AsArray
from benchmarks.works.first_batch import first_batches


class Table:
    """Samples of 32 KiB: as many as there are, all in one array."""

    def __init__(self, length: int, as_array: AsArray) -> None:
        self._rows = as_array(np.random.default_rng(0).random((length, 8192), np.float32))

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Any:
        return self._rows[index]


WORKS = first_batches("first-batch-1gb", Table, batches=1024)
