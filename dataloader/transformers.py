"""The Hugging Face Trainer with supervised loaders.

    from dataloader.transformers import Trainer      # instead of: from transformers import Trainer

The Trainer makes its loaders itself, of torch's class, has Accelerate prepare them, and when it resumes in
the middle of an epoch makes another that skips what was trained on. Here all of them are ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import transformers
import transformers.trainer

from dataloader._torch.supervising import base_of
from dataloader.accelerate import skip_first_batches
from dataloader.torch import DataLoader, supervise

__all__ = ["SupervisedLoaders", "Trainer"]


class SupervisedLoaders:
    """Lets a Trainer's loaders be supervised: to be inherited from before a class of Trainer.

    A resumed run goes on with the batches that an uninterrupted one would have had, random augmentation
    included: the random state of samples follows from the Trainer's ``seed``, the epoch and the batch.

    Attributes:
        loader_settings: given to ``dataloader.torch.supervise``, for each loader.

    >>> class Summariser(SupervisedLoaders, transformers.Seq2SeqTrainer):
    ...     loader_settings = {"on_error": "skip", "worker_memory_limit": "4GiB"}
    """

    loader_settings: ClassVar[Mapping[str, Any]] = {}
    args: Any

    def get_train_dataloader(self) -> Any:
        """Return the loader of the training set."""
        return self._supervised(super().get_train_dataloader())  # type: ignore[misc]

    def get_eval_dataloader(self, *args: Any, **kwargs: Any) -> Any:
        """Return the loader of an evaluation set."""
        return self._supervised(super().get_eval_dataloader(*args, **kwargs))  # type: ignore[misc]

    def get_test_dataloader(self, *args: Any, **kwargs: Any) -> Any:
        """Return the loader of a test set."""
        return self._supervised(super().get_test_dataloader(*args, **kwargs))  # type: ignore[misc]

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train, as the Trainer does."""
        with _skipping_supervised():
            return super().train(*args, **kwargs)  # type: ignore[misc]

    def _supervised(self, loader: Any) -> Any:
        if isinstance(base_of(loader), DataLoader):
            return loader
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        return supervise(loader, **{"seed": seed, **self.loader_settings})


@contextmanager
def _skipping_supervised() -> Iterator[None]:
    """Let the Trainer skip batches by our function: it offers no other way."""
    theirs = transformers.trainer.skip_first_batches
    transformers.trainer.skip_first_batches = skip_first_batches
    try:
        yield
    finally:
        transformers.trainer.skip_first_batches = theirs


class Trainer(SupervisedLoaders, transformers.Trainer):  # type: ignore[misc]
    """``transformers.Trainer`` with supervised loaders: see ``SupervisedLoaders``."""
