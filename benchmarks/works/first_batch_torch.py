"""The first batch of a dataset that needs torch, which workers that are fresh interpreters have to import."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.works.first_batch import first_batches


class TorchSamples:
    """Small arrays that torch has made."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> NDArray[np.float32]:
        samples: NDArray[np.float32] = torch.full((3, 32, 32), index, dtype=torch.float32).numpy()
        return samples


WORKS = first_batches("first-batch-torch", lambda length, _: TorchSamples(length), batches=10)
