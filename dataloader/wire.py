"""What consumer and workers send each other, as bytes.

A task says which batch to make and lends a slot; a result says what became of it. Tasks that are sent at the
same time are one message, of at most 64 KiB, and so are results that are sent at the same time. What does not
fit lies in memory whose descriptor goes along: large tasks in a memory file of their own, a large result in
the slot. A result is a pickle whose large buffers stay out of band, in the slot, where the consumer's arrays
will be views of them. Arrays of less than 64 KiB travel inside the pickle.
"""

from __future__ import annotations

import mmap
import os
import pickle
import select
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from dataloader import small_arrays
from dataloader.arena import ALIGNMENT_BYTES, SMALL_BYTES, Arena, address_of
from dataloader.checkpoints import Checkpoint, News, Place
from dataloader.recipe import Order
from dataloader.slots import Slot, map_shared, size_class
from dataloader.unpickling import load_batch
from supervisor import originals
from supervisor.channel import MAX_MESSAGE_BYTES, Message
from supervisor.linux import create_memory_file, create_owned_memory_file
from supervisor.payload import PayloadError

INLINE_BYTES = MAX_MESSAGE_BYTES - 4096  # leaves room for the rest of a result
SPAN_BYTES = 30  # at most, in a message
INLINE_STATE_BYTES = 2048  # of a stream, which has to fit in beside all else
ADVICE = "let the dataset and collate_fn return what can be"
MAX_BUFFERS = INLINE_BYTES // SPAN_BYTES  # arrays beyond are part of the pickle


class Task(NamedTuple):
    """What a worker is asked to do.

    Parameters:
        seq: number of the task; grows, and is never used twice.
        order: the batch.
        slot: (id, size in bytes) of the slot that is lent, or None.
        brings_slot: the slot's descriptor came along.
        forget: ids of slots that are no more.
        columns: what is to lie in the slot, which other workers write into as well; None: it is this one's.
    """

    seq: int
    order: Order
    slot: tuple[int, int] | None
    brings_slot: bool
    forget: Sequence[int]
    columns: bytes | None = None


# What a result is; plain ints, for one travels with each. WHOLE: no piece, one worker is to make all of it.
BATCH, ERROR, CANCELLED, END, WHOLE = range(5)


Span = tuple[int, int, bool]  # offset, length, read-only


class Result(NamedTuple):
    """What became of a task.

    Parameters:
        seq: of the task.
        kind: BATCH, ERROR, CANCELLED, END or WHOLE.
        body: the pickle, or the packed exception; None if it is the first span.
        spans: where in the slot each buffer lies.
        made_bytes: size of the slot that the worker made and sent along; 0 if it used the lent one, or none.
        news: of the stream, where it is a batch of one.
        columns: where rows lie, of a piece that others can share a slot with.
    """

    seq: int
    kind: int
    body: bytes | None
    spans: Sequence[Span]
    made_bytes: int
    news: News | None = None
    columns: bytes | None = None

    @property
    def moved_bytes(self) -> int:
        """How many bytes of it were moved."""
        inline = 0 if self.body is None else len(self.body)
        return inline + sum([length for _, length, _ in self.spans]) if self.spans else inline

    @property
    def used_bytes(self) -> int:
        """How much of a slot the result needs."""
        used_bytes = max((offset + length for offset, length, _ in self.spans), default=0)
        if self.news is not None and isinstance(self.news.state, tuple):
            used_bytes = max(used_bytes, sum(self.news.state))
        return used_bytes


# ---- tasks ---------------------------------------------------------------------------------------


def encode_tasks(tasks: Sequence[Task]) -> tuple[bytes, select.epoll | None]:
    """Return the message and, if the tasks are too large for one, the owner of its memory file.

    One that brings a slot goes alone.
    """
    data = pickle.dumps([(seq, _plain(order), *rest) for seq, order, *rest in tasks], 5)
    if len(data) <= MAX_MESSAGE_BYTES:
        return data, None
    owner = create_owned_memory_file("tasks")
    os.ftruncate(owner.fileno(), len(data))
    with mmap.mmap(owner.fileno(), len(data)) as memory:
        memory[:] = data
    return pickle.dumps(len(data)), owner


def _plain(order: Order) -> tuple[Any, ...]:
    """Return ``order`` without its classes, whose names would take their time."""
    place = order.place
    if place is None:
        return tuple(order)
    *where, resume = place
    return (*order[:-1], (*where, resume if resume is None else tuple(resume)))


def _order(plain: tuple[Any, ...]) -> Order:
    order = Order(*plain)
    if order.place is None:
        return order
    run, stream, turn, resume = order.place
    known = None if resume is None else Checkpoint(*resume)
    return order._replace(place=Place(run, stream, turn, known))


def decode_tasks(message: Message) -> tuple[list[Task], list[int]]:
    """Return the tasks, and the descriptors that are the slot's of the only one."""
    content, descriptors = pickle.loads(message.data), message.descriptors
    if isinstance(content, int):
        *descriptors, fd = descriptors
        with mmap.mmap(fd, content, access=mmap.ACCESS_READ) as memory:
            content = pickle.loads(memory)
        os.close(fd)
    return [Task(seq, _order(order), *rest) for seq, order, *rest in content], descriptors


# ---- results, in the worker ----------------------------------------------------------------------


class Dump(Protocol):
    """Pickles, leaving those buffers out for which ``buffer_callback`` returns False."""

    def __call__(
        self, value: Any, /, protocol: int, *, buffer_callback: Callable[[pickle.PickleBuffer], object]
    ) -> bytes: ...


DUMPS: Sequence[Dump] = (small_arrays.dumps, originals.dumps)


def encode_batch(
    seq: int, batch: Any, arena: Arena, dumps: Sequence[Dump] = DUMPS, news: News | None = None
) -> tuple[bytes, int | None]:
    """Return the message for a batch and, where the arena had no room, the memory file that holds it.

    ``dumps``: what pickles it; the next is tried where one cannot.

    Raises PayloadError, which names the part, if the batch cannot be pickled.
    """
    buffers: list[memoryview] = []
    pickled = _pickled(batch, buffers, dumps)
    body: bytes | None = pickled
    if len(pickled) + len(buffers) * SPAN_BYTES > INLINE_BYTES:
        buffers.insert(0, memoryview(pickled))
        body = None
    if news is not None:
        return _encode_with_news((seq, BATCH, body), buffers, arena, news)
    if not buffers:
        return pickle.dumps((seq, BATCH, body, (), 0), 5), None
    placed, fd, made_bytes = _place(buffers, arena)
    if arena.agreed is not None:
        return pickle.dumps((seq, BATCH, body, placed, made_bytes, None, arena.agreed), 5), fd
    return pickle.dumps((seq, BATCH, body, placed, made_bytes), 5), fd


def encode_whole(seq: int) -> bytes:
    return pickle.dumps((seq, WHOLE, b"", (), 0), 5)


def encode_error(seq: int, packed: bytes) -> bytes:
    return pickle.dumps((seq, ERROR, packed, (), 0), 5)


def encode_stream_error(seq: int, packed: bytes, arena: Arena, news: News) -> tuple[bytes, int | None]:
    """Return the message for an exception, and the memory file that the stream's state needs, if any."""
    return _encode_with_news((seq, ERROR, packed), [], arena, news)


def encode_end(seq: int) -> bytes:
    return pickle.dumps((seq, END, b"", (), 0), 5)


def _encode_with_news(
    head: tuple[int, int, bytes | None], buffers: list[memoryview], arena: Arena, news: News
) -> tuple[bytes, int | None]:
    """Encode what also tells of a stream, whose state goes beside the batch's buffers if it is large."""
    state = news.state
    assert not isinstance(state, tuple)
    is_large = state is not None and len(state) > INLINE_STATE_BYTES
    if state is not None and is_large:
        buffers.append(memoryview(state))
    placed, fd, made_bytes = _place(buffers, arena) if buffers else ((), None, 0)
    if is_large:
        news = news._replace(state=placed[-1][:2])
        placed = placed[:-1]
    return pickle.dumps((*head, placed, made_bytes, tuple(news)), 5), fd


def encode_cancelled(seq: int) -> bytes:
    return pickle.dumps((seq, CANCELLED, b"", (), 0), 5)


def _pickled(batch: Any, buffers: list[memoryview], dumps: Sequence[Dump]) -> bytes:
    """Pickle ``batch``, its large buffers left out."""

    def keep_in_band(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < SMALL_BYTES or len(buffers) == MAX_BUFFERS:
            return True
        buffers.append(raw)
        return False

    for dump in dumps:
        try:
            return dump(batch, protocol=5, buffer_callback=keep_in_band)
        except Exception as failure:
            buffers.clear()
            error = failure
    raise PayloadError.about({"batch": batch}, ADVICE) or error


def _place(buffers: list[memoryview], arena: Arena) -> tuple[tuple[Span, ...], int | None, int]:
    """Put ``buffers`` into the arena's slot, or all of them into a new one; return where, and the new one."""
    spans = _place_in(arena, buffers)
    if spans is not None:
        return spans, *arena.take_made()
    arena.agreed = None
    size_bytes = size_class(sum(buffer.nbytes + ALIGNMENT_BYTES for buffer in buffers))
    fd = create_memory_file("batch")
    os.ftruncate(fd, size_bytes)
    spans = _place_in(Arena(memoryview(map_shared(fd, size_bytes))), buffers)
    assert spans is not None
    return spans, fd, size_bytes


def _place_in(arena: Arena, buffers: list[memoryview]) -> tuple[Span, ...] | None:
    spans = []
    for buffer in buffers:
        offset = arena.offset_of(buffer)
        if offset is None:
            room = arena.take(buffer.nbytes)
            if room is None:
                return None
            _copy(room, buffer)
            offset = arena.used_bytes - buffer.nbytes
        spans.append((offset, buffer.nbytes, buffer.readonly))
    return tuple(spans)


def _copy(target: memoryview, source: memoryview) -> None:
    np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8))


def join_results(encoded: Sequence[bytes]) -> bytes:
    """Return one message of several results, none of which brings a descriptor."""
    return encoded[0] if len(encoded) == 1 else pickle.dumps(encoded, 5)


# ---- results, in the consumer --------------------------------------------------------------------


def decode_results(data: bytes) -> list[Result]:
    """Return the results in a message; what they hold is not unpickled yet."""
    content = pickle.loads(data)
    return [*map(_result, map(pickle.loads, content))] if type(content) is list else [_result(content)]


def _result(plain: tuple[Any, ...]) -> Result:
    result = Result(*plain)
    return result if result.news is None else result._replace(news=News(*result.news))


def open_batch(number: int, result: Result, slot: Slot | None, *, copy: bool) -> Any:
    """Return batch ``number``. Its large arrays are views of ``slot``, or private copies.

    Raises PayloadError, which names the class, if it cannot be unpickled.
    """
    return open_in(number, result, None if slot is None else slot.view(), copy=copy)


def open_in(number: int, result: Result, memory: memoryview | None, *, copy: bool) -> Any:
    """Return what ``open_batch`` does, of a slot that is seen already."""
    if memory is None:
        assert result.body is not None
        return load_batch(number, result.body, ())
    body, spans = result.body, result.spans
    if body is None:
        (offset, length, _), *spans = spans
        body = bytes(memory[offset : offset + length])
    return load_batch(number, body, [_buffer(memory, span, copy) for span in spans])


def _buffer(memory: memoryview, span: Span, copy: bool) -> memoryview:
    offset, length, readonly = span
    view = memory[offset : offset + length]
    buffer = _private(view) if copy else view
    return buffer.toreadonly() if readonly else buffer


def _private(view: memoryview) -> memoryview:
    """Return an aligned copy."""
    room = np.empty(view.nbytes + ALIGNMENT_BYTES, np.uint8)
    start = -address_of(room) % ALIGNMENT_BYTES
    copy = room[start : start + view.nbytes].data
    _copy(copy, view)
    return copy
