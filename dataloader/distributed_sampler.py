"""Sharing a dataset out between data-parallel processes."""

from __future__ import annotations

from collections.abc import Iterator, Sized

import numpy as np

from dataloader.ranks import current_rank
from dataloader.samplers import SeededSampler, checked_count, checked_flag


class DistributedSampler(SeededSampler):
    """This rank's share of the indices of ``dataset``: every ``num_replicas``-th, from ``rank`` on.

    All ranks draw the same order and take their shares of it, so they must agree on all arguments but
    ``rank``. In a loader each epoch has another order without a call of ``set_epoch``.

    Parameters:
        dataset: what has the length, as it is when an epoch begins.
        num_replicas: how many ranks there are. None: as ``torch.distributed`` says where it is in use, else
            as the environment's WORLD_SIZE does.
        rank: which of them this is, from 0. None: likewise, from RANK.
        shuffle: random order; False: ascending.
        seed: 0 to 2**64 - 1, the same on all ranks.
        drop_last: leave out what cannot be shared out equally. By default as many indices as are missing come
            twice: the first of the order again.

    Raises:
        ValueError, TypeError: naming the argument and what to write instead.

    >>> shares = [DistributedSampler("abcde", num_replicas=2, rank=rank, shuffle=False) for rank in range(2)]
    >>> [list(share) for share in shares]
    [[0, 2, 4], [1, 3, 0]]
    """

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        super().__init__(seed=seed)
        here = current_rank() if num_replicas is None or rank is None else None
        self.dataset = dataset
        self.num_replicas = checked_count(
            "num_replicas", here.world_size if num_replicas is None and here else num_replicas, least=1
        )
        self.rank = checked_count("rank", here.rank if rank is None and here else rank, least=0)
        if self.rank >= self.num_replicas:
            raise ValueError(f"rank={self.rank} of num_replicas={self.num_replicas}: give a smaller rank")
        self.shuffle = checked_flag("shuffle", shuffle)
        self.drop_last = checked_flag("drop_last", drop_last)
        self._was_told = False
        self._ahead = 0  # of the loader's epochs

    @property
    def num_samples(self) -> int:
        """How many indices this rank has in an epoch: as many as every other."""
        whole, rest = divmod(len(self.dataset), self.num_replicas)
        return whole + (bool(rest) and not self.drop_last)

    @property
    def total_size(self) -> int:
        """How many indices all ranks have together."""
        return self.num_samples * self.num_replicas

    def set_epoch(self, epoch: int) -> None:
        """Let the next epoch have the order of number ``epoch``; those after it count on from there."""
        self.epoch = epoch
        self._was_told = True

    def epoch_in(self, epoch: int) -> int:
        return self.epoch if self._was_told else epoch + self._ahead

    def iterate(self, seed: int, epoch: int) -> Iterator[int]:
        """Return the indices of a loader's epoch."""
        self.epoch = self.epoch_in(epoch)
        self._ahead, self._was_told = self.epoch - epoch, False
        return iter(self)

    def __iter__(self) -> Iterator[int]:
        """Return the indices of epoch ``self.epoch``, which stays: ranks must not fall out of step."""
        length, wanted = len(self.dataset), self.total_size
        if self.shuffle:
            order = np.random.Generator(np.random.Philox([self.seed or 0, self.epoch])).permutation(length)
        else:
            order = np.arange(length)
        mine = np.arange(self.rank, wanted, self.num_replicas)
        return iter(order[mine % length].tolist() if length else [])

    def __len__(self) -> int:
        return self.num_samples
