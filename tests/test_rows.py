"""Large arrays are written into the batch as each sample is made; it is as if they were stacked."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dataloader import DataLoader, default_collate
from dataloader.arena import Arena
from dataloader.random_state import Setter
from dataloader.recipe import Order, Recipe
from dataloader.rows import ROW_BYTES
from supervisor.page import RECORD_BYTES, Page
from tests.datasets import Made
from tests.equality import fingerprint

COUNT = 7
SIDE = int(ROW_BYTES**0.5)


def image(i: int, dtype: Any = np.uint8) -> np.ndarray[Any, Any]:
    return np.random.default_rng(i).integers(0, 100, (SIDE, SIDE)).astype(dtype)


def stacked(samples: list[Any]) -> Any:
    """Collate without rows: what is compared with."""
    return default_collate(samples)


def batch_of(dataset: Any, arena: Arena | None, collate: Any = default_collate, **settings: Any) -> Any:
    recipe = Recipe.of(dataset, collate, in_batches=True, **settings)
    page = Page(memoryview(bytearray(RECORD_BYTES)))
    return recipe.make(Order(0, 0, 0, range(COUNT)), page, Setter(), arena)


def arena_of(size_bytes: int) -> Arena:
    return Arena(memoryview(bytearray(size_bytes)))


BYTES = COUNT * SIDE * SIDE
ARENAS = {"no arena": 0, "too small": BYTES - 1, "just one": BYTES, "ample": 10**8}
SAMPLES: dict[str, Callable[[int], Any]] = {
    "array": image,
    "tuple": lambda i: (image(i), i),
    "list": lambda i: [i, image(i)],
    "dict": lambda i: {"image": image(i), "label": i, "mask": image(i + 9, bool)},
    "two arrays": lambda i: (image(i), image(i + 100, np.float32)),
    "one array twice": lambda i: (image(5),) * 2,
    "deeper": lambda i: {"a": (image(i), {"b": image(i)})},
    "columns first": lambda i: np.asfortranarray(image(i)),
    "not native": lambda i: image(i, ">i4"),
    "types that differ": lambda i: image(i, np.float64 if i == 3 else np.float32),
    "small first": lambda i: (image(i)[:2], image(i)),
    "array scalars": lambda i: (np.float32(i), image(i)),
    "times": lambda i: image(i, "i8").view("M8[s]"),
    "masked": lambda i: np.ma.masked_array(image(i), image(i) > 50),
    "objects": lambda i: np.array([None] * ROW_BYTES, dtype=object),
    "read-only": lambda i: np.frombuffer(image(i).tobytes(), np.uint8),
}


@pytest.mark.parametrize("size_bytes", ARENAS.values(), ids=ARENAS)
@pytest.mark.parametrize("make", SAMPLES.values(), ids=SAMPLES)
def test_a_batch_is_as_if_its_samples_were_stacked(make: Callable[[int], Any], size_bytes: int) -> None:
    arena = arena_of(size_bytes) if size_bytes else None
    batch = batch_of(Made(make, COUNT), arena)
    expected = default_collate([make(i) for i in range(COUNT)])
    assert fingerprint(batch) == fingerprint(expected)


def ragged(i: int) -> Any:
    return image(i)[: SIDE - (i == 4)]


def missing(i: int) -> Any:
    return (image(i), None) if i == 2 else image(i)


@pytest.mark.parametrize("make", [ragged, missing])
def test_errors_are_those_of_stacking(make: Callable[[int], Any]) -> None:
    with pytest.raises((TypeError, ValueError)) as ours:
        batch_of(Made(make, COUNT), arena_of(10**8))
    with pytest.raises((TypeError, ValueError)) as expected:
        batch_of(Made(make, COUNT), None, stacked)
    assert (type(ours.value), str(ours.value)) == (type(expected.value), str(expected.value))


def fails_at_three(i: int) -> Any:
    if i == 3:
        raise ValueError("three")
    return image(i)


def test_a_skipped_sample_leaves_no_gap() -> None:
    survivors = batch_of(Made(fails_at_three, COUNT), arena_of(10**8), may_skip=True)
    assert np.array_equal(survivors.batch, np.stack([image(i) for i in range(COUNT) if i != 3]))


def test_no_sample_outlives_the_next() -> None:
    made: list[weakref.ref[Any]] = []
    alive: list[int] = []

    def make(i: int) -> Any:
        alive.append(sum(ref() is not None for ref in made))
        array = image(i)
        made.append(weakref.ref(array))
        return array, i

    batch_of(Made(make, COUNT), arena_of(10**8))
    assert max(alive) == 0


def test_a_batch_lies_in_the_arena_once() -> None:
    arena = arena_of(10**6)
    batch = batch_of(Made(image, COUNT), arena)
    assert arena.offset_of(batch.data.cast("B")) == 0
    assert arena.used_bytes == BYTES


def test_a_datasets_own_arrays_stay_its_own() -> None:
    own = [image(i) for i in range(COUNT)]
    batch = batch_of(own, arena_of(10**8))
    batch[:] = 0
    assert all(np.array_equal(array, image(i)) for i, array in enumerate(own))


def test_who_collates_sees_the_samples_themselves() -> None:
    own = [image(i) for i in range(COUNT)]
    seen = batch_of(own, arena_of(10**8), lambda samples: samples)
    assert all(a is b for a, b in zip(seen, own, strict=True))


class Reusing:
    """A dataset that hands out one buffer again and again."""

    def __init__(self) -> None:
        self.buffer = np.zeros(ROW_BYTES, np.uint8)

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        self.buffer[:] = index
        return self.buffer


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_dataset_may_hand_out_one_buffer_again(num_workers: int) -> None:
    with DataLoader(Reusing(), batch_size=3, num_workers=num_workers) as loader:
        assert [batch[:, 0].tolist() for batch in loader] == [[0, 1, 2], [3, 4, 5], [6]]
