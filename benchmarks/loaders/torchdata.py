"""torchdata's loader, which is PyTorch's with a state that can be saved."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torchdata.stateful_dataloader import StatefulDataLoader

from benchmarks.works import Dataset, Work

as_array = torch.from_numpy


def open_loader(dataset: Dataset, work: Work, num_workers: int) -> Iterable[Any]:
    """Takes what PyTorch's takes."""
    loader: Iterable[Any] = StatefulDataLoader(
        dataset,
        batch_size=work.batch_size,
        collate_fn=work.collate_fn,
        num_workers=num_workers,
        persistent_workers=work.persistent_workers,
        multiprocessing_context=work.start_method or "fork",
    )
    return loader
