"""Samples of many small parts, as a table's rows are: ten arrays to collate and to send for each batch."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.works import AsArray, Work

_ARRAYS = 10
_DISTINCT = 61


class Rows:
    """Dicts of ten float32 arrays of 256, made once and handed out again and again."""

    def __init__(self, length: int, as_array: AsArray) -> None:
        rng = np.random.default_rng(0)
        self._length = length
        self._rows = [
            {f"column {number}": as_array(rng.random(256, np.float32)) for number in range(_ARRAYS)}
            for _ in range(_DISTINCT)
        ]

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self._rows[index % _DISTINCT]


WORKS = (Work("dict", Rows, batch_size=64, batches=400, floor="copy"),)
