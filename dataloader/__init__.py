"""A data loader with supervised workers: any worker may die, and the epoch goes on with the same batches.

>>> from dataloader import DataLoader
>>> loader = DataLoader(range(10), batch_size=4)
>>> [batch.tolist() for batch in loader]
[[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
"""

from dataloader.arena import empty
from dataloader.collate import default_collate
from dataloader.datasets import Dataset, IterableDataset
from dataloader.loader import DataLoader
from supervisor.policy import RestartPolicy
from supervisor.report import ExitReason, ExitReport, WorkerDiedError

__all__ = [
    "DataLoader",
    "Dataset",
    "ExitReason",
    "ExitReport",
    "IterableDataset",
    "RestartPolicy",
    "WorkerDiedError",
    "default_collate",
    "empty",
]
