"""PyTorch's loader, on tensors wherever it can have them."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from benchmarks.works import Work

as_array = torch.from_numpy


def open_loader(dataset: Dataset[Any], work: Work, num_workers: int) -> DataLoader[Any]:
    """Fork is its fastest start method, and until Python 3.14 its default on Linux."""
    return DataLoader(
        dataset,
        batch_size=work.batch_size,
        collate_fn=work.collate_fn,
        num_workers=num_workers,
        persistent_workers=work.persistent_workers,
        multiprocessing_context=work.start_method or "fork",
    )
