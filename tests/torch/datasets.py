"""Datasets and collate functions for tests with torch, importable by fresh worker processes."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch.utils.data import Dataset


class SeldomDrawing(Dataset[Any]):
    """Draws in few samples; collating draws in few batches too."""

    def __len__(self) -> int:
        return 3000

    def __getitem__(self, index: int) -> Any:
        if index % 1000 == 700:
            return index, torch.rand(1).item()
        if index == 1950:
            with torch.random.fork_rng():
                return index, torch.rand(1).item()
        return index, torch.initial_seed() if index == 2950 else random.random() if index == 2951 else 0


def seldom_drawing_collate(samples: list[Any]) -> list[Any]:
    return [*samples, torch.rand(1).item()] if samples[0][0] % 640 == 512 else samples
