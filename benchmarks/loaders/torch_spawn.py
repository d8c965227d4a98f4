"""PyTorch's loader with workers that are fresh interpreters, as a threaded or CUDA consumer needs them."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from benchmarks.loaders import only_spawns
from benchmarks.works import Work

as_array = torch.from_numpy


def open_loader(dataset: Dataset[Any], work: Work, num_workers: int) -> DataLoader[Any]:
    """The same but for the start method."""
    only_spawns(work)
    return DataLoader(
        dataset,
        batch_size=work.batch_size,
        collate_fn=work.collate_fn,
        num_workers=num_workers,
        persistent_workers=work.persistent_workers,
        multiprocessing_context="spawn",
    )
