"""What is measured: a dataset or a loader, of which loaders are made with any number of workers."""

from __future__ import annotations

import importlib
import sys
import warnings
from dataclasses import dataclass
from typing import Any

from dataloader import DataLoader
from dataloader.bench.probe import Journal, TimedCollate, probed
from dataloader.bench.target import TargetError, is_torch_loader
from dataloader.datasets.kinds import is_iterable
from dataloader.supervised import SupervisedLoader

DEFAULT_BATCH_SIZE = 32
_WITHOUT_WORKERS: dict[str, Any] = {
    "timeout": 0,
    "multiprocessing_context": None,
    "prefetch_factor": None,
    "worker_memory_limit": None,
}


@dataclass(frozen=True)
class Options:
    """What the user asked for. None: as the loader has it.

    Parameters:
        batch_size: samples per batch.
        start_method: "forkserver", "fork" or "spawn".
        seed: decides which samples come, and the random state they are loaded with.
    """

    batch_size: int | None = None
    start_method: str | None = None
    seed: int = 0


class Subject:
    """Makes loaders of a dataset, or like a loader.

    Torch's loader is measured as ``dataloader.torch.DataLoader``. A dataset is shuffled, for its first
    samples may be unlike the others; it is loaded in tensors if torch has been imported.

    Parameters:
        name: for people.
        thing: the dataset or the loader.
        options: what is changed of it.

    Raises:
        TargetError: it is empty, or does not go with the options; or no loader can be made of it.
    """

    def __init__(self, name: str, thing: Any, options: Options) -> None:
        self.name = name
        self.options = options
        if is_torch_loader(thing):
            thing = _supervised(name, thing)
        if isinstance(thing, SupervisedLoader):
            self._kind, self._given = _kind_of(thing), dict(thing._given)
            self._set_batch_size()
        else:
            self._refuse_unknown_length(thing)
            self._kind, self._given = _kind_for(), _arguments_for(thing, options)
        if _length(self._given["dataset"]) == 0:
            raise TargetError(f"{name} has no samples: there is nothing to measure")
        try:
            self._plain = self.loader(0)
        except (TypeError, ValueError) as error:
            raise TargetError(f"{name}: {error}") from error
        self._refuse_without_batches()

    @property
    def batch_size(self) -> int | None:
        """Samples per batch, None where a batch_sampler decides or samples come singly."""
        return self._plain.batch_size

    @property
    def start_method(self) -> str:
        """How workers are started."""
        return self.loader(1).start_method

    @property
    def length(self) -> int | None:
        """How many samples the dataset has, None where that is not known."""
        return _length(self._plain.dataset)

    def loader(self, num_workers: int, journal: Journal | None = None) -> SupervisedLoader:
        """Return a new loader; one that notes samples and batches where a ``journal`` is given."""
        arguments = {**self._given, "num_workers": num_workers, **self._settings(num_workers)}
        if journal is not None:
            in_batches = self._plain.batch_sampler is not None
            arguments["dataset"] = probed(arguments["dataset"], journal)
            arguments["collate_fn"] = TimedCollate(self._plain.collate_fn, journal, in_batches=in_batches)
        _seed_torch(self.options.seed, arguments.get("generator"))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # more workers than cores may be just what is to be tried
            loader: SupervisedLoader = self._kind(**arguments)
        return loader

    def _settings(self, num_workers: int) -> dict[str, Any]:
        """Return what no loader of the user's decides: a run in which workers die has no figures."""
        settings: dict[str, Any] = {
            "persistent_workers": num_workers > 0,
            "restart": None,
            "progress": False,
            "seed": self.options.seed,
        }
        if self._kind is DataLoader:
            settings["generator"] = None  # would draw a seed
        if num_workers == 0:
            return {**settings, **_WITHOUT_WORKERS}
        method = self.options.start_method
        return {**settings, **({"multiprocessing_context": method} if method else {})}

    def _set_batch_size(self) -> None:
        size, given = self.options.batch_size, self._given
        if size is None:
            return
        if given["batch_sampler"] is not None or given["batch_size"] is None:
            what = "gives single samples" if given["batch_sampler"] is None else "has a batch_sampler"
            raise TargetError(f"--batch-size {size}: {self.name} {what}: leave it out, or name its dataset")
        given["batch_size"] = size

    def _refuse_unknown_length(self, dataset: Any) -> None:
        if not is_iterable(dataset) and not hasattr(dataset, "__len__"):
            raise TargetError(
                f"{self.name} has no __len__: define it, or name a loader that has a sampler, or make it an "
                "IterableDataset"
            )

    def _refuse_without_batches(self) -> None:
        if not is_iterable(self._plain.dataset) and _length(self._plain) == 0:
            raise TargetError(
                f"{self.name} gives no batch of its {self.length} samples: lower --batch-size, or see to its "
                "sampler and drop_last"
            )


def _supervised(name: str, loader: Any) -> Any:
    try:
        return importlib.import_module("dataloader.torch").supervise(loader)
    except (TypeError, ValueError) as error:
        raise TargetError(f"{name}: {error}. Or name its dataset") from error


def _kind_of(loader: SupervisedLoader) -> type[Any]:
    """Return the class of ours that ``loader`` inherits from: its own may take other arguments."""
    if isinstance(loader, DataLoader):
        return DataLoader
    kind: type[Any] = importlib.import_module("dataloader.torch").DataLoader
    return kind


def _kind_for() -> type[Any]:
    """Return the class for a dataset: which uses torch, it seems, where that has been imported."""
    if "torch" not in sys.modules:
        return DataLoader
    kind: type[Any] = importlib.import_module("dataloader.torch").DataLoader
    return kind


def _arguments_for(dataset: Any, options: Options) -> dict[str, Any]:
    shuffle = None if is_iterable(dataset) else True
    return {"dataset": dataset, "batch_size": options.batch_size or DEFAULT_BATCH_SIZE, "shuffle": shuffle}


def _seed_torch(seed: int, generator: Any) -> None:
    """Let torch's samplers draw the same order each time."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(seed)
        if isinstance(generator, torch.Generator):
            generator.manual_seed(seed)


def _length(thing: Any) -> int | None:
    try:
        return len(thing)
    except (TypeError, NotImplementedError):
        return None
