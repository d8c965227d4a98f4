"""Memory for the batch in hand: where arrays lie, and that they are numpy's own in all else."""

import mmap
import os
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataloader import arena, empty
from dataloader.arena import ALIGNMENT_BYTES, SMALL_BYTES, Arena, address_of

ROOM_BYTES = 1 << 20


@pytest.fixture
def memory() -> memoryview:
    """Shared memory, as a slot has; it starts at a page."""
    return memoryview(mmap.mmap(-1, ROOM_BYTES))


@given(st.lists(st.integers(0, 5000), max_size=30))
def test_what_is_taken_is_aligned_and_apart(sizes: list[int]) -> None:
    room = np.zeros(100_000 + ALIGNMENT_BYTES, np.uint8)
    start = -address_of(room) % ALIGNMENT_BYTES
    mine = Arena(room[start : start + 100_000].data)
    end = 0
    for wanted_bytes in sizes:
        buffer = mine.take(wanted_bytes)
        if buffer is None:
            assert -(-end // ALIGNMENT_BYTES) * ALIGNMENT_BYTES + wanted_bytes > 100_000
            continue
        assert buffer.nbytes == wanted_bytes
        if wanted_bytes:
            offset = address_of(buffer) - address_of(room) - start
            assert offset % ALIGNMENT_BYTES == 0
            assert offset >= end
            assert mine.offset_of(buffer) == offset
            end = offset + wanted_bytes


def test_all_of_it_can_be_taken_and_no_more(memory: memoryview) -> None:
    mine = Arena(memory)
    assert mine.take(ROOM_BYTES + 1) is None
    assert mine.take(ROOM_BYTES) is not None
    assert mine.take(1) is None


def test_an_arena_of_nothing_gives_nothing() -> None:
    assert Arena(memoryview(b"")).take(1) is None


def test_only_what_was_given_out_has_an_offset(memory: memoryview) -> None:
    mine = Arena(memory)
    given_out = mine.take(1000)
    assert given_out is not None
    assert mine.offset_of(given_out[10:20]) == 10
    assert mine.offset_of(memory[500:1001]) is None
    assert mine.offset_of(np.zeros(10, np.uint8).data) is None


def test_without_an_arena_an_array_is_an_ordinary_one() -> None:
    assert empty((300, 300)).base is None


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        (SMALL_BYTES, "u1"),
        (np.int64(SMALL_BYTES), "u1"),
        ((64, 1024), np.uint8),
        ([64, 1024], np.uint8),
        ((3, 5000, 2), ">f8"),
        (20_000, "M8[s]"),
        (20_000, "U7"),
        (20_000, [("a", "i4"), ("b", "f8")]),
        (20_000, ("f4", (3,))),
        ((10_000,), None),
    ],
)
def test_a_large_array_lies_in_the_arena(memory: memoryview, shape: Any, dtype: Any) -> None:
    expected = np.empty(shape, dtype)
    mine = Arena(memory)
    with arena.use(mine):
        array = empty(shape, dtype)
    assert (array.shape, array.dtype) == (expected.shape, expected.dtype)
    assert array.flags.writeable
    assert address_of(memory) == array.__array_interface__["data"][0]
    assert mine.used_bytes == array.nbytes


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        (SMALL_BYTES - 1, "u1"),
        ((), "f8"),
        ((0, 100_000), "f8"),
        (100_000, "S0"),
        (100_000, object),
        (100_000, [("a", object)]),
        (ROOM_BYTES + 1, "u1"),
    ],
)
def test_another_array_is_an_ordinary_one(memory: memoryview, shape: Any, dtype: Any) -> None:
    expected = np.empty(shape, dtype)
    mine = Arena(memory)
    with arena.use(mine):
        array = empty(shape, dtype)
    assert (array.shape, array.dtype, array.base) == (expected.shape, expected.dtype, None)
    assert mine.used_bytes == 0


@pytest.mark.parametrize("shape", [-70_000, (70_000, -1), 1.5, "70000"])
def test_a_wrong_shape_is_the_error_that_numpy_gives(memory: memoryview, shape: Any) -> None:
    with pytest.raises((TypeError, ValueError)) as numpys:
        np.empty(shape, "u1")
    with arena.use(Arena(memory)), pytest.raises(numpys.type):
        empty(shape, "u1")


def test_arrays_of_one_batch_lie_apart(memory: memoryview) -> None:
    with arena.use(Arena(memory)):
        first, second = empty(SMALL_BYTES + 1, "u1"), empty(SMALL_BYTES, "u1")
        first[:], second[:] = 1, 2
    assert first.min() == first.max() == 1
    assert address_of(second) % ALIGNMENT_BYTES == 0


def test_an_arena_is_over_at_the_end_and_after_an_exception(memory: memoryview) -> None:
    with pytest.raises(ZeroDivisionError), arena.use(Arena(memory)):
        1 / 0  # noqa: B018
    assert empty(SMALL_BYTES, "u1").base is None


# ---- with others ---------------------------------------------------------------------------------

OURS, THEIRS = b"ours", b"theirs"


def test_who_agrees_with_the_others_gets_the_columns_and_nothing_else(memory: memoryview) -> None:
    mine = Arena(memory, OURS)
    assert mine.take(1) is None
    mine.agree(OURS, 1000)
    assert mine.take(1000) is not None
    assert mine.take(1) is None
    assert mine.agreed == OURS
    assert mine.take_made() == (None, 0)


def test_who_does_not_agree_gets_memory_of_its_own(memory: memoryview) -> None:
    mine = Arena(memory, THEIRS)
    mine.agree(OURS, 1000)
    room = mine.take(1000)
    assert room is not None
    room[:] = b"x" * 1000
    assert bytes(memory[:1000]) == bytes(1000)
    fd, size_bytes = mine.take_made()
    assert fd is not None
    assert (os.pread(fd, 1000, 0), os.fstat(fd).st_size) == (b"x" * 1000, size_bytes)
    os.close(fd)


def test_who_has_too_little_room_gets_more() -> None:
    mine = Arena(memoryview(b""))
    mine.agree(OURS, ROOM_BYTES)
    assert mine.take(ROOM_BYTES) is not None
    mine.close()
    assert mine.take_made() == (None, 0)


def test_what_nobody_took_is_closed() -> None:
    before = os.listdir("/proc/self/fd")
    mine = Arena(memoryview(b""))
    mine.agree(OURS, ROOM_BYTES)
    mine.clear()
    mine.agree(OURS, 2 * ROOM_BYTES)
    mine.close()
    del mine  # and with it what is mapped
    assert os.listdir("/proc/self/fd") == before


def test_a_batch_that_is_begun_anew_agrees_anew(memory: memoryview) -> None:
    mine = Arena(memory, OURS)
    mine.agree(OURS, 1000)
    mine.clear()
    assert (mine.agreed, mine.take(1)) == (None, None)
