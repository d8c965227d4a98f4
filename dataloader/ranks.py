"""Which of several data-parallel processes this one is."""

from __future__ import annotations

import os
import sys
from typing import NamedTuple


class Rank(NamedTuple):
    """One of ``world_size`` processes that train together, counted from 0."""

    rank: int = 0
    world_size: int = 1


def current_rank() -> Rank:
    """Return what this process is: what torch.distributed says where it is in use, else the environment.

    The environment's RANK and WORLD_SIZE are what ``torchrun`` and others set. Without them: 0 of 1. A worker
    inherits the environment, but is no rank: ask in the process that has the loader.

    Raises:
        ValueError: RANK and WORLD_SIZE are no whole numbers with 0 <= RANK < WORLD_SIZE.

    >>> current_rank()
    Rank(rank=0, world_size=1)
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return Rank(distributed.get_rank(), distributed.get_world_size())
    return _of_environment(os.environ.get("RANK"), os.environ.get("WORLD_SIZE"))


def rank_here() -> int:
    """Return the number of this rank for what need not be shared out: 0 where the environment makes no sense.

    RANK can be somebody else's variable.

    >>> rank_here()
    0
    """
    try:
        return current_rank().rank
    except ValueError:
        return 0


def _of_environment(rank: str | None, world_size: str | None) -> Rank:
    if not rank:
        return Rank()
    try:
        found = Rank(int(rank), int(rank) + 1 if not world_size else int(world_size))
    except ValueError:
        found = Rank(-1, 0)
    if not 0 <= found.rank < found.world_size:
        raise ValueError(
            f"RANK={rank!r} and WORLD_SIZE={world_size!r} in the environment: give whole numbers, "
            "0 <= RANK < WORLD_SIZE, or unset both"
        )
    return found
