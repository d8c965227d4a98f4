"""Slots: free when nobody holds them and the last view is dead, and bounded in number and size."""

from __future__ import annotations

import gc
import mmap
import os
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataloader.slots import (
    DESCRIPTORS_PER_SLOT,
    GROWTH,
    MAX_SLOTS,
    RECENT_RESULTS,
    SMALLEST_BYTES,
    TRIM_FACTOR,
    Slot,
    SlotPool,
    size_class,
)
from supervisor.linux import create_memory_file
from tests.forks import in_child
from tests.limits import descriptor_limit, descriptors_without_garbage
from tests.processes import open_descriptors, shared_mappings

SIZE = size_class(100_000)


def memory_file(size_bytes: int = SIZE) -> int:
    """Make what a worker makes for a batch."""
    fd = create_memory_file("test-slot")
    os.ftruncate(fd, size_bytes)
    return fd


def adopt(pool: SlotPool, size_bytes: int = SIZE) -> Slot:
    return pool.adopt(memory_file(size_bytes), size_bytes)


@pytest.fixture
def pool() -> SlotPool:
    return SlotPool(in_flight=3)


# ---- sizes ---------------------------------------------------------------------------------------


@given(st.integers(0, 1 << 34))
def test_a_size_class_fits_and_wastes_at_most_a_quarter(wanted_bytes: int) -> None:
    size_bytes = size_class(wanted_bytes)
    assert size_bytes >= max(wanted_bytes, SMALLEST_BYTES)
    assert size_bytes % mmap.PAGESIZE == 0
    assert size_bytes <= max(SMALLEST_BYTES, wanted_bytes * GROWTH + mmap.PAGESIZE)
    assert size_class(size_bytes) <= size_bytes * GROWTH + mmap.PAGESIZE


@given(st.integers(0, 1 << 24), st.integers(0, 1 << 24))
def test_size_classes_grow_with_what_is_wanted(one: int, other: int) -> None:
    assert (size_class(one) <= size_class(other)) or one > other


# ---- when a slot is free -------------------------------------------------------------------------


def test_a_new_slot_is_free_until_someone_holds_it(pool: SlotPool) -> None:
    slot = adopt(pool)
    assert slot.is_free
    slot.holder = "a lease"
    assert not slot.is_free
    assert pool.pick() is None
    slot.holder = None
    assert pool.pick() is slot


def test_a_slot_is_free_only_when_its_last_view_is_dead(pool: SlotPool) -> None:
    slot = adopt(pool)
    array = np.frombuffer(slot.view(), np.uint8)
    slice_of_a_slice = array[10:100].reshape(9, 10)[2:4]
    del array
    assert slot.has_view
    assert pool.pick() is None
    assert slice_of_a_slice.shape == (2, 10)
    del slice_of_a_slice
    assert not slot.has_view
    assert pool.pick() is slot


VIEWS: list[Callable[[memoryview], object]] = [
    lambda memory: memory[5:6],
    lambda memory: memory.toreadonly(),
    lambda memory: np.frombuffer(memory, np.float32).view(np.uint8),
    lambda memory: np.frombuffer(memory, np.float32)[::-2].T,
    lambda memory: np.frombuffer(memory, np.uint8).data,
    lambda memory: iter(np.frombuffer(memory, np.uint8)),
]


def test_views_of_every_kind_keep_a_slot(pool: SlotPool) -> None:
    slot = adopt(pool)
    for make in VIEWS:
        view = make(slot.view())
        assert slot.has_view
        del view
        assert not slot.has_view


def test_a_view_is_the_memory_itself(pool: SlotPool) -> None:
    slot = adopt(pool)
    slot.view()[7] = 42
    assert os.pread(slot.fd, 1, 7) == b"\x2a"
    assert slot.view().nbytes == slot.size_bytes


def test_the_last_of_two_views_counts(pool: SlotPool) -> None:
    """A batch that an interrupt kept from being delivered is opened again."""
    slot = adopt(pool)
    first = slot.view()
    second = slot.view()
    del first
    assert slot.has_view
    del second
    assert slot.is_free


def test_a_view_outlives_its_pool() -> None:
    gc.collect()
    before = shared_mappings()
    pool = SlotPool(in_flight=1)
    array = np.frombuffer(adopt(pool).view(), np.uint8)
    array[:] = 7
    del pool
    assert (array == 7).all()
    assert shared_mappings() == before + 1
    del array
    assert shared_mappings() == before


# ---- descriptors ---------------------------------------------------------------------------------


def test_a_slot_owns_its_descriptor() -> None:
    before = descriptors_without_garbage()
    pool = SlotPool(in_flight=1)
    slot = adopt(pool)
    assert len(open_descriptors()) == len(before) + DESCRIPTORS_PER_SLOT
    del slot, pool
    assert open_descriptors() == before


def test_the_same_descriptor_is_the_same_slot(pool: SlotPool) -> None:
    """A message that was interrupted is dealt with again."""
    fd = memory_file()
    assert pool.adopt(fd, SIZE) is pool.adopt(fd, SIZE)
    assert len(pool) == 1


def test_a_slot_is_no_garbage_for_the_collector() -> None:
    gc.collect()
    gc.disable()
    try:
        before = descriptors_without_garbage()
        pool = SlotPool(in_flight=1)
        view = adopt(pool).view()
        del view, pool
        assert open_descriptors() == before
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("limit", "in_flight", "max_slots", "max_views"),
    [
        (4096, 5, MAX_SLOTS, MAX_SLOTS - 5),
        (128, 5, 32 // DESCRIPTORS_PER_SLOT, 32 // DESCRIPTORS_PER_SLOT - 5),
        (128, 50, 32 // DESCRIPTORS_PER_SLOT, 1),
        (40, 5, max(2, 10 // DESCRIPTORS_PER_SLOT), max(1, 10 // DESCRIPTORS_PER_SLOT - 5)),
    ],
)
def test_slots_take_a_quarter_of_the_descriptors(
    limit: int, in_flight: int, max_slots: int, max_views: int
) -> None:
    with descriptor_limit(limit):
        pool = SlotPool(in_flight)
    assert (pool.max_slots, pool.max_views) == (max_slots, max_views)


def test_beyond_the_bound_the_user_gets_copies(pool: SlotPool) -> None:
    held = []
    for _ in range(pool.max_views):
        assert not pool.wants_copy()
        held.append(adopt(pool).view())
    assert pool.wants_copy()
    held.pop()
    assert not pool.wants_copy()


# ---- which slot ----------------------------------------------------------------------------------


def test_the_smallest_slot_that_fits_is_lent(pool: SlotPool) -> None:
    large, fitting, small = (adopt(pool, size_class(n)) for n in (400_000, 200_000, 100_000))
    assert pool.pick() is small  # nothing is known yet
    pool.note_use(150_000)
    assert pool.pick() is fitting
    fitting.holder = "a lease"
    assert pool.pick() is large
    large.holder = "a lease"
    assert pool.pick() is small  # too small, but warm: another batch may be smaller


def test_an_empty_pool_lends_nothing(pool: SlotPool) -> None:
    assert pool.pick() is None


def test_slots_beyond_the_bound_are_let_go_the_smallest_first(pool: SlotPool) -> None:
    pool.note_use(SIZE)
    slots = [adopt(pool, SIZE + mmap.PAGESIZE * (i % 7)) for i in range(MAX_SLOTS + 5)]
    held = slots[0].view()
    slots[7].holder = "a lease"
    dropped = pool.trim()
    expected = [slots[i].id for i in (14, 21, 28, 35, 42)]
    assert sorted(dropped) == expected
    assert len(pool) == MAX_SLOTS
    assert held.nbytes


def test_what_is_in_use_is_never_let_go(pool: SlotPool) -> None:
    held = [adopt(pool).view() for _ in range(MAX_SLOTS + 5)]
    assert pool.trim() == []
    assert len(pool) == len(held)


def test_slots_far_larger_than_what_is_sent_are_let_go(pool: SlotPool) -> None:
    small, large = adopt(pool, SIZE), adopt(pool, 10 * SIZE)
    pool.note_use(9 * SIZE)
    assert pool.trim() == []
    for _ in range(RECENT_RESULTS):
        pool.note_use(SIZE)
    assert large.size_bytes > TRIM_FACTOR * size_class(SIZE)
    assert pool.trim() == [large.id]
    assert list(pool) == [small]


def test_letting_go_closes_the_descriptor(pool: SlotPool) -> None:
    before = descriptors_without_garbage()
    adopt(pool, 10 * SIZE)
    pool.note_use(SIZE)
    pool.trim()
    assert open_descriptors() == before


# ---- forks ---------------------------------------------------------------------------------------


def test_what_is_seen_at_a_fork_is_never_lent_again(pool: SlotPool) -> None:
    seen, unseen = adopt(pool), adopt(pool)
    array = np.frombuffer(seen.view(), np.uint8)
    array[:] = 3

    assert set(in_child(array.tolist)) == {3}
    del array
    assert not seen.has_view
    assert not seen.is_free
    assert unseen.is_free
    assert pool.pick() is unseen


def test_retired_slots_are_let_go_once_they_are_not_seen_any_more(pool: SlotPool) -> None:
    retired, other = adopt(pool), adopt(pool)
    pool.note_use(SIZE)
    view = retired.view()
    in_child(int)
    assert pool.trim() == []  # the user has it: it still counts
    del view
    assert pool.trim() == [retired.id]
    assert list(pool) == [other]


def test_retired_slots_count_as_seen_by_the_user(pool: SlotPool) -> None:
    held = [adopt(pool).view() for _ in range(pool.max_views)]
    in_child(int)
    pool.trim()
    assert pool.wants_copy()
    held.clear()
    assert not pool.wants_copy()
