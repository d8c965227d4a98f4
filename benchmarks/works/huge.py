"""Batches of 256 MB, as of volumes or video: only transport, and memory to hold them."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.works import AsArray, Work

_DISTINCT = 13


class Volumes:
    """Float32 volumes of 8 MiB, made once and handed out again and again."""

    def __init__(self, length: int, as_array: AsArray) -> None:
        rng = np.random.default_rng(0)
        self._length = length
        self._volumes = [as_array(rng.random((128, 128, 128), np.float32)) for _ in range(_DISTINCT)]

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        return self._volumes[index % _DISTINCT]


WORKS = (Work("huge", Volumes, batch_size=32, batches=20, floor="copy"),)
