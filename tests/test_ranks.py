"""Ranks: from the environment, and from torch.distributed where it is in use."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from dataloader.ranks import Rank, current_rank, rank_here


@pytest.fixture(autouse=True)
def _without_a_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.delitem(sys.modules, "torch.distributed", raising=False)


def test_without_a_launcher_there_is_one_rank() -> None:
    assert current_rank() == Rank(0, 1)


def test_the_environment_says_which_rank_this_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert current_rank() == Rank(2, 4)
    assert rank_here() == 2


@pytest.mark.parametrize(("rank", "world_size"), [("2", "2"), ("-1", "4"), ("two", "4"), ("0", "0")])
def test_an_environment_that_makes_no_sense_is_refused(
    rank: str, world_size: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", world_size)
    with pytest.raises(ValueError, match=f"RANK='{rank}' and WORLD_SIZE='{world_size}' in the environment"):
        current_rank()
    assert rank_here() == 0


@pytest.mark.parametrize(("in_use", "rank"), [(True, Rank(3, 5)), (False, Rank(1, 2))])
def test_torch_distributed_comes_first_where_it_is_in_use(
    in_use: bool, rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    module = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: in_use,
        get_rank=lambda: 3,
        get_world_size=lambda: 5,
    )
    monkeypatch.setitem(sys.modules, "torch.distributed", module)
    assert current_rank() == rank
