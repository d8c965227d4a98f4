"""The global random generators: seeded, put back, watched; set only where somebody draws."""

from __future__ import annotations

import hashlib
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from dataloader import DataLoader, Dataset, random_state
from dataloader.pieces import Seeds
from dataloader.random_state import LazySetter, Watch, kept_random_state, new_watch, set_random_state
from dataloader.torch_random import TorchWatch
from tests.equality import fingerprint


@pytest.fixture(autouse=True)
def _mine() -> Iterator[None]:
    with kept_random_state():
        yield


def draw() -> complex:
    """Draw a number from Python's generator and one from numpy's."""
    return complex(random.random(), np.random.random())


def test_the_random_state_is_final() -> None:
    set_random_state(Seeds(1, 2, 3))
    drawn = [draw() for _ in range(100)]
    digest = hashlib.sha256(np.array(drawn).tobytes()).hexdigest()
    assert digest.startswith("8f98211594255a1b")


def test_kept_random_state_is_put_back() -> None:
    set_random_state(Seeds(1, 1, 1))
    expected = draw()
    set_random_state(Seeds(1, 1, 1))
    with kept_random_state():
        set_random_state(Seeds(2, 2, 2))
        assert draw() != expected
    assert draw() == expected


def test_kept_random_state_is_put_back_after_an_exception() -> None:
    set_random_state(Seeds(1, 1, 1))
    expected = draw()
    set_random_state(Seeds(1, 1, 1))
    with pytest.raises(ZeroDivisionError), kept_random_state():
        draw() / 0
    assert draw() == expected


def test_kept_random_state_keeps_the_cached_gaussian() -> None:
    """numpy makes normal numbers in pairs and keeps the second."""
    np.random.seed(5)
    first, second = np.random.normal(), np.random.normal()
    np.random.seed(5)
    assert np.random.normal() == first
    with kept_random_state():
        np.random.seed(6)
    assert np.random.normal() == second


TORCH_PROGRAM = """
import torch
from dataloader.pieces import Seeds
from dataloader.torch_random import TorchWatch
from dataloader.random_state import kept_random_state, set_random_state

set_random_state(Seeds(1, 2, 2**64 - 1))
first = torch.rand(3).tolist()
set_random_state(Seeds(1, 2, 2**64 - 1))
assert torch.rand(3).tolist() == first

with kept_random_state():
    set_random_state(Seeds(1, 2, 5))
    assert torch.rand(3).tolist() != first
set_random_state(Seeds(1, 2, 2**64 - 1))
with kept_random_state():
    torch.rand(3)
assert torch.rand(3).tolist() == first
"""


@pytest.mark.slow
@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_torch_is_seeded_and_kept_too() -> None:
    """In a process of its own: once torch is loaded, it is in every test that follows."""
    subprocess.run([sys.executable, "-c", TORCH_PROGRAM], check=True, timeout=60)


# ---- watching ------------------------------------------------------------------------------------

TOUCHES: dict[str, Callable[[], Any]] = {
    "random": random.random,
    "getrandbits": lambda: random.getrandbits(3),
    "gauss": lambda: random.gauss(0, 1),
    "seed": lambda: random.seed(5),
    "624 words": lambda: [random.getrandbits(32) for _ in range(624)],
    "numpy": np.random.random,
    "numpy normal": np.random.normal,
    "numpy integers": lambda: np.random.randint(2),
    "numpy shuffle": lambda: np.random.shuffle([1, 2, 3]),
    "numpy seed": lambda: np.random.seed(5),
    "numpy 624 words": lambda: np.random.bytes(4 * 624),
    "another generator": lambda: np.random.set_bit_generator(np.random.PCG64()),  # type: ignore[attr-defined]
}


@pytest.fixture
def watch() -> Iterator[Watch]:
    watch = Watch.of_global_generators()
    assert watch is not None
    yield watch
    np.random.set_bit_generator(watch._generator)  # type: ignore[attr-defined]


@pytest.mark.parametrize("touch", TOUCHES)
def test_any_draw_is_seen(watch: Watch, touch: str) -> None:
    set_random_state(Seeds(1, 2, 3))
    watch.begin()
    assert not watch.is_touched()
    TOUCHES[touch]()
    assert watch.is_touched()


@pytest.mark.parametrize(
    "others", [np.random.default_rng(0).random, random.Random(0).random], ids=["numpy", "python"]
)
def test_other_generators_do_not_count(watch: Watch, others: Callable[[], Any]) -> None:
    watch.begin()
    others()
    assert not watch.is_touched()


def test_where_the_state_lies_elsewhere_nobody_watches(monkeypatch: pytest.MonkeyPatch, watch: Watch) -> None:
    monkeypatch.setattr(random_state, "_expected", lambda: [b"something else"])
    monkeypatch.setattr(random_state, "_FOUND", Watch.of_global_generators())
    assert new_watch() is None
    setter = LazySetter()
    for _ in range(100):
        assert setter.run(lambda: "in pieces", lambda: "as a whole") == "in pieces"


def test_another_global_generator_is_not_watched(watch: Watch) -> None:
    np.random.set_bit_generator(np.random.PCG64())  # type: ignore[attr-defined]
    assert Watch.of_global_generators() is None
    assert new_watch() is None


def test_another_global_generator_of_the_same_kind_is_found(watch: Watch) -> None:
    np.random.set_bit_generator(np.random.MT19937(5))  # type: ignore[attr-defined]
    found = new_watch()
    assert found is not None
    found.begin()
    np.random.random()
    assert found.is_touched()


def test_watches_do_not_disturb_one_another(watch: Watch) -> None:
    first, second = new_watch(), new_watch()
    assert first is not None
    assert second is not None
    first.begin()
    random.random()
    second.begin()
    assert (first.is_touched(), second.is_touched()) == (True, False)


# ---- lazy ----------------------------------------------------------------------------------------


class Batches:
    """Counts how batches are made: each of one piece, which draws if it is told to."""

    def __init__(self) -> None:
        self.setter = LazySetter()
        self.made: list[str] = []

    def make(self, *, draws: bool = False, raises: bool = False) -> float:
        return self.setter.run(
            lambda: self._in_pieces(draws, raises), lambda: self._load("whole", draws, raises)
        )

    def _in_pieces(self, draws: bool, raises: bool) -> float:
        self.setter.set(Seeds(1, 2, 3))
        try:
            return self._load("pieces", draws, raises)
        finally:
            self.setter.end()

    def _load(self, how: str, draws: bool, raises: bool) -> float:
        self.made.append(how)
        drawn = random.random() if draws else 0.0
        if raises:
            raise ValueError(f"{drawn}")
        return drawn

    def be_idle(self) -> None:
        for _ in range(random_state.UNTOUCHED_BATCHES):
            self.make()
        assert self.made == ["pieces"] * random_state.UNTOUCHED_BATCHES
        self.made.clear()


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> Batches:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    return Batches()


def drawn_with(seeds: Seeds) -> float:
    set_random_state(seeds)
    return random.random()


EXPECTED = drawn_with(Seeds(1, 2, 3))


def test_what_does_not_draw_is_made_as_a_whole_after_a_while(batches: Batches) -> None:
    batches.be_idle()
    assert [batches.make() for _ in range(3)] == [0.0] * 3
    assert batches.made == ["whole"] * 3


def test_what_draws_from_the_first_is_never_made_twice(batches: Batches) -> None:
    assert {batches.make(draws=True)} | {batches.make(draws=True) for _ in range(50)} == {EXPECTED}
    assert batches.made == ["pieces"] * 51


def test_the_first_that_draws_is_made_again_and_then_all_are_set(batches: Batches) -> None:
    batches.be_idle()
    batches.make()
    assert batches.make(draws=True) == EXPECTED
    for _ in range(50):
        batches.make()
    assert batches.made == ["whole", "whole", *["pieces"] * 51]


def test_what_draws_and_raises_raises_what_it_should(batches: Batches) -> None:
    batches.be_idle()
    with pytest.raises(ValueError, match=f"^{EXPECTED}$"):
        batches.make(draws=True, raises=True)
    assert batches.made == ["whole", "pieces"]


def test_what_raises_and_does_not_draw_is_not_made_again(batches: Batches) -> None:
    batches.be_idle()
    with pytest.raises(ValueError, match=r"^0\.0$"):
        batches.make(raises=True)
    assert batches.made == ["whole"]


def test_a_draw_between_batches_is_not_taken_for_the_next_ones(batches: Batches) -> None:
    batches.be_idle()
    np.random.normal()  # its twin is kept, and would be given without a draw
    batches.make()
    assert batches.made == ["whole", "pieces"]


@pytest.mark.parametrize("watched", [False, True])
def test_once_torch_is_loaded_its_state_is_set_until_it_proves_idle(
    watched: bool, batches: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    class FakeWatch:
        def begin(self) -> None: ...

        def is_touched(self) -> bool:
            return False

    batches.be_idle()
    monkeypatch.setitem(sys.modules, "torch", object())
    watch = FakeWatch() if watched else None
    monkeypatch.setattr(TorchWatch, "of_default_generator", lambda torch: watch)
    monkeypatch.setattr(random_state, "set_random_state", lambda seeds: None)
    for _ in range(50):
        batches.make()
    idle = 50 - random_state.UNTOUCHED_BATCHES
    assert batches.made == ["pieces"] * (50 if not watched else 50 - idle) + ["whole"] * (idle * watched)


class SeldomDrawing(Dataset[Any]):
    """Draws in few samples; collating draws in few batches too."""

    def __len__(self) -> int:
        return 3000

    def __getitem__(self, index: int) -> Any:
        return index, random.random() if index % 1000 == 700 else np.random.normal() if index == 2950 else 0.0


def collate(samples: list[Any]) -> list[Any]:
    return [*samples, random.random()] if samples[0][0] % 640 == 512 else samples


@pytest.mark.parametrize("num_workers", [1, 3])
def test_seldom_draws_change_no_byte(num_workers: int) -> None:
    def epoch(**arguments: Any) -> Any:
        with DataLoader(SeldomDrawing(), 16, collate_fn=collate, seed=0, shuffle=True, **arguments) as loader:
            return fingerprint(list(loader))

    assert epoch() == epoch(num_workers=num_workers, multiprocessing_context="fork")
