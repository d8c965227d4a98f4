"""Datasets: what a loader loads from, and small ones that are made of others.

    base       Dataset, IterableDataset (kinds: which of them something is)
    fetching   one sample, several at once, and whether several come by one call
    rows       frames and tables, row by row
    mapped, windows, subsets, concat, stack, chain

What is made of others loads a sample when it is asked for one, and keeps none. Where a dataset below has
``__getitems__`` (all samples of a batch by one call), it is handed all indices; where none has, samples are
loaded one by one, and one that fails can be told from the others.
"""

from dataloader.datasets.base import Dataset, IterableDataset
from dataloader.datasets.chain import ChainDataset
from dataloader.datasets.concat import ConcatDataset
from dataloader.datasets.fetching import fetch, fetch_all, fetch_together, loads_singly, loads_together
from dataloader.datasets.mapped import MappedDataset
from dataloader.datasets.rows import by_row
from dataloader.datasets.stack import StackDataset
from dataloader.datasets.subsets import SamplerDataset, ShuffledDataset, Subset, random_split
from dataloader.datasets.windows import WindowedDataset

__all__ = [
    "ChainDataset",
    "ConcatDataset",
    "Dataset",
    "IterableDataset",
    "MappedDataset",
    "SamplerDataset",
    "ShuffledDataset",
    "StackDataset",
    "Subset",
    "WindowedDataset",
    "by_row",
    "fetch",
    "fetch_all",
    "fetch_together",
    "loads_singly",
    "loads_together",
    "random_split",
]
