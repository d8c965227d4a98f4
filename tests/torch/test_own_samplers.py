"""Samplers of the core in the torch loader: they follow its seed, and are taken up where they were."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from dataloader import (
    BatchByCost,
    BucketSampler,
    DistributedSampler,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from dataloader.torch import DataLoader

DATA = torch.arange(40)


def by_cost() -> BatchByCost:
    buckets = BucketSampler(RandomSampler(DATA), cost=lambda index: index, bucket_size=10)
    return BatchByCost(buckets, cost=lambda index: 1 + index % 3, budget=9)


ARGUMENTS: dict[str, Callable[[], dict[str, Any]]] = {
    "random": lambda: {"batch_size": 4, "sampler": RandomSampler(DATA)},
    "of single samples": lambda: {"batch_size": None, "sampler": RandomSampler(DATA)},
    "of a subset": lambda: {"batch_size": 4, "sampler": SubsetRandomSampler(range(5, 40))},
    "weighted": lambda: {"batch_size": 4, "sampler": WeightedRandomSampler([1.0] * 40, 40)},
    "of batches": lambda: {"batch_sampler": by_cost()},
    "in torch's batches": lambda: {
        "batch_sampler": torch.utils.data.BatchSampler(RandomSampler(DATA), 4, drop_last=False)
    },
    "distributed": lambda: {"batch_size": 4, "sampler": DistributedSampler(DATA, num_replicas=2, rank=0)},
}
FORKED = {"num_workers": 1, "multiprocessing_context": "fork"}


def epoch(batches: Any) -> list[Any]:
    return [batch.tolist() for batch in batches]


@pytest.mark.parametrize("name", ARGUMENTS)
@pytest.mark.parametrize("workers", [{}, {**FORKED, "persistent_workers": True}], ids=["none", "persistent"])
def test_the_order_follows_from_the_seed_and_the_epoch(name: str, workers: dict[str, Any]) -> None:
    def three() -> list[list[Any]]:
        with DataLoader(DATA, seed=7, **ARGUMENTS[name](), **workers) as loader:
            return [epoch(loader) for _ in range(3)]

    first, second, third = three()
    assert [first, second, third] == three()
    assert first != second != third != first


@pytest.mark.parametrize("name", ARGUMENTS)
def test_without_a_seed_it_follows_from_torchs_generator(name: str) -> None:
    def drawn() -> list[Any]:
        torch.manual_seed(3)
        return epoch(DataLoader(DATA, **ARGUMENTS[name]()))

    assert drawn() == drawn()


@pytest.mark.parametrize("name", ARGUMENTS)
@pytest.mark.parametrize("settings", [{"seed": 7}, {}, FORKED], ids=["seed", "none", "worker"])
def test_an_epoch_is_taken_up_in_its_middle(name: str, settings: dict[str, Any]) -> None:
    with DataLoader(DATA, **ARGUMENTS[name](), **settings) as loader:
        epoch(loader)
        iterator = iter(loader)
        next(iterator)
        state = loader.state_dict()
        rest = epoch(iterator)
    with DataLoader(DATA, **ARGUMENTS[name](), **settings) as other:
        other.load_state_dict(state)
        assert epoch(other) == rest
