"""Audio for a speech model: resample to 16 kHz and take the spectrogram, with SciPy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import signal

from benchmarks.works import Work

_RECORDED_HZ = 44_100
_WANTED_HZ = 16_000
_DISTINCT = 61


class Clips:
    """Two seconds of 16-bit noise at 44.1 kHz, as a spectrogram on a log scale."""

    def __init__(self, length: int) -> None:
        rng = np.random.default_rng(0)
        self._length = length
        self._clips = rng.integers(-(2**15), 2**15, size=(_DISTINCT, 2 * _RECORDED_HZ), dtype=np.int16)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> NDArray[np.float32]:
        recorded = self._clips[index % _DISTINCT].astype(np.float32) / 2**15
        wanted = signal.resample_poly(recorded, _WANTED_HZ, _RECORDED_HZ)
        _, _, power = signal.spectrogram(wanted, _WANTED_HZ, nperseg=400, noverlap=240)
        logarithm: NDArray[np.float32] = np.log(power + 1e-10).astype(np.float32)
        return logarithm


WORKS = (Work("audio", lambda length, _: Clips(length), batch_size=16, batches=80),)
