"""A data loader with supervised workers: any worker may die, and the epoch goes on with the same batches.

>>> from dataloader import DataLoader
>>> loader = DataLoader(range(10), batch_size=4)
>>> [batch.tolist() for batch in loader]
[[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
"""

from dataloader.arena import empty
from dataloader.batch_by_cost import BatchByCost, BucketSampler
from dataloader.collate import default_collate, default_convert
from dataloader.datasets import (
    ChainDataset,
    ConcatDataset,
    Dataset,
    IterableDataset,
    MappedDataset,
    SamplerDataset,
    ShuffledDataset,
    StackDataset,
    Subset,
    WindowedDataset,
    random_split,
)
from dataloader.distributed_sampler import DistributedSampler
from dataloader.loader import DataLoader
from dataloader.sample_errors import SampleError
from dataloader.samplers import (
    BatchSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from dataloader.worker_info import WorkerInfo, get_worker_info
from supervisor.policy import RestartPolicy
from supervisor.report import ExitReport, WorkerDiedError
from supervisor.verdict import ExitReason

__all__ = [
    "BatchByCost",
    "BatchSampler",
    "BucketSampler",
    "ChainDataset",
    "ConcatDataset",
    "DataLoader",
    "Dataset",
    "DistributedSampler",
    "ExitReason",
    "ExitReport",
    "IterableDataset",
    "MappedDataset",
    "RandomSampler",
    "RestartPolicy",
    "SampleError",
    "Sampler",
    "SamplerDataset",
    "SequentialSampler",
    "ShuffledDataset",
    "StackDataset",
    "Subset",
    "SubsetRandomSampler",
    "WeightedRandomSampler",
    "WindowedDataset",
    "WorkerDiedError",
    "WorkerInfo",
    "default_collate",
    "default_convert",
    "empty",
    "get_worker_info",
    "random_split",
]
