"""Torch's default generator is watched: whoever draws from it, seeds it or reads it is seen."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from dataloader.pieces import Seeds
from dataloader.random_state import set_random_state
from dataloader.torch import DataLoader
from dataloader.torch_random import READERS, TorchWatch
from tests.torch.datasets import SeldomDrawing, seldom_drawing_collate


@pytest.fixture(autouse=True)
def _torch_as_it_was() -> Iterator[None]:
    functions = [
        (module, name, getattr(module, name)) for module in (torch, torch.random) for name in READERS
    ]
    yield
    for module, name, function in functions:
        setattr(module, name, function)


def fork_rng() -> None:
    with torch.random.fork_rng():
        torch.rand(1)


TOUCHES: dict[str, Callable[[], Any]] = {
    "rand": lambda: torch.rand(1),
    "randn": lambda: torch.randn(1),
    "randperm": lambda: torch.randperm(3),
    "dropout": lambda: torch.nn.functional.dropout(torch.ones(3)),
    "624 words": lambda: torch.rand(624),
    "many": lambda: torch.rand(10_000),
    "manual_seed": lambda: torch.manual_seed(5),
    "the generator's own": lambda: torch.default_generator.manual_seed(5),
    "seed": torch.seed,
    "set_rng_state": lambda: torch.set_rng_state(torch.Generator().manual_seed(7).get_state()),
    "initial_seed": lambda: torch.initial_seed(),
    "random.initial_seed": lambda: torch.random.initial_seed(),
    "get_rng_state": lambda: torch.get_rng_state(),
    "fork_rng": fork_rng,
}


@pytest.mark.parametrize("touch", TOUCHES)
def test_any_draw_or_read_is_seen(touch: str) -> None:
    watch = TorchWatch.of_default_generator(torch)
    assert watch is not None
    for _ in range(2):
        set_random_state(Seeds(1, 2, 2**64 - 1))
        watch.begin()
        assert not watch.is_touched()
        torch.rand(1, generator=torch.Generator())
        assert not watch.is_touched()
        TOUCHES[touch]()
        assert watch.is_touched()


def test_where_the_words_are_not_found_nothing_is_watched() -> None:
    class Elsewhere:
        _cdata = id(random.random)

        def get_state(self) -> Any:
            return torch.arange(5056, dtype=torch.uint8)

    assert TorchWatch.of_default_generator(type("torch", (), {"default_generator": Elsewhere()})) is None


@pytest.mark.parametrize("num_workers", [1, 3])
def test_seldom_draws_change_no_byte(num_workers: int) -> None:
    def epoch(**arguments: Any) -> Any:
        torch.manual_seed(3)
        loader: Any = DataLoader(
            SeldomDrawing(), 16, collate_fn=seldom_drawing_collate, shuffle=True, **arguments
        )
        with loader:
            return list(loader)

    assert epoch() == epoch(num_workers=num_workers, multiprocessing_context="fork")
