"""Samples come in torch's order, and generators are drawn from as often as torch does."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.utils.data as data
from torch.utils.data.distributed import DistributedSampler

from dataloader.pace import CHEAP_AHEAD
from dataloader.torch import DataLoader
from tests.torch.datasets import Bulk, BulkSampler, Counting

DATASET = Counting(50)
WEIGHTS = [0.1, 0.9, 0.4, 0.7, 3.0, 0.6] * 8


def seeded(seed: int = 5) -> Any:
    return torch.Generator().manual_seed(seed)


ARGUMENTS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "sequential": lambda g: {},
    "shuffled": lambda g: {"shuffle": True},
    "shuffled by a generator": lambda g: {"shuffle": True, "generator": g},
    "singly": lambda g: {"shuffle": True, "generator": g, "batch_size": None},
    "drop_last": lambda g: {"shuffle": True, "batch_size": 8, "drop_last": True},
    "with replacement": lambda g: {
        "sampler": data.RandomSampler(DATASET, replacement=True, num_samples=70, generator=g)
    },
    "weighted": lambda g: {"sampler": data.WeightedRandomSampler(WEIGHTS, 40), "generator": g},
    "subset": lambda g: {"sampler": data.SubsetRandomSampler(range(30, 50), generator=g), "generator": g},
    "batches": lambda g: {"batch_sampler": data.BatchSampler(data.RandomSampler(DATASET), 7, False)},
    "lists": lambda g: {"batch_sampler": [(0, 1), [2], (3, 4, 5)]},
    "tensors": lambda g: {"batch_sampler": torch.randperm(50, generator=g).split(9)},
    "distributed": lambda g: {"sampler": DistributedSampler(DATASET, 3, 1, shuffle=True, seed=3)},
}


def run(kind: Any, name: str, **more: Any) -> list[Any]:
    """Return two epochs' batches, and what the generators would give after each."""
    torch.manual_seed(3)
    generator = seeded()
    arguments = {"batch_size": 6, **ARGUMENTS[name](generator), **more}
    if "batch_sampler" in arguments:
        del arguments["batch_size"]
    loader = kind(DATASET, **arguments)
    seen: list[Any] = []
    for epoch in range(2):
        if name == "distributed":
            loader.sampler.set_epoch(epoch)
        seen += [batch.tolist() if isinstance(batch, torch.Tensor) else batch for batch in loader]
        seen += [torch.get_rng_state().tolist(), generator.get_state().tolist()]
    return seen


@pytest.mark.parametrize("name", ARGUMENTS)
def test_in_process_order_and_draws_are_torchs(name: str) -> None:
    assert run(DataLoader, name) == run(data.DataLoader, name)


@pytest.mark.parametrize("name", ["shuffled by a generator", "with replacement", "batches"])
@pytest.mark.parametrize("persistent", [False, True])
def test_with_workers_order_and_draws_are_torchs(name: str, persistent: bool) -> None:
    workers: dict[str, Any] = {
        "num_workers": 1,
        "multiprocessing_context": "fork",
        "persistent_workers": persistent,
    }
    assert run(DataLoader, name, **workers) == run(data.DataLoader, name, **workers)


def test_an_explicit_seed_of_ours_changes_no_draw() -> None:
    assert run(DataLoader, "shuffled", seed=7) == run(data.DataLoader, "shuffled")


def test_making_and_asking_a_loader_draws_nothing() -> None:
    generator = seeded()
    before = torch.get_rng_state(), generator.get_state()
    loader = DataLoader(DATASET, shuffle=True, generator=generator, num_workers=2)
    assert (len(loader), loader.num_items, loader.seed) == (50, 50, None)
    loader.state_dict()
    repr(loader)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert torch.equal(generator.get_state(), before[1])
    assert loader.workers() == []


def test_the_seed_is_what_torch_draws() -> None:
    expected = int(torch.empty((), dtype=torch.int64).random_(generator=seeded()).item())
    loader = DataLoader(DATASET, generator=seeded())
    iterator: Any = iter(loader)
    assert (loader.seed, iterator._base_seed) == (expected, expected)
    iter(loader)
    assert loader.seed != expected
    assert DataLoader(DATASET, seed=4).seed == 4


@pytest.mark.parametrize(("prefetch_factor", "ahead"), [(1, 1), (3, 3), (None, CHEAP_AHEAD)])
def test_samplers_are_iterated_once_lazily_and_may_be_endless(
    prefetch_factor: int | None, ahead: int
) -> None:
    class Endless:
        iterated = drawn = 0

        def __iter__(self) -> Any:
            self.iterated += 1
            while True:
                self.drawn += 1
                yield [self.drawn % 50, 0]

    sampler = Endless()
    workers: dict[str, Any] = {"num_workers": 1, "multiprocessing_context": "fork"}
    loader = DataLoader(DATASET, batch_sampler=sampler, prefetch_factor=prefetch_factor, **workers)  # type: ignore[arg-type]
    with loader:
        batches = [batch.tolist() for batch in islice(loader, 60)]
    assert batches == [[i % 50, 0] for i in range(1, 61)]
    assert sampler.iterated == 1
    assert sampler.drawn <= 60 + ahead + 1


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_sampler_may_give_lists_that_are_loaded_at_once(num_workers: int) -> None:
    context = "fork" if num_workers else None
    sampler = BulkSampler()
    loader = DataLoader(
        Bulk(6), None, sampler=sampler, num_workers=num_workers, multiprocessing_context=context
    )
    assert not loader._auto_collation
    assert [batch.tolist() for batch in loader] == [[3, 1], [2], [0, 4, 5]]


def test_ranks_share_the_samples_out() -> None:
    seen: list[int] = []
    for rank in range(4):
        sampler: Any = DistributedSampler(range(9), 4, rank)  # type: ignore[arg-type]
        loader = DataLoader(range(9), 2, sampler=sampler, drop_last=True)
        seen += torch.cat(list(loader)).tolist()
    assert len(seen) == len(set(seen)) == 8


def test_set_epoch_reaches_a_distributed_sampler() -> None:
    sampler: Any = DistributedSampler(DATASET, 2, 0)
    loader = DataLoader(DATASET, 5, sampler=sampler)
    loader.set_epoch(4)
    assert sampler.epoch == 4


def test_torchs_datasets_are_taken() -> None:
    numbers = data.TensorDataset(torch.arange(20), torch.arange(20) * 2)
    some, others = data.random_split(numbers, [15, 5], generator=seeded())
    parts: list[Any] = [
        numbers,
        data.Subset(numbers, [3, 1, 2]),
        data.ConcatDataset([some, others]),
        data.StackDataset(numbers, Counting(20)),
        data.StackDataset(a=Counting(4), b=Counting(4)),
    ]
    for dataset in parts:
        for given, expected in zip(DataLoader(dataset, 3), data.DataLoader(dataset, 3), strict=True):
            assert str(given) == str(expected)


def test_a_growing_dataset_has_its_length_of_now() -> None:
    dataset = [torch.ones(4) for _ in range(4)]
    loaders = DataLoader(dataset), DataLoader(dataset, shuffle=True)
    dataset.append(torch.ones(4))
    assert [len(loader) for loader in loaders] == [5, 5]


def test_parts_of_a_loader_share_out_its_samples() -> None:
    loader = DataLoader(DATASET, 4, shuffle=True, generator=seeded())
    first, second = loader.split(2)
    assert sorted(torch.cat(list(first)).tolist()) == list(range(25))
    assert sorted(torch.cat(list(second)).tolist()) == list(range(25, 50))
    assert isinstance(first, DataLoader)
