"""state_dict and load_state_dict: what is left of an epoch comes as it would have come, whoever loads it."""

from __future__ import annotations

import copy
import json
import random
import time
from collections.abc import Callable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataloader import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from tests.datasets import Augmented, Recorded
from tests.equality import fingerprint

LENGTH = 23


def through_json(state: dict[str, Any]) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(json.dumps(state))
    assert loaded == state
    return loaded


def fingerprints(batches: Any) -> list[Any]:
    return [fingerprint(batch) for batch in batches]


class Shuffled:
    """A sampler of the user's, which draws from Python's global generator as an epoch begins."""

    def __iter__(self) -> Iterator[int]:
        order = list(range(LENGTH))
        random.shuffle(order)
        return iter(order)

    def __len__(self) -> int:
        return LENGTH


class LazilyShuffled(Shuffled):
    """The same as a generator, which begins at its first batch, with NumPy's generator."""

    def __iter__(self) -> Iterator[int]:
        yield from np.random.permutation(LENGTH).tolist()


class WithGenerator(Shuffled):
    """A sampler of the user's that holds a generator under a name of its own."""

    def __init__(self) -> None:
        self.dice = np.random.default_rng(3)

    def __iter__(self) -> Iterator[int]:
        return iter(self.dice.permutation(LENGTH).tolist())


class WithLateGenerator(Shuffled):
    """One that makes its generator as it is first iterated."""

    dice: Any = None

    def __iter__(self) -> Iterator[int]:
        self.dice = self.dice or random.Random(4)
        yield from self.dice.sample(range(LENGTH), LENGTH)


class Stateful(Shuffled):
    """A sampler whose epochs are one stream of numbers, drawn one by one, and that can say where it is."""

    drawn = left = 0

    def __iter__(self) -> Iterator[int]:
        self.left = self.left or LENGTH
        while self.left:
            self.left -= 1
            self.drawn += 1
            yield self.drawn**2 % LENGTH

    def state_dict(self) -> dict[str, Any]:
        return self.__dict__

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


class StatefulIterator:
    def __init__(self) -> None:
        self.order = random.sample(range(LENGTH), LENGTH)
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        if self.at == LENGTH:
            raise StopIteration
        self.at += 1
        return self.order[self.at - 1]

    def state_dict(self) -> dict[str, Any]:
        return {"order": self.order, "at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.order, self.at = state["order"], state["at"]


class WithStatefulIterator(Shuffled):
    def __iter__(self) -> Iterator[int]:
        return StatefulIterator()


DATASET = Augmented(LENGTH)
SETTINGS: dict[str, Callable[[], dict[str, Any]]] = {
    "in order": dict,
    "shuffle": lambda: {"shuffle": True},
    "random": lambda: {"sampler": RandomSampler(DATASET, replacement=True, num_samples=40)},
    "numpy generator": lambda: {"sampler": RandomSampler(DATASET, generator=np.random.default_rng(5))},
    "python generator": lambda: {"sampler": SubsetRandomSampler(range(20), generator=random.Random(5))},
    "weighted, own seed": lambda: {"sampler": WeightedRandomSampler(range(LENGTH), 31, seed=9)},
    "distributed": lambda: {"sampler": DistributedSampler(DATASET, num_replicas=2, rank=1)},
    "list": lambda: {"sampler": [5, 3, 1, 22, 7, 9, 11]},
    "global generator": lambda: {"sampler": Shuffled()},
    "lazy global generator": lambda: {"sampler": LazilyShuffled()},
    "generator in an attribute": lambda: {"sampler": WithGenerator()},
    "late generator": lambda: {"sampler": WithLateGenerator()},
    "stateful iterator": lambda: {"sampler": WithStatefulIterator()},
}


@settings(max_examples=50)
@given(
    setting=st.sampled_from(sorted(SETTINGS)),
    batch_size=st.sampled_from([None, 1, 2, 5, 20]),
    own_batches=st.booleans(),
    drop_last=st.booleans(),
    epochs=st.integers(0, 2),
    data=st.data(),
)
def test_another_loader_goes_on_with_the_same_batches_and_epochs(
    setting: str, batch_size: int | None, own_batches: bool, drop_last: bool, epochs: int, data: st.DataObject
) -> None:
    def make() -> DataLoader:
        given = SETTINGS[setting]()
        if batch_size is None:
            return DataLoader(DATASET, None, **given)
        if own_batches and "sampler" in given:
            return DataLoader(DATASET, batch_sampler=BatchSampler(given["sampler"], batch_size, drop_last))
        return DataLoader(DATASET, batch_size, drop_last=drop_last, **given)

    loader, other = make(), make()
    for _ in range(epochs):
        list(loader)
    iterator = iter(loader)
    stop = data.draw(st.integers(0, len(loader)))
    list(islice(iterator, stop))
    state = through_json(loader.state_dict())
    assert (state["_num_yielded"], state["_iterator_finished"]) == (stop, False)
    rest = fingerprints(iterator)

    random.seed(data.draw(st.integers(0, 9)))  # whatever the user drew in the meantime
    before = random.getstate()
    other.load_state_dict(state)
    assert other.state_dict() == state
    assert fingerprints(other) == rest
    assert random.getstate() == before
    if "global" not in setting and "stateful" not in setting:
        assert fingerprints(other) == fingerprints(loader)


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_state_of_an_epochs_end_begins_the_next(setting: str) -> None:
    loader, other = (DataLoader(DATASET, 4, **SETTINGS[setting]()) for _ in range(2))
    list(loader)
    list(loader)
    state = through_json(loader.state_dict())
    assert (state["_num_yielded"], state["_iterator_finished"]) == (len(loader), True)
    random.seed(1)
    np.random.seed(1)
    expected = fingerprints(loader)
    other.load_state_dict(state)
    random.seed(1)
    np.random.seed(1)
    assert fingerprints(other) == expected


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_state_from_before_the_first_epoch_begins_it(setting: str) -> None:
    loader, other = (DataLoader(DATASET, 4, **SETTINGS[setting]()) for _ in range(2))
    loader.set_epoch(3)
    state = through_json(loader.state_dict())
    assert (state["_num_yielded"], state["_iterator_finished"]) == (0, False)
    assert loader.state_dict() == state
    random.seed(1)
    np.random.seed(1)
    expected = fingerprints(loader)
    other.load_state_dict(state)
    random.seed(1)
    np.random.seed(1)
    assert fingerprints(other) == expected


# ---- samplers with a state of their own ----------------------------------------------------------


def numbers(batches: Any) -> list[list[int]]:
    return [batch.tolist() for batch in batches]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("in_batches", [True, False])
def test_a_stateful_sampler_goes_on_from_what_was_received_not_from_what_was_drawn_ahead(
    num_workers: int, in_batches: bool
) -> None:
    def make(workers: int) -> tuple[Stateful, DataLoader]:
        sampler = Stateful()
        others: dict[str, Any] = {"num_workers": workers}
        if workers:
            others["multiprocessing_context"] = "fork"
        if in_batches:
            return sampler, DataLoader(
                range(LENGTH), batch_sampler=BatchSampler(sampler, 4, drop_last=False), **others
            )
        return sampler, DataLoader(range(LENGTH), 4, sampler=sampler, **others)

    sampler, loader = make(num_workers)
    with loader:
        list(loader)
        iterator = iter(loader)
        list(islice(iterator, 2))
        state = through_json(loader.state_dict())
        assert state["sampler"]["sampler"]["drawn"] == LENGTH + 8
        assert (sampler.drawn > LENGTH + 8) == (num_workers > 0)
        rest = numbers(iterator)
        at_end, then = through_json(loader.state_dict()), numbers(loader)
    for workers in {0, 2 - num_workers}:
        other_sampler, other = make(workers)
        with other:
            other.load_state_dict(state)
            assert other_sampler.drawn == 0  # until it is iterated
            assert numbers(other) == rest
            assert numbers(other) == then
            other.load_state_dict(at_end)
            assert numbers(other) == then


def test_a_sampler_that_goes_on_from_its_end_begins_anew() -> None:
    class GoesOn(Shuffled):
        """Counts as torchdata's distributed sampler does: only as it is drawn from."""

        yielded = 0
        resumed: int | None = None

        def __iter__(self) -> Iterator[int]:
            self.yielded, self.resumed = self.resumed or 0, None
            for index in range(self.yielded, LENGTH):
                self.yielded += 1
                yield index

        def state_dict(self) -> dict[str, int]:
            return {"yielded": self.yielded}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.resumed = state["yielded"]

    loader, other = (DataLoader(range(LENGTH), 4, sampler=GoesOn()) for _ in range(2))
    whole = numbers(loader)
    for state in (loader.state_dict(), (iter(loader), loader.state_dict())[1]):
        other.load_state_dict(state)
        assert numbers(other) == whole


def test_a_states_dicts_are_the_callers() -> None:
    loader = DataLoader(range(LENGTH), 4, sampler=WithStatefulIterator())
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    kept = copy.deepcopy(state)
    next(iterator)
    assert state == kept
    other = DataLoader(range(LENGTH), 4, sampler=WithStatefulIterator())
    other.load_state_dict(state)
    state["sampler"]["iterator"]["order"].clear()
    other.state_dict()["sampler"]["iterator"]["order"].clear()
    assert len(numbers(other)) == len(other) - 1


# ---- workers -------------------------------------------------------------------------------------


def test_what_is_left_comes_from_workers_as_in_process_and_loads_no_sample_before(tmp_path: Path) -> None:
    dataset = Recorded(40, tmp_path)
    loader = DataLoader(dataset, 4, shuffle=True, seed=3)
    whole = numbers(loader)
    loader.set_epoch(0)
    received = list(islice(loader, 3))
    for path in tmp_path.iterdir():
        path.unlink()
    others: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": "fork", "persistent_workers": True}
    with DataLoader(dataset, 4, shuffle=True, **others) as other:
        other.load_state_dict(loader.state_dict())
        iterator: Any = iter(other)
        assert [next(iterator).tolist() for _ in range(2)] == whole[3:5]
        state = through_json(other.state_dict())
        assert state["_num_yielded"] == 5
        assert iterator.progress == (20, 40)
        assert numbers(iterator) == whole[5:]
        assert set(dataset.loads()) == set(range(40)) - {int(i) for batch in received for i in batch}
        other.load_state_dict(state)  # while workers wait for the next epoch
        assert numbers(other) == whole[5:]


def test_a_loop_that_is_left_early_can_be_taken_up_again() -> None:
    loader = DataLoader(range(LENGTH), 4, shuffle=True)
    first = []
    for batch in loader:
        first.append(batch.tolist())
        if len(first) == 2:
            break
    loader.load_state_dict(loader.state_dict())
    assert sorted(chain(*first, *numbers(loader))) == list(range(LENGTH))


def test_of_several_iterators_the_last_counts_and_each_has_its_own_state() -> None:
    loader = DataLoader(range(LENGTH), 4, shuffle=True)
    first: Any = iter(loader)
    second = iter(loader)
    list(islice(first, 3))
    next(second)
    assert loader.state_dict()["epoch"] == 1
    assert loader.state_dict()["_num_yielded"] == 1
    state = first.state_dict()
    assert (state["epoch"], state["_num_yielded"]) == (0, 3)
    loader.load_state_dict(state)
    assert numbers(loader) == numbers(first)


# ---- batches that do not come --------------------------------------------------------------------


class Gaps:
    """Sample 2, 6 and 11 cannot be loaded."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> int:
        if index in (2, 6, 11):
            raise KeyError(index)
        return index


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_that_are_left_out_are_over_but_not_received(num_workers: int) -> None:
    settings: dict[str, Any] = {"batch_size": None, "on_error": "skip", "num_workers": num_workers}
    if num_workers:
        settings["multiprocessing_context"] = "fork"
    with DataLoader(Gaps(), **settings) as loader:
        iterator = iter(loader)
        assert [int(next(iterator)) for _ in range(7)] == [0, 1, 3, 4, 5, 7, 8]
        state = through_json(loader.state_dict())
    assert (state["_num_yielded"], state["next_batch"], state["left_out"]) == (7, 9, 2)
    other = DataLoader(Gaps(), batch_size=None, on_error="skip")
    other.load_state_dict(state)
    assert list(map(int, other)) == [9, 10]
    assert other.state_dict()["left_out"] == 3
    for received, left in [(6, [8, 9, 10]), (5, [7, 8, 9, 10]), (4, [5, 7, 8, 9, 10]), (8, [10])]:
        other.load_state_dict({**state, "_num_yielded": received})
        assert list(map(int, other)) == left


def test_a_batch_in_whose_stead_an_exception_came_is_over() -> None:
    loader = DataLoader(Gaps(), batch_size=2)
    iterator = iter(loader)
    next(iterator)
    with pytest.raises(KeyError):
        next(iterator)
    state = loader.state_dict()
    assert (state["_num_yielded"], state["next_batch"]) == (1, 2)
    loader.load_state_dict(state)
    assert next(iter(loader)).tolist() == [4, 5]


def test_out_of_order_what_was_delivered_does_not_come_again() -> None:
    """One worker of two sleeps in its first sample: the other's batches come first."""
    settings: dict[str, Any] = {"num_workers": 2, "in_order": False, "multiprocessing_context": "fork"}
    with DataLoader(SlowFirst(), 2, **settings) as loader:
        iterator = iter(loader)
        received = [next(iterator).tolist() for _ in range(2)]
        state = through_json(loader.state_dict())
    assert received == [[2, 3], [6, 7]]
    assert (state["_num_yielded"], state["next_batch"], state["ahead"]) == (2, 0, [1, 3])
    for in_order in (True, False):
        other = DataLoader(list(range(20)), 2, in_order=in_order)
        other.load_state_dict(state)
        assert numbers(other) == [[i, i + 1] for i in (0, 4, *range(8, 20, 2))]
    with pytest.warns(
        UserWarning, match="_num_yielded was changed from 2 to 1, and batches came in any order"
    ):
        other.load_state_dict({**state, "_num_yielded": 1})
    assert numbers(other)[0] == [2, 3]


class SlowFirst:
    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> int:
        if index == 0:
            time.sleep(0.5)
        return index


# ---- what trainers do to a state -----------------------------------------------------------------


@pytest.mark.parametrize("received", range(7))
def test_the_count_of_received_batches_can_be_edited(received: int) -> None:
    loader, other = (DataLoader(Augmented(LENGTH), 4, shuffle=True, seed=1) for _ in range(2))
    whole = fingerprints(loader)
    loader.set_epoch(0)
    list(islice(loader, 3))
    state = loader.state_dict()
    state["_num_yielded"] = received
    other.load_state_dict(through_json(state))
    assert fingerprints(other) == whole[received:]


@pytest.mark.parametrize(
    "setting", sorted(set(SETTINGS) - {"global generator", "lazy global generator", "late generator"})
)
@pytest.mark.parametrize("epochs", [0, 1])
def test_an_epoch_can_be_said_to_be_over_or_not(setting: str, epochs: int) -> None:
    """Accelerate asks for the next batch before it gives one, and says so when it gives the last."""
    random.seed(2)
    loader, other = (DataLoader(DATASET, 4, **SETTINGS[setting]()) for _ in range(2))
    for _ in range(epochs):
        list(loader)
    iterator = iter(loader)
    list(islice(iterator, len(loader) - 1))
    last = loader.state_dict()
    rest = fingerprints(iterator)
    ended = loader.state_dict()
    following = fingerprints(loader)
    random.seed(2)

    other.load_state_dict({**last, "_num_yielded": len(loader), "_iterator_finished": True})
    if "stateful" not in setting:  # whose state is that of the batch before
        assert fingerprints(other) == following
        other.load_state_dict({**ended, "_num_yielded": len(loader) - 1, "_iterator_finished": False})
        assert fingerprints(other) == rest
        assert fingerprints(other) == following
    other.load_state_dict({**ended, "_iterator_finished": False})
    assert fingerprints(other) == []
    assert len(fingerprints(other)) == len(other)


def test_a_count_beyond_the_end_is_refused() -> None:
    loader = DataLoader(range(LENGTH), 4)
    state = {**loader.state_dict(), "_num_yielded": 9}
    loader.load_state_dict(state)
    with pytest.raises(ValueError, match="the sampler has 6 batches, and state_dict is that after 9"):
        iter(loader)


def test_a_samplers_own_state_is_not_taken_back() -> None:
    loader = DataLoader(range(LENGTH), 4, sampler=Stateful())
    iterator = iter(loader)
    list(islice(iterator, 3))
    state = loader.state_dict()
    for more, batches in ((0, 3), (1, 2)):
        other = DataLoader(range(LENGTH), 4, sampler=Stateful())
        other.load_state_dict({**state, "_num_yielded": 3 + more})
        assert len(numbers(other)) == batches
    loader.load_state_dict({**state, "_num_yielded": 2})
    with pytest.raises(ValueError, match="_num_yielded=2 in state_dict, but the sampler's own state in it"):
        iter(loader)


# ---- epochs --------------------------------------------------------------------------------------


def left_in_the_middle(**settings: Any) -> tuple[dict[str, Any], list[Any], DataLoader]:
    """Return a state after 2 batches of epoch 3, what is left of that epoch, and another loader."""
    loader, other = (DataLoader(Augmented(LENGTH), 4, **settings) for _ in range(2))
    loader.set_epoch(3)
    iterator = iter(loader)
    list(islice(iterator, 2))
    return through_json(loader.state_dict()), fingerprints(iterator), other


def test_set_epoch_of_the_epoch_that_was_loaded_changes_nothing() -> None:
    state, rest, other = left_in_the_middle(shuffle=True)
    other.load_state_dict(state)
    other.set_epoch(3)
    assert fingerprints(other) == rest


def test_set_epoch_of_another_epoch_begins_that() -> None:
    state, _, other = left_in_the_middle(shuffle=True)
    other.load_state_dict(state)
    with pytest.warns(
        UserWarning, match=r"set_epoch\(4\) after a state of epoch 3 was loaded: epoch 4 begins"
    ):
        other.set_epoch(4)
    assert len(fingerprints(other)) == len(other)
    assert other.state_dict()["epoch"] == 4


def test_samplers_are_told_the_epoch_of_the_state_and_another_is_warned_of() -> None:
    settings: dict[str, Any] = {"sampler": DistributedSampler(DATASET, 2, 0)}
    state, rest, other = left_in_the_middle(**settings)
    other.sampler.set_epoch(0)  # type: ignore[attr-defined]
    other.load_state_dict(state)
    assert fingerprints(other) == rest
    other.load_state_dict(state)
    other.sampler.set_epoch(7)  # type: ignore[attr-defined]
    with (
        pytest.warns(UserWarning, match="sampler was told that this is epoch 7, but .* its epoch 3") as told,
        pytest.warns(UserWarning, match="batch 1 of the sampler's order is not the one that was received"),
    ):
        iter(other)
    assert told[0].filename == __file__


def test_set_epoch_after_an_epochs_end_counts_in_its_state() -> None:
    loader, other = (DataLoader(range(LENGTH), 4, shuffle=True, seed=1) for _ in range(2))
    list(loader)
    loader.set_epoch(8)
    other.load_state_dict(through_json(loader.state_dict()))
    assert numbers(other) == numbers(loader)
    assert other.state_dict()["epoch"] == 8


def test_an_empty_state_undoes_another() -> None:
    state, _, other = left_in_the_middle(shuffle=True)
    other.load_state_dict(state)
    other.load_state_dict({})
    assert len(numbers(DataLoader(range(LENGTH), 4))) == len(fingerprints(other))


# ---- ranks and seeds -----------------------------------------------------------------------------


def test_a_drawn_seed_is_the_states_from_then_on() -> None:
    state, _, other = left_in_the_middle(shuffle=True)
    other.load_state_dict(state)
    assert other.seed == state["seed"]


def test_a_given_seed_must_be_the_states() -> None:
    state, _, _ = left_in_the_middle(shuffle=True, seed=1)
    other = DataLoader(DATASET, 4, shuffle=True, seed=2)
    with pytest.raises(ValueError, match="of a loader with seed=1, and this one has seed=2: give seed=1"):
        other.load_state_dict(state)


def test_a_state_from_another_rank_says_how_far_this_rank_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    loaders, states, rests = [], [], []
    for rank in (0, 1):
        monkeypatch.setenv("RANK", str(rank))
        loader = DataLoader(DATASET, 4, sampler=DistributedSampler(DATASET), seed=rank)
        iterator = iter(loader)
        next(iterator)
        loaders.append(loader)
        states.append(loader.state_dict())
        rests.append(fingerprints(iterator))
    loaders[1].load_state_dict(through_json(states[0]))
    assert fingerprints(loaders[1]) == rests[1] != rests[0]
    fresh = DataLoader(DATASET, 4, sampler=DistributedSampler(DATASET))
    fresh.load_state_dict(states[0])
    assert fresh.seed == 0
    assert len(fingerprints(fresh)) == len(rests[1])


class Unrepeatable(Shuffled):
    """A sampler whose order depends on what nobody knows of."""

    def __init__(self, seed: int) -> None:
        self.order = random.Random(seed).sample(range(LENGTH), LENGTH)

    def __iter__(self) -> Iterator[int]:
        return iter(self.order)


@pytest.mark.parametrize("batch_size", [4, None])
def test_another_order_than_that_of_the_state_is_warned_of(batch_size: int | None) -> None:
    loader, other, same = (DataLoader(DATASET, batch_size, sampler=Unrepeatable(seed)) for seed in (1, 2, 1))
    iterator = iter(loader)
    list(islice(iterator, 3))
    state = through_json(loader.state_dict())
    other.load_state_dict(state)
    with pytest.warns(UserWarning, match="batch 2 of the sampler's order is not the one that was re") as told:
        assert len(fingerprints(other)) == len(loader) - 3
    assert told[0].filename == __file__
    same.load_state_dict(state)
    assert fingerprints(same) == fingerprints(iterator)


# ---- parts ---------------------------------------------------------------------------------------


def test_each_part_of_a_loader_has_its_own_state() -> None:
    loader, later = (DataLoader(Augmented(LENGTH), 4, shuffle=True) for _ in range(2))
    parts, others = loader.split(2), later.split(2)
    for part, other in zip(parts, others, strict=True):
        iterator = iter(part)
        next(iterator)
        other.load_state_dict(through_json(part.state_dict()))
        assert fingerprints(other) == fingerprints(iterator)
    with pytest.raises(ValueError, match=r"len\(dataset\) was 12 and is 11"):
        others[1].load_state_dict(parts[0].state_dict())


# ---- datasets with a state -----------------------------------------------------------------------


class Counts:
    """A dataset that counts what it has loaded."""

    def __init__(self) -> None:
        self.loaded = 0

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> tuple[int, int]:
        self.loaded += 1
        return index, self.loaded

    def state_dict(self) -> dict[str, Any]:
        return self.__dict__

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


def test_in_process_a_dataset_goes_on_from_its_own_state() -> None:
    loader, other = DataLoader(Counts(), 4), DataLoader(Counts(), 4)
    iterator = iter(loader)
    list(islice(iterator, 2))
    state = through_json(loader.state_dict())
    assert state["dataset"] == {"loaded": 8}
    rest = fingerprints(iterator)
    other.load_state_dict(state)
    assert fingerprints(other) == rest
    other.load_state_dict(through_json(loader.state_dict()))
    assert next(iter(other))[1].tolist() == [21, 22, 23, 24]


def test_with_workers_a_dataset_has_the_state_of_its_epochs_beginning_and_that_is_told() -> None:
    dataset = Counts()
    dataset.loaded = 100
    with DataLoader(dataset, 4, num_workers=1, multiprocessing_context="fork") as loader:
        state = loader.state_dict()
        iterator = iter(loader)
        assert through_json(loader.state_dict())["dataset"] == {"loaded": 100}
        assert next(iterator)[1].tolist() == [101, 102, 103, 104]
        middle = through_json(loader.state_dict())
    with DataLoader(Counts(), 4, num_workers=1, multiprocessing_context="fork") as other:
        other.load_state_dict(state)
        assert next(iter(other))[1].tolist() == [101, 102, 103, 104]
    with pytest.warns(UserWarning, match="the dataset's own state that was loaded is that of its epoch"):
        other.load_state_dict(middle)


def test_a_state_starts_no_worker_and_does_not_grow(tmp_path: Path) -> None:
    loader = DataLoader(Recorded(3000, tmp_path), 1, shuffle=True, num_workers=2)
    before = loader.state_dict()
    loader.load_state_dict(before)
    assert (loader.workers(), loader.reports, loader.state_dict()) == ([], [], before)
    loader = DataLoader(range(500), 1, shuffle=True)
    sizes = []
    for _ in loader:
        sizes.append(len(json.dumps(loader.state_dict())))
    assert sizes[-1] <= sizes[0] + 9  # digits of the three counts


# ---- wrong states --------------------------------------------------------------------------------


def torchdatas_states() -> list[dict[str, Any]]:
    return [{"_snapshot": {}, "_steps_since_snapshot": 0}, {"_sampler_iter_yielded": 3, "_num_yielded": 3}]


@pytest.mark.parametrize(
    ("state", "error", "message"),
    [
        (None, TypeError, "state_dict=None: load what state_dict"),
        ([], TypeError, r"state_dict=\[\]: load what state_dict"),
        ({"a": 1}, ValueError, "state_dict has no '_num_yielded': load what"),
        *((state, ValueError, "is one of torchdata's Stateful") for state in torchdatas_states()),
    ],
)
def test_what_is_no_state_is_refused(state: Any, error: type[Exception], message: str) -> None:
    loader = DataLoader(range(LENGTH), 4)
    with pytest.raises(error, match=message):
        loader.load_state_dict(state)
    assert len(numbers(loader)) == 6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "has version 2, where this release knows 1"),
        ({"_num_yielded": -1}, r"state_dict\['_num_yielded'\]=-1: load"),
        ({"_num_yielded": "3"}, r"state_dict\['_num_yielded'\]='3': load"),
        ({"epoch": None}, r"state_dict\['epoch'\]=None: load"),
        ({"ahead": ["1"]}, r"state_dict\['ahead'\]=\['1'\]: load"),
        ({"left_out": 5}, r"state_dict\['left_out'\]=5: load"),
        ({"sampler": {"at": 3}}, r"state_dict\['sampler'\] has \['at'\]: load"),
        ({"generators": []}, r"state_dict\['generators'\]=\[\]: load"),
    ],
)
def test_a_state_that_was_spoilt_is_refused(change: dict[str, Any], message: str) -> None:
    loader = DataLoader(range(LENGTH), 4)
    with pytest.raises(ValueError, match=message):
        loader.load_state_dict({**loader.state_dict(), **change})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DataLoader(range(22), 4), r"len\(dataset\) was 23 and is 22\. Make the loader as it was"),
        (lambda: DataLoader(range(LENGTH), 8), r"another loader: batch_size was 4 and is 8\. Make"),
        (lambda: DataLoader(range(LENGTH), 4, drop_last=True), "drop_last was False and is True"),
        (lambda: DataLoader(range(LENGTH), None), "batch_size was 4 and is None"),
        (
            lambda: DataLoader(range(LENGTH), 4, shuffle=True),
            r"sampler was 'dataloader.samplers.SequentialSampler' and is 'dataloader.samplers.RandomSampler'",
        ),
        (lambda: DataLoader(range(LENGTH), 4, sampler=Shuffled()), "SequentialSampler' and is 'Shuffled'"),
        (
            lambda: DataLoader(range(20), 8),
            r"another loader: len\(dataset\) was 23 and is 20; batch_size was 4 and is 8\. Make",
        ),
    ],
)
def test_a_state_of_another_loader_is_refused_and_what_differs_is_named(
    make: Callable[[], DataLoader], message: str
) -> None:
    state = DataLoader(range(LENGTH), 4).state_dict()
    with pytest.raises(ValueError, match=message):
        make().load_state_dict(state)


def test_a_state_of_a_generator_that_is_not_there_is_refused() -> None:
    def make(sampler: Any) -> DataLoader:
        type(sampler).__qualname__ = "Same"
        return DataLoader(DATASET, 4, sampler=sampler)

    loader, other = make(WithGenerator()), make(WithLateGenerator())
    other.load_state_dict(loader.state_dict())
    with pytest.raises(ValueError, match=r"\['sampler.dice'\]: this is no state of Random"):
        iter(other)
    other = make(Shuffled())
    other.load_state_dict(loader.state_dict())
    with pytest.raises(ValueError, match=r"the generator sampler\.dice, which this loader has not: give the"):
        iter(other)


@pytest.mark.parametrize(
    ("then", "now", "message"),
    [
        ({"seed": 1}, {"seed": 2}, "sampler.seed was 1 and is 2"),
        ({"replacement": True}, {}, "sampler.replacement was True and is False"),
        ({"num_samples": 9}, {}, "sampler.num_samples was 9 and is 23"),
        (
            {"generator": random.Random(1)},
            {"generator": np.random.default_rng(1)},
            "sampler.generator was 'Random' and is 'Generator'",
        ),
    ],
)
def test_settings_of_samplers_must_be_the_same(
    then: dict[str, Any], now: dict[str, Any], message: str
) -> None:
    first, second = (DataLoader(DATASET, 4, sampler=RandomSampler(DATASET, **given)) for given in (then, now))
    with pytest.raises(ValueError, match=message):
        second.load_state_dict(first.state_dict())


@pytest.mark.parametrize(
    "others",
    [
        {"num_workers": 2, "prefetch_factor": 5, "persistent_workers": True, "in_order": False},
        {"on_error": "skip", "restart": None, "progress": False},
        {"collate_fn": list},
    ],
)
def test_how_batches_are_made_may_differ(others: dict[str, Any]) -> None:
    state, _, _ = left_in_the_middle()
    DataLoader(DATASET, 4, **others).load_state_dict(state)


def test_a_state_of_a_sampler_that_takes_none_is_refused() -> None:
    class Mute(Shuffled):
        pass

    Mute.__qualname__ = "Stateful"
    loader = DataLoader(DATASET, 4, sampler=Stateful())
    iterator = iter(loader)
    next(iterator)
    other = DataLoader(DATASET, 4, sampler=Mute())
    other.load_state_dict(loader.state_dict())
    with pytest.raises(ValueError, match=r"a state of the sampler, and Mute has no load_state_dict\(\)"):
        iter(other)


def test_a_copy_goes_on_where_its_original_would() -> None:
    state, rest, other = left_in_the_middle(shuffle=True)
    other.load_state_dict(state)
    copied = copy.deepcopy(other)
    assert fingerprints(copied) == rest
    assert fingerprints(other) == rest
