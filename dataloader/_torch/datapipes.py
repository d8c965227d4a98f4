"""Torch's datapipes: graphs of datasets that torch's loader shards out and seeds."""

from __future__ import annotations

from typing import Any

from torch.utils.data import IterDataPipe, MapDataPipe
from torch.utils.data.dataloader import _get_distributed_settings, _share_dist_seed
from torch.utils.data.graph_settings import apply_sharding

from dataloader.worker_info import WorkerInfo, note_asked


def shard(dataset: Any, ranks: tuple[int, int], info: WorkerInfo | None = None) -> None:
    """Let a datapipe give what is this worker's of this rank's share; leave other datasets alone.

    Parameters:
        ranks: how many ranks there are, and which one this is.
        info: which worker this is, None in the loader's own process.
    """
    if not isinstance(dataset, IterDataPipe | MapDataPipe):
        return
    world_size, rank = ranks
    if info is None:
        apply_sharding(dataset, world_size, rank)
        return
    note_asked()
    apply_sharding(dataset, info.num_workers * world_size, info.id * world_size + rank)


def ranks() -> tuple[int, int]:
    """Return how many ranks there are, and which one this is."""
    return _get_distributed_settings()  # type: ignore[no-any-return,no-untyped-call]


def draw_once_more(loader: Any, head: Any) -> None:
    """Draw the seed that torch draws and does not use where workers begin with a stream of pipes."""
    if loader.num_workers and isinstance(loader.dataset, IterDataPipe):
        _share_dist_seed(loader.generator, head._pg)  # type: ignore[no-untyped-call]


def needs_new_workers(dataset: Any) -> bool:
    """Whether workers cannot persist: each epoch of a datapipe has a seed, which is in the pipe itself."""
    return isinstance(dataset, IterDataPipe)
