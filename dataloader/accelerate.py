"""Hugging Face Accelerate with supervised loaders.

    from dataloader.accelerate import Accelerator      # instead of: from accelerate import Accelerator

``prepare`` puts a shell around a loader of torch's that it makes anew. Here what is in the shell is one of
ours, if a loader of ours was given.
"""

from __future__ import annotations

from typing import Any

import accelerate
import accelerate.data_loader

from dataloader._torch.supervising import base_of, without_first
from dataloader.torch import DataLoader, supervise

__all__ = ["Accelerator", "skip_first_batches"]


class Accelerator(accelerate.Accelerator):  # type: ignore[misc]
    """``accelerate.Accelerator``, which keeps loaders of ``dataloader.torch`` supervised.

    Others are prepared as ever: ``supervise`` them if they are to be, before or after.

    >>> loader = Accelerator(cpu=True).prepare(DataLoader([1, 2, 3], batch_size=2))
    >>> [batch.tolist() for batch in loader]
    [[1, 2], [3]]
    """

    def prepare_data_loader(self, data_loader: Any, *args: Any, **kwargs: Any) -> Any:
        """Prepare a loader. One of ours comes back as one of ours."""
        if not isinstance(base_of(data_loader), DataLoader):
            return super().prepare_data_loader(data_loader, *args, **kwargs)
        base_of(data_loader)._was_told = True
        prepared = super().prepare_data_loader(data_loader, *args, **kwargs)
        return prepared if prepared is data_loader else supervise(prepared, like=data_loader)

    def skip_first_batches(self, dataloader: Any, num_batches: int = 0) -> Any:
        """Return a loader without the first batches of its epoch: see the function of that name."""
        return skip_first_batches(dataloader, num_batches)


def skip_first_batches(dataloader: Any, num_batches: int = 0) -> Any:
    """Return a loader like ``dataloader`` whose epochs lack their first ``num_batches`` batches.

    One of ours comes back as one of ours, and the batches that are left come as they do in a whole epoch,
    random augmentation included, if it has a ``seed``. Of a map-style dataset nothing before them is loaded.

    Parameters:
        dataloader: prepared or not.
        num_batches: at least 0.

    >>> loader = skip_first_batches(DataLoader(range(6), batch_size=2), 2)
    >>> [batch.tolist() for batch in loader]
    [[4, 5]]
    """
    base = base_of(dataloader)
    if not isinstance(base, DataLoader):
        return accelerate.skip_first_batches(dataloader, num_batches)
    if isinstance(base.dataset, accelerate.data_loader.IterableDataset):
        return supervise(accelerate.skip_first_batches(dataloader, num_batches), like=dataloader)
    return without_first(dataloader, num_batches)
