"""DistributedSampler: what ranks get together, and the order of epochs; unshuffled the same as torch's."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataloader import DataLoader, DistributedSampler


def shares(length: int, num_replicas: int, epoch: int = 0, **others: Any) -> list[list[int]]:
    samplers = [
        DistributedSampler(range(length), num_replicas, rank, **others) for rank in range(num_replicas)
    ]
    for sampler in samplers:
        sampler.set_epoch(epoch)
    assert all(len(list(sampler)) == len(sampler) for sampler in samplers)
    return [list(sampler) for sampler in samplers]


@given(
    length=st.integers(0, 40),
    num_replicas=st.integers(1, 9),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
    epoch=st.integers(0, 3),
)
def test_ranks_have_equal_shares_that_leave_out_and_repeat_no_more_than_they_must(
    length: int, num_replicas: int, shuffle: bool, drop_last: bool, epoch: int
) -> None:
    parts = shares(length, num_replicas, epoch, shuffle=shuffle, drop_last=drop_last)
    together = sorted(index for part in parts for index in part)
    assert len({len(part) for part in parts}) == 1
    if drop_last:
        assert len(together) == len(set(together)) == length - length % num_replicas
    else:
        assert set(together) == set(range(length))
        assert len(together) == length + -length % num_replicas


@given(length=st.integers(1, 40), num_replicas=st.integers(1, 9), drop_last=st.booleans())
def test_without_shuffle_the_shares_are_torchs(length: int, num_replicas: int, drop_last: bool) -> None:
    torch_data = pytest.importorskip("torch.utils.data")
    for rank, share in enumerate(shares(length, num_replicas, shuffle=False, drop_last=drop_last)):
        theirs = torch_data.DistributedSampler(
            range(length), num_replicas, rank, shuffle=False, drop_last=drop_last
        )
        assert share == list(theirs)
        assert len(share) == len(theirs)


def test_each_epoch_and_each_seed_has_an_order_of_its_own() -> None:
    first = shares(20, 2)
    assert first == shares(20, 2, epoch=0, seed=0)
    assert first != shares(20, 2, epoch=1)
    assert first != shares(20, 2, seed=1)


def test_iterating_does_not_move_a_rank_on_to_another_epoch() -> None:
    sampler = DistributedSampler(range(20), num_replicas=2, rank=0)
    assert list(sampler) == list(sampler)


def indices(loader: DataLoader) -> list[int]:
    return [int(index) for batch in loader for index in batch]


def test_in_a_loader_epochs_follow_one_another_without_set_epoch() -> None:
    loader = DataLoader(range(20), batch_size=4, sampler=DistributedSampler(range(20), 2, 1))
    assert [indices(loader), indices(loader)] == [shares(20, 2, epoch)[1] for epoch in (0, 1)]


@pytest.mark.parametrize("of_sampler", [True, False])
def test_set_epoch_of_sampler_and_loader_says_which_epoch_is_next(of_sampler: bool) -> None:
    sampler = DistributedSampler(range(20), 2, 1)
    loader = DataLoader(range(20), batch_size=4, sampler=sampler)
    indices(loader)
    (sampler if of_sampler else loader).set_epoch(7)
    assert [indices(loader), indices(loader)] == [shares(20, 2, epoch)[1] for epoch in (7, 8)]


def test_the_environment_says_rank_and_number_of_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    sampler = DistributedSampler(range(7))
    assert (sampler.rank, sampler.num_replicas, len(sampler), sampler.total_size) == (1, 3, 3, 9)
    assert DistributedSampler(range(7), rank=2).rank == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_replicas": 0, "rank": 0}, "num_replicas=0: give at least 1"),
        ({"num_replicas": 2, "rank": 2}, "rank=2 of num_replicas=2: give a smaller rank"),
        ({"num_replicas": 2, "rank": -1}, "rank=-1: give at least 0"),
        ({"num_replicas": 2.0, "rank": 0}, "num_replicas=2.0: give a whole number, at least 1"),
        ({"num_replicas": 2, "rank": 0, "seed": -1}, "seed=-1: give a whole number from 0"),
        ({"num_replicas": 2, "rank": 0, "shuffle": "yes"}, "shuffle='yes': give True or False"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        DistributedSampler(range(7), **arguments)
