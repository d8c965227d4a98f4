"""States of the torch loader: torch's own samplers draw the same order again, from whatever they draw it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from dataloader.torch import DataLoader

LENGTH = 23


class Augmented(torch.utils.data.Dataset):  # type: ignore[misc, name-defined]
    """Samples that draw from torch's global generator, as an augmentation does."""

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> tuple[int, Any]:
        return index, torch.rand(2)


DATASET = Augmented()


def generator(seed: int = 5) -> Any:
    return torch.Generator().manual_seed(seed)


SETTINGS: dict[str, Callable[[], dict[str, Any]]] = {
    "in order": dict,
    "shuffle, global generator": lambda: {"shuffle": True},
    "shuffle, generator": lambda: {"shuffle": True, "generator": generator()},
    "random, own generator": lambda: {"sampler": RandomSampler(DATASET, generator=generator())},
    "with replacement": lambda: {
        "sampler": RandomSampler(DATASET, replacement=True, num_samples=50, generator=generator())
    },
    "subset, global generator": lambda: {"sampler": SubsetRandomSampler(range(3, 20))},
    "weighted, both generators": lambda: {
        "sampler": WeightedRandomSampler([1.0] * LENGTH, 20, generator=generator()),
        "generator": generator(6),
    },
    "distributed": lambda: {"sampler": DistributedSampler(DATASET, num_replicas=2, rank=1)},
}


def new(*arguments: Any, **keywords: Any) -> DataLoader[Any]:
    return DataLoader(*arguments, **keywords)


def bits(batches: Any) -> list[Any]:
    return [[torch.as_tensor(part).tolist() for part in batch] for batch in batches]


def through_json(state: dict[str, Any]) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(json.dumps(state))
    assert loaded == state
    return loaded


@settings(max_examples=50)
@given(
    setting=st.sampled_from(sorted(SETTINGS)),
    batch_size=st.sampled_from([None, 1, 3, 20]),
    own_batches=st.booleans(),
    seed=st.sampled_from([None, 4]),
    epochs=st.integers(0, 2),
    data=st.data(),
)
def test_another_loader_goes_on_with_the_same_batches_and_epochs(
    setting: str,
    batch_size: int | None,
    own_batches: bool,
    seed: int | None,
    epochs: int,
    data: st.DataObject,
) -> None:
    def make() -> DataLoader[Any]:
        arguments = {**SETTINGS[setting](), "seed": seed}
        if batch_size is not None and own_batches and "sampler" in arguments:
            arguments["batch_sampler"] = BatchSampler(arguments.pop("sampler"), batch_size, drop_last=True)
            return DataLoader(DATASET, **arguments)
        return DataLoader(DATASET, batch_size, **arguments)

    loader, other = make(), make()
    for _ in range(epochs):
        list(loader)
    iterator = iter(loader)
    stop = data.draw(st.integers(0, len(loader)))
    list(islice(iterator, stop))
    state = through_json(loader.state_dict())
    assert (state["_num_yielded"], state["_iterator_finished"]) == (stop, False)
    rest, then = bits(iterator), torch.get_rng_state()

    torch.manual_seed(data.draw(st.integers(0, 9)))  # whatever else was drawn in the meantime
    before = torch.get_rng_state()
    other.load_state_dict(state)
    assert other.state_dict() == state
    assert bits(other) == rest
    assert torch.equal(torch.get_rng_state(), before)
    torch.set_rng_state(then)
    following = bits(loader)
    torch.set_rng_state(then)
    assert bits(other) == following


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("epochs", [0, 2])
def test_a_state_from_between_epochs_begins_the_next(setting: str, epochs: int) -> None:
    loader, other = new(DATASET, 4, **SETTINGS[setting]()), new(DATASET, 4, **SETTINGS[setting]())
    for _ in range(epochs):
        list(loader)
    before = torch.get_rng_state()
    state = through_json(loader.state_dict())
    assert torch.equal(torch.get_rng_state(), before)
    assert state["_iterator_finished"] == bool(epochs)
    following = bits(loader), bits(loader)
    torch.set_rng_state(before)
    other.load_state_dict(state)
    assert (bits(other), bits(other)) == following


@pytest.mark.parametrize("setting", sorted(name for name in SETTINGS if "global" not in name))
@pytest.mark.parametrize("epochs", [0, 1])
def test_an_epoch_can_be_said_to_be_over_or_not(setting: str, epochs: int) -> None:
    loader, other = (new(DATASET, 4, **SETTINGS[setting](), seed=1) for _ in range(2))
    for _ in range(epochs):
        list(loader)
    iterator = iter(loader)
    list(islice(iterator, len(loader) - 1))
    last, rest = loader.state_dict(), bits(iterator)
    ended, following = loader.state_dict(), bits(loader)
    other.load_state_dict({**last, "_num_yielded": len(loader), "_iterator_finished": True})
    assert bits(other) == following
    other.load_state_dict({**ended, "_num_yielded": len(loader) - 1, "_iterator_finished": False})
    assert bits(other) == rest
    assert bits(other) == following


@pytest.mark.parametrize("setting", ["shuffle, global generator", "shuffle, generator"])
def test_persistent_workers_draw_one_seed_for_all_epochs_and_so_do_those_that_go_on(setting: str) -> None:
    workers: dict[str, Any] = {
        "num_workers": 2,
        "persistent_workers": True,
        "multiprocessing_context": "fork",
    }
    with new(DATASET, 4, **{**workers, **SETTINGS[setting]()}) as loader:
        list(loader)
        iterator = iter(loader)
        list(islice(iterator, 2))
        middle, rest = through_json(loader.state_dict()), bits(iterator)
        end, before = through_json(loader.state_dict()), torch.get_rng_state()
        following = bits(loader), bits(loader)
    with new(DATASET, 4, **{**workers, **SETTINGS[setting]()}) as other:
        other.load_state_dict(middle)
        torch.set_rng_state(before)
        assert (bits(other), bits(other), bits(other)) == (rest, *following)
        torch.set_rng_state(before)
        other.load_state_dict(end)
        assert (bits(other), bits(other)) == following
        other.load_state_dict(middle)  # the workers that there are begin anew
        torch.set_rng_state(before)
        assert (bits(other), bits(other)) == (rest, following[0])


class Positions:
    """The iterator of a sampler, with a state, as torchdata's are."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        if self.at == LENGTH:
            raise StopIteration
        self.at += 1
        return self.at * 5 % LENGTH

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class Sampler:
    def __iter__(self) -> Iterator[int]:
        return Positions()

    def __len__(self) -> int:
        return LENGTH


@pytest.mark.parametrize("batch_size", [4, None])
def test_the_iterator_of_a_sampler_goes_on_from_its_own_state(batch_size: int | None) -> None:
    loader, other = new(DATASET, batch_size, sampler=Sampler()), new(DATASET, batch_size, sampler=Sampler())
    iterator = iter(loader)
    list(islice(iterator, 3))
    state = through_json(loader.state_dict())
    assert state["sampler"]["iterator"] == {"at": 3 * (batch_size or 1)}
    rest = bits(iterator)
    other.load_state_dict(state)
    assert bits(other) == rest


def test_a_state_of_the_core_is_one_of_another_loader() -> None:
    from dataloader import DataLoader as CoreLoader

    state = CoreLoader(DATASET, 4, shuffle=True).state_dict()
    with pytest.raises(ValueError, match=r"sampler was 'dataloader.samplers.RandomSampler' and is 'torch"):
        DataLoader(DATASET, 4, shuffle=True).load_state_dict(state)
