"""Samples that lie ready in memory, so that only collation and the way to the consumer cost anything."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.works import AsArray, Work

# Prime to the batch size, so that batches differ from one another and a swapped pair shows in the digest.
_DISTINCT = 61


class ReadyImages:
    """Float32 images of 3 x 224 x 224, made once and handed out again and again."""

    def __init__(self, length: int, as_array: AsArray) -> None:
        rng = np.random.default_rng(0)
        self._length = length
        self._images = [as_array(rng.random((3, 224, 224), np.float32)) for _ in range(_DISTINCT)]

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        return self._images[index % _DISTINCT]


WORKS = (Work("images", ReadyImages, batch_size=32, batches=200, floor="copy"),)
