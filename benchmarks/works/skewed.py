"""Samples of unequal cost, as a data set with a few long recordings has them."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from benchmarks.works import Work

_SLOW_SHARE = 1 / 50
_SLOWNESS = 40
_BLOCK = bytes(200_000)


class Unequal:
    """One sample in 50 takes 40 times as long as the others, which hash 200 KB."""

    def __init__(self, length: int) -> None:
        self._slow = np.random.default_rng(0).random(length) < _SLOW_SHARE

    def __len__(self) -> int:
        return len(self._slow)

    def __getitem__(self, index: int) -> NDArray[np.uint8]:
        state = hashlib.blake2b(str(index).encode())
        for _ in range(_SLOWNESS if self._slow[index] else 1):
            state.update(_BLOCK)
        return np.frombuffer(state.digest(), np.uint8)


WORKS = (Work("skewed", lambda length, _: Unequal(length), batch_size=16, batches=200),)
