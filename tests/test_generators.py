"""Generators: every kind can be read as text, and goes on from it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dataloader.generators import generators_of, global_generators, set_state, state_text
from dataloader.random_state import kept_random_state


def torch_generator() -> Any:
    return pytest.importorskip("torch").Generator().manual_seed(5)


def numpy_generator(bits: Any) -> Callable[[], Any]:
    return lambda: np.random.Generator(bits(5))


def draw(generator: Any) -> list[float]:
    """Draw an odd number of small and of normal ones, which leave halves behind in some generators."""
    if hasattr(generator, "manual_seed"):
        torch = pytest.importorskip("torch")
        drawn: list[float] = torch.rand(3, generator=generator).tolist()
        return drawn
    if hasattr(generator, "integers"):
        return [float(generator.integers(2**16, dtype=np.uint16)), float(generator.normal())]
    return [float(generator.random()), float(generator.normal() if hasattr(generator, "normal") else 0)]


MAKERS: dict[str, Callable[[], Any]] = {
    "PCG64": numpy_generator(np.random.PCG64),
    "PCG64DXSM": numpy_generator(np.random.PCG64DXSM),
    "MT19937": numpy_generator(np.random.MT19937),
    "Philox": numpy_generator(np.random.Philox),
    "SFC64": numpy_generator(np.random.SFC64),
    "RandomState": lambda: np.random.RandomState(5),
    "Random": lambda: random.Random(5),
    "torch": torch_generator,
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_another_generator_goes_on_from_the_text_of_a_state(make: Callable[[], Any]) -> None:
    first, other = make(), make()
    draw(first)
    text = state_text(first)
    assert text is not None
    assert isinstance(text, str)
    json.loads(text)
    expected = [draw(first), draw(first)]
    set_state(other, text)
    assert [draw(other), draw(other)] == expected


def test_global_generators_are_set_back() -> None:
    with kept_random_state():
        texts = {name: state_text(generator) for name, generator in global_generators().items()}
        expected = random.random(), np.random.normal()
        for name, generator in global_generators().items():
            set_state(generator, texts[name] or "")
        assert (random.random(), np.random.normal()) == expected


def test_generators_are_found_among_attributes() -> None:
    held = SimpleNamespace(a=random.Random(1), b=np.random.default_rng(1), c=3, d="x", e=random, f=None)
    assert list(generators_of(held)) == ["a", "b"]
    assert generators_of([1, 2]) == generators_of(object()) == {}


def test_what_cannot_be_asked_is_no_generator() -> None:
    assert state_text(random.SystemRandom()) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[1]",
        json.dumps({"generator": "numpy", "state": {}}),
        json.dumps({"generator": "random", "state": [3, [1, 2], None]}),
        json.dumps({"generator": "random", "state": None}),
    ],
)
def test_what_is_no_state_of_such_a_generator_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="this is no state of Random: "):
        set_state(random.Random(1), text)
