"""This project's loader for torch, on tensors wherever it can have them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from benchmarks.works import Dataset, Work
from dataloader import RestartPolicy
from dataloader.torch import DataLoader

as_array = torch.from_numpy


def open_loader(dataset: Dataset, work: Work, num_workers: int) -> Iterable[Any]:
    """Its default start method is forkserver."""
    return DataLoader(
        dataset,
        batch_size=work.batch_size,
        collate_fn=work.collate_fn,
        num_workers=num_workers,
        persistent_workers=work.persistent_workers,
        multiprocessing_context=work.start_method,
        restart=RestartPolicy(max_restarts=1_000),  # it would give up after ten deaths in a minute
    )
