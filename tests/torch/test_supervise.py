"""supervise: a loader of torch's becomes one of ours in place, and loads what it would have loaded."""

from __future__ import annotations

import os
import signal
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from dataloader import RestartPolicy
from dataloader.torch import DataLoader, supervise
from tests.datasets import first_time

TorchLoader = torch.utils.data.DataLoader


class Numbers:
    """Sample 3 ends its first worker."""

    def __init__(self, once: Path | None = None) -> None:
        self.once = once

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> int:
        if index == 3 and self.once is not None and first_time(self.once):
            os.kill(os.getpid(), signal.SIGKILL)
        return index


def batches(loader: Any) -> list[list[int]]:
    torch.manual_seed(2)
    return [torch.as_tensor(batch).tolist() for batch in loader]


ARGUMENTS: dict[str, dict[str, Any]] = {
    "shuffled": {"batch_size": 4, "shuffle": True},
    "a sampler": {"batch_size": 4, "sampler": [5, 4, 3, 2, 1], "drop_last": True},
    "a batch sampler": {"batch_sampler": [[1, 2], [3], [4, 5, 6]]},
    "single samples": {"batch_size": None},
    "a generator": {"batch_size": 4, "shuffle": True, "generator": torch.Generator().manual_seed(3)},
    "the last dropped": {"batch_size": 4, "drop_last": True},
}


@pytest.mark.parametrize("arguments", ARGUMENTS.values(), ids=ARGUMENTS)
def test_the_same_batches_come_as_before(arguments: dict[str, Any]) -> None:
    plain, loader = TorchLoader(Numbers(), **arguments), TorchLoader(Numbers(), **arguments)
    before = {name: value for name, value in vars(loader).items() if name != "_iterator"}
    held = {"loader": loader}
    assert supervise(loader) is loader
    assert type(held["loader"]) is DataLoader
    assert before.items() <= vars(loader).items()
    assert len(loader) == len(plain)
    if "generator" in arguments:
        arguments["generator"].manual_seed(3)
    expected = batches(plain)
    if "generator" in arguments:
        arguments["generator"].manual_seed(3)
    assert batches(loader) == expected


class Stream(torch.utils.data.IterableDataset):  # type: ignore[misc, name-defined]
    def __iter__(self) -> Any:
        return iter(range(7))


def test_a_stream_is_loaded_as_before() -> None:
    loader = TorchLoader(Stream(), batch_size=2, drop_last=True)
    assert batches(supervise(loader)) == [[0, 1], [2, 3], [4, 5]]


def test_its_workers_may_die(tmp_path: Path) -> None:
    loader = TorchLoader(Numbers(tmp_path / "once"), batch_size=2, shuffle=True, num_workers=1, timeout=60)
    with supervise(loader, multiprocessing_context="fork", restart=RestartPolicy(backoff=0.0)) as supervised:
        assert sorted(chain(*batches(loader))) == list(range(10))
        assert [report.is_death for report in supervised.reports].count(True) == 1
    assert loader.timeout == 60


def test_again_it_takes_new_settings_and_keeps_the_others() -> None:
    loader = supervise(TorchLoader(Numbers(), num_workers=1), seed=3, on_error="skip")
    assert supervise(supervise(loader), seed=4, multiprocessing_context="fork") is loader
    assert (loader.seed, loader.on_error, loader.start_method) == (4, "skip", "fork")
    other = supervise(TorchLoader(Numbers()), like=loader, seed=7)
    assert (other.seed, other.on_error) == (7, "skip")
    assert len(list(loader)) == 10


def test_live_workers_of_torchs_are_let_go() -> None:
    loader = TorchLoader(Numbers(), num_workers=1, persistent_workers=True, multiprocessing_context="fork")
    list(loader)
    (worker,) = loader._iterator._workers
    supervise(loader)
    worker.join(10)
    assert worker.exitcode is not None
    with loader:
        assert len(list(loader)) == 10


def test_a_subclass_stays_one() -> None:
    class Mine(TorchLoader):  # type: ignore[misc, valid-type]
        def hello(self) -> str:
            return f"hello {len(self)}"

    loader = supervise(Mine(Numbers(), batch_size=5))
    assert isinstance(loader, Mine)
    assert isinstance(loader, DataLoader)
    assert (loader.hello(), loader.on_error) == ("hello 2", "raise")


def test_what_cannot_be_supervised_is_told() -> None:
    class Cycling(TorchLoader):  # type: ignore[misc, valid-type]
        def __iter__(self) -> Any:
            yield from super().__iter__()

    loader = TorchLoader(Numbers())
    for wrong, arguments, message in [
        ([1], {}, r"loader=\[1\] is no torch.utils.data.DataLoader"),
        (Cycling(Numbers()), {}, "iterates in a way of its own"),
        (loader, {"batch_size": 3}, "batch_size=3: only these can be changed: seed"),
        (loader, {"like": TorchLoader(Numbers())}, "like=.*: give a loader of dataloader.torch"),
        (loader, {"restart": 3}, "restart=3: give a RestartPolicy"),
    ]:
        with pytest.raises(TypeError, match=message):
            supervise(wrong, **arguments)
    assert type(loader) is TorchLoader
