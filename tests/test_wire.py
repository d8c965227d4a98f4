"""What consumer and workers send each other arrives as it was, whatever its size, type and memory layout."""

from __future__ import annotations

import os
import pickle
import select
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataloader import arena, wire
from dataloader.arena import ALIGNMENT_BYTES, SMALL_BYTES, Arena, address_of
from dataloader.recipe import Order
from dataloader.slots import SMALLEST_BYTES, Slot, size_class
from dataloader.wire import BATCH, CANCELLED, ERROR, MAX_BUFFERS, SPAN_BYTES, Result, Task
from supervisor.channel import MAX_MESSAGE_BYTES, Channel, Message
from supervisor.linux import create_memory_file
from supervisor.payload import PayloadError
from tests.datasets import Unloadable, Unpicklable
from tests.equality import fingerprint
from tests.limits import descriptors_without_garbage
from tests.processes import open_descriptors

SLOT_BYTES = 1 << 20
LARGE = 2 * SMALL_BYTES


def make_slot(size_bytes: int = SLOT_BYTES) -> Slot:
    fd = create_memory_file("test-slot")
    os.ftruncate(fd, size_bytes)
    slot = Slot(1, fd, size_bytes)
    slot.keep_descriptor()
    return slot


def sent(data: bytes, fd: int | None) -> Message:
    """Send a message through a real channel; return what arrives."""
    left, right = Channel.pair()
    left.send(data, [] if fd is None else [fd])
    if fd is not None:
        os.close(fd)
    message = right.receive()
    assert message is not None
    return message


class Trip:
    """A batch's way from a worker to the consumer, by a lent slot or by one that the worker makes."""

    def __init__(self, batch: Any, *, lent: Slot | None = None, copy: bool = False) -> None:
        mine = Arena(memoryview(b"") if lent is None else memoryview(lent.memory))
        message = sent(*wire.encode_batch(7, batch, mine))
        self.result = wire.decode_results(message.data)[0]
        self.slot = lent if self.result.spans else None
        if message.descriptors:
            self.slot = Slot(2, message.descriptors[0], self.result.made_bytes)
            self.slot.keep_descriptor()
        self.batch = wire.open_batch(0, self.result, self.slot, copy=copy)


# ---- tasks ---------------------------------------------------------------------------------------


def round_trip(*tasks: Task, slot_fds: tuple[int, ...] = ()) -> tuple[list[Task], list[int]]:
    data, owner = wire.encode_tasks(tasks)
    descriptors = [*slot_fds] if owner is None else [*slot_fds, owner.fileno()]
    left, right = Channel.pair()
    left.send(data, descriptors)
    message = right.receive()
    assert message is not None
    return wire.decode_tasks(message)


@given(
    st.integers(0, 2**62),
    st.integers(0, 2**64 - 1),
    st.lists(st.one_of(st.integers(), st.binary(), st.tuples(st.integers(), st.none()))),
    st.one_of(st.none(), st.tuples(st.integers(1), st.integers(1))),
    st.lists(st.integers(1)).map(tuple),
)
def test_a_task_arrives_as_it_was(
    seq: int, seed: int, indices: list[Any], slot: tuple[int, int] | None, forget: tuple[int, ...]
) -> None:
    task = Task(seq, Order(seed, 3, 4, indices), slot, False, forget)
    [arrived], descriptors = round_trip(task)
    assert arrived == task
    assert type(arrived.order) is Order
    assert descriptors == []


@pytest.mark.parametrize("count", [1, 20_000])
def test_tasks_travel_together(count: int) -> None:
    tasks = [Task(seq, Order(0, 0, seq, list(range(count))), None, False, ()) for seq in (1, 3, 4)]
    assert round_trip(*tasks) == (tasks, [])


@pytest.mark.parametrize("count", [10, 20_000, 1_000_000])
def test_indices_of_any_number_travel(count: int) -> None:
    before = descriptors_without_garbage()
    task = Task(1, Order(0, 0, 0, list(range(10**9, 10**9 + count))), None, False, ())
    assert round_trip(task) == ([task], [])
    assert open_descriptors() == before


@pytest.mark.parametrize("count", [10, 100_000])
def test_a_slot_goes_along_with_a_task_of_any_size(count: int) -> None:
    slot = make_slot()
    task = Task(1, Order(0, 0, 0, list(range(count))), (slot.id, slot.size_bytes), True, ())
    [arrived], descriptors = round_trip(task, slot_fds=(slot.fd,))
    assert arrived == task
    assert [os.fstat(fd).st_ino for fd in descriptors] == [os.fstat(slot.fd).st_ino]
    os.close(descriptors[0])


def test_a_task_that_just_fits_needs_no_memory_file() -> None:
    def encoded(length: int) -> tuple[bytes, select.epoll | None]:
        return wire.encode_tasks([Task(1, Order(0, 0, 0, [b"x" * length]), None, False, ())])

    rest = len(encoded(30_000)[0]) - 30_000
    data, owner = encoded(MAX_MESSAGE_BYTES - rest)
    assert (len(data), owner) == (MAX_MESSAGE_BYTES, None)
    data, owner = encoded(MAX_MESSAGE_BYTES - rest + 1)
    assert owner is not None
    assert len(data) < 100


# ---- batches -------------------------------------------------------------------------------------

DTYPES = [
    *("?", "i1", "u1", "i2", ">i2", "u4", "i8", ">u8", "f2", "f4", ">f4", "f8", "g", "c8", "c16"),
    *("S7", "U3", ">U3", "M8[s]", "m8[ns]", "V5", "O", "i4,f8", "i4,O"),
]
LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "row by row": lambda array: array,
    "column by column": np.asfortranarray,
    "every other row": lambda array: array[::2],
    "backwards": lambda array: array[::-1, ::-1],
    "transposed": lambda array: array.T,
    "one row again and again": lambda array: np.broadcast_to(array[0], array.shape),
    "empty": lambda array: array[:0],
    "one number": lambda array: array[0, 0:1].reshape(()),
}
ROOMS: dict[str, Callable[[], Slot | None]] = {
    "no slot": lambda: None,
    "too small": lambda: make_slot(SMALLEST_BYTES),
    "roomy": lambda: make_slot(8 * SLOT_BYTES),
}


def numbered(dtype: str, rows: int, columns: int) -> Any:
    numbers = np.arange(rows * columns) % 100
    if dtype in ("V5", "i4,f8", "i4,O"):
        array = np.zeros(rows * columns, dtype)
        array["f0" if array.dtype.names else ...] = numbers if array.dtype.names else b"ab"
        return array.reshape(rows, columns)
    return numbers.astype(dtype).reshape(rows, columns)


@pytest.mark.parametrize("least_bytes", [1, 2 * SMALL_BYTES])  # of the smallest layout, every other row
@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_of_every_dtype_and_layout_arrive_as_they_were(dtype: str, least_bytes: int) -> None:
    whole = numbered(dtype, 4 + least_bytes // (300 * np.dtype(dtype).itemsize), 300)
    for name, layout in LAYOUTS.items():
        array = layout(whole)
        # numpy's own pickles lose the byte order of what is not contiguous: ours need not be better.
        expected = array if array.flags.forc else pickle.loads(pickle.dumps(array, protocol=5))
        for room in ROOMS.values():
            arrived = Trip([array], lent=room()).batch[0]
            assert fingerprint(arrived) == fingerprint(expected), name
            assert arrived.tolist() == array.tolist(), name
            assert arrived.flags.f_contiguous or not array.flags.fnc, name


@pytest.mark.parametrize("size", [100, LARGE])
@pytest.mark.parametrize("copy", [False, True])
@pytest.mark.parametrize("writeable", [False, True])
def test_whether_an_array_can_be_written_is_kept(size: int, copy: bool, writeable: bool) -> None:
    array = np.zeros(size, np.uint8)
    array.flags.writeable = writeable
    arrived = Trip(array, copy=copy).batch
    assert arrived.flags.writeable is writeable


def test_small_arrays_travel_inline_and_are_no_views() -> None:
    slot = make_slot()
    trip = Trip([np.ones(SMALL_BYTES - 10_000, np.uint8), np.ones(3)], lent=slot)
    assert trip.result.spans == ()
    assert trip.slot is None
    assert not slot.has_view


def test_a_small_array_beside_large_ones_owns_its_memory() -> None:
    slot = make_slot()
    trip = Trip({"large": np.ones(LARGE, np.uint8), "small": np.ones(SMALL_BYTES - 1, np.uint8)}, lent=slot)
    small = trip.batch.pop("small")
    assert slot.has_view
    del trip
    assert not slot.has_view
    assert small.all()


def test_large_arrays_are_views_of_the_slot() -> None:
    slot = make_slot()
    trip = Trip(np.zeros(LARGE, np.uint8), lent=slot)
    assert trip.slot is slot
    slot.memory[:LARGE] = b"\x05" * LARGE
    assert (trip.batch == 5).all()
    assert slot.has_view


def test_copies_are_no_views() -> None:
    slot = make_slot()
    batch = Trip(np.full(LARGE, 3, np.uint8), lent=slot, copy=True).batch
    assert not slot.has_view
    slot.memory[:LARGE] = bytes(LARGE)
    assert (batch == 3).all()


@pytest.mark.parametrize("copy", [False, True])
@pytest.mark.parametrize("room", ROOMS)
def test_large_arrays_are_aligned(room: str, copy: bool) -> None:
    arrays = [np.full(LARGE + odd, odd, np.uint8) for odd in (1, 3, 17, 63)]
    batch = Trip(arrays, lent=ROOMS[room](), copy=copy).batch
    assert [address_of(array) % ALIGNMENT_BYTES for array in batch] == [0, 0, 0, 0]
    assert fingerprint(batch) == fingerprint(arrays)


def test_what_was_collated_in_the_slot_is_not_copied_again() -> None:
    slot = make_slot()
    mine = Arena(memoryview(slot.memory))
    with arena.use(mine):
        batch = arena.empty(LARGE, np.uint8)
        batch[:] = 9
        data, fd = wire.encode_batch(1, {"whole": batch, "part": batch[-SMALL_BYTES:]}, mine)
    assert fd is None
    result = wire.decode_results(data)[0]
    assert result.spans == ((0, LARGE, False), (LARGE - SMALL_BYTES, SMALL_BYTES, False))
    assert result.used_bytes == LARGE
    arrived = wire.open_batch(0, result, slot, copy=False)
    assert (arrived["whole"] == 9).all()
    assert np.may_share_memory(arrived["whole"], arrived["part"])


def test_what_was_collated_in_a_slot_that_is_too_small_moves_whole() -> None:
    slot = make_slot(size_class(LARGE))
    mine = Arena(memoryview(slot.memory))
    with arena.use(mine):
        inside, outside = arena.empty(LARGE, np.uint8), arena.empty(LARGE, np.uint8)
        inside[:], outside[:] = 1, 2
        message = sent(*wire.encode_batch(1, [inside, outside], mine))
    result = wire.decode_results(message.data)[0]
    assert result.made_bytes == os.fstat(message.descriptors[0]).st_size == size_class(result.used_bytes)
    made = Slot(2, message.descriptors[0], result.made_bytes)
    made.keep_descriptor()
    arrived = wire.open_batch(0, result, made, copy=False)
    assert fingerprint(arrived) == fingerprint([np.full(LARGE, 1, np.uint8), np.full(LARGE, 2, np.uint8)])


@pytest.mark.parametrize("copy", [False, True])
@pytest.mark.parametrize("room", ROOMS)
@pytest.mark.parametrize("length", [1000, 60_000, 62_000, 66_000, 1_000_000])
def test_a_pickle_of_any_size_travels(length: int, room: str, copy: bool) -> None:
    batch = ["x" * length, np.arange(LARGE)]
    assert fingerprint(Trip(batch[:1], lent=ROOMS[room](), copy=copy).batch) == fingerprint(batch[:1])
    assert fingerprint(Trip(batch, lent=ROOMS[room](), copy=copy).batch) == fingerprint(batch)


@pytest.mark.parametrize("count", [100, MAX_BUFFERS - 1, MAX_BUFFERS, MAX_BUFFERS + 10])
def test_many_large_arrays_travel(count: int) -> None:
    """As many as ``collate_fn=list`` makes of a large batch: more than a message can list."""
    slot = make_slot()
    mine = Arena(memoryview(slot.memory))
    with arena.use(mine):
        whole = arena.empty(LARGE + count, np.uint8)
        whole[:] = np.arange(LARGE + count) % 251
        batch = [whole[i : i + SMALL_BYTES] for i in range(count)]
        message = sent(*wire.encode_batch(1, batch, mine))
    result = wire.decode_results(message.data)[0]
    used = slot
    if message.descriptors:
        used = Slot(2, message.descriptors[0], result.made_bytes)
        used.keep_descriptor()
    arrived = wire.open_batch(0, result, used, copy=False)
    assert len(arrived) == count
    assert all(np.array_equal(one, other) for one, other in zip(arrived, batch, strict=True))


def test_a_list_of_spans_is_as_short_as_it_is_thought_to_be() -> None:
    furthest = (2**47 - 1, 2**47 - 1, True)  # an address has 47 bits
    spans = tuple((offset - i, length, flag) for i, (offset, length, flag) in enumerate([furthest] * 1000))
    assert len(pickle.dumps(spans, 5)) < 1000 * SPAN_BYTES


def test_lambdas_and_local_classes_travel() -> None:
    class Local:
        value = 5

    batch = Trip([lambda x: x + 1, Local(), np.zeros(LARGE)]).batch
    assert (batch[0](1), batch[1].value, batch[2].shape) == (2, 5, (LARGE,))


def test_an_unpicklable_batch_raises_where_it_is_encoded() -> None:
    before = descriptors_without_garbage()
    with pytest.raises(TypeError, match="an Unpicklable cannot be pickled"):
        wire.encode_batch(1, [np.zeros(LARGE), Unpicklable()], Arena(memoryview(b"")))
    assert open_descriptors() == before


def test_a_batch_that_cannot_be_rebuilt_leaves_its_slot_free() -> None:
    slot = make_slot()
    with pytest.raises(PayloadError, match="not a number"):
        Trip([np.zeros(LARGE), Unloadable()], lent=slot)
    assert not slot.has_view


def test_the_spans_say_how_much_of_a_slot_was_needed() -> None:
    assert Result(1, BATCH, b"", ((0, 100, False), (128, 50, True)), 0).used_bytes == 178
    assert Result(1, BATCH, b"", (), 0).used_bytes == 0


def test_errors_and_cancellations_travel() -> None:
    assert wire.decode_results(wire.encode_error(5, b"packed"))[0] == Result(5, ERROR, b"packed", (), 0)
    result = wire.decode_results(wire.encode_cancelled(6))[0]
    assert (result.seq, result.kind) == (6, CANCELLED)


def test_the_largest_error_fits_into_a_message() -> None:
    from supervisor import exceptions

    class Long(Exception):
        pass

    def recurse(depth: int) -> None:
        if not depth:
            raise Long("é" * 100_000)
        recurse(depth - 1)

    try:
        recurse(50)
    except Long as error:
        data = wire.encode_error(2**62, exceptions.pack(error, "where"))
    assert len(data) <= MAX_MESSAGE_BYTES
