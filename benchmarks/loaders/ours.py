"""This project's loader."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from benchmarks.works import Dataset, Work
from dataloader import DataLoader, RestartPolicy

as_array = np.asarray


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
