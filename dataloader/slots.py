"""Slots: shared memory for batches, owned by the consumer and lent to workers.

    lent with a task  -->  holds a result  -->  seen by the user's arrays  -->  free
    (holder: a lease)      (holder: a job)      (the view lives)

A slot is free when nobody holds it and its last view is dead. That is looked up when a slot is wanted and
noted nowhere, so there is nothing that an interrupt could leave half noted. The view is a ctypes buffer
over the mapping: arrays made from it keep it alive, and unlike a memoryview it can be weakly referenced.

Slots are reused because fresh pages cost more than the copy into them. Non-goals: knowing what is in a
slot, and which worker has mapped it.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import resource
import select
import sys
import weakref
from collections import deque
from typing import Any

from supervisor.linux import keep

SMALLEST_BYTES = 1 << 16
GROWTH = 1.25
MAX_SLOTS = 64
DESCRIPTOR_SHARE = 4  # one quarter of what the process may open, for slots that are kept
BUSY_SHARE = 2  # and one half in all, while more are at work
MANY = 1 << 20
RECENT_RESULTS = 32
TRIM_FACTOR = 2
# A mapping keeps a descriptor of its own, except where Python can be told not to.
_CAN_MAP_UNTRACKED = sys.version_info >= (3, 13)
DESCRIPTORS_PER_SLOT = 1 if _CAN_MAP_UNTRACKED else 2


def size_class(wanted_bytes: int) -> int:
    """Return the slot size for ``wanted_bytes``: whole pages, in steps of 1.25.

    >>> size_class(1), size_class(70_000), size_class(100_000) >= 100_000
    (65536, 81920, True)
    """
    size = float(SMALLEST_BYTES)
    while size < wanted_bytes:
        size *= GROWTH
    return -(-int(size) // mmap.PAGESIZE) * mmap.PAGESIZE


def map_shared(fd: int, size_bytes: int) -> mmap.mmap:
    """Map a memory file for reading and writing."""
    if _CAN_MAP_UNTRACKED:
        return mmap.mmap(fd, size_bytes, trackfd=False)  # type: ignore[call-arg,unused-ignore]
    return mmap.mmap(fd, size_bytes)


class Slot:
    """One memory file.

    Attributes:
        id: its number, never used again.
        fd: its descriptor.
        size_bytes: its size.
        holder: the lease or the job that it belongs to now.
        is_retired: it is never lent again.
    """

    __slots__ = ("_owners", "_view", "fd", "holder", "id", "is_retired", "memory", "size_bytes")

    def __init__(self, number: int, fd: int, size_bytes: int) -> None:
        self.id = number
        self.fd = fd
        self.size_bytes = size_bytes
        self.holder: object = None
        self.is_retired = False
        self.memory = map_shared(fd, size_bytes)
        self._owners: list[select.epoll] = []
        self._view: weakref.ref[Any] | None = None

    def keep_descriptor(self) -> None:
        """Take the descriptor over: it is closed with the slot."""
        keep(self.fd, self._owners)

    @property
    def has_view(self) -> bool:
        return self._view is not None and self._view() is not None

    @property
    def is_unused(self) -> bool:
        return self.holder is None and not self.has_view

    @property
    def is_free(self) -> bool:
        return self.is_unused and not self.is_retired

    def view(self) -> memoryview:
        """Return the memory; the slot is not free until all that was made from it is dead."""
        buffer = (ctypes.c_char * self.size_bytes).from_buffer(self.memory)
        self._view = weakref.ref(buffer)
        return memoryview(buffer).cast("B")


class SlotPool:
    """The slots of one consumer's pool of workers.

    Parameters:
        in_flight: how many may be lent or hold a result at a time.
    """

    def __init__(self, in_flight: int) -> None:
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        affordable = MANY if limit == resource.RLIM_INFINITY else limit // DESCRIPTORS_PER_SLOT
        self.max_slots = max(2, min(MAX_SLOTS, affordable // DESCRIPTOR_SHARE))
        self.max_views = max(1, self.max_slots - in_flight)
        self.expects_new = True  # a task that brings no slot will be answered with one, as the last was
        self._max_busy = max(2, affordable // BUSY_SHARE)
        self._slots: dict[int, Slot] = {}  # by descriptor
        self._numbers = itertools.count(1)
        self._recent_bytes: deque[int] = deque(maxlen=RECENT_RESULTS)
        _live.add(self)

    def __iter__(self) -> Any:
        return iter(list(self._slots.values()))

    def __len__(self) -> int:
        return len(self._slots)

    def pick(self) -> Slot | None:
        """Return the free slot that fits best what is sent lately, else the largest; None if none is free."""
        if not self._slots:
            return None
        free = [slot for slot in self._slots.values() if slot.is_free]
        wanted_bytes = max(self._recent_bytes, default=0)
        fitting = [slot for slot in free if slot.size_bytes >= wanted_bytes]
        return min(fitting, key=_size) if fitting else max(free, key=_size, default=None)

    def adopt(self, fd: int, size_bytes: int) -> Slot:
        """Return the slot for a memory file that a worker has made. The same for the same descriptor."""
        slot = self._slots.get(fd)
        if slot is None:
            slot = self._slots[fd] = Slot(next(self._numbers), fd, size_bytes)
        slot.keep_descriptor()
        return slot

    def note_use(self, used_bytes: int) -> None:
        """Take note of how much a result needed."""
        self._recent_bytes.append(used_bytes)

    def wants_copy(self) -> bool:
        """Whether the user holds so many slots that the next batch should be a private copy."""
        return sum(slot.has_view for slot in self._slots.values()) >= self.max_views

    def has_room_for(self, new_slots: int) -> bool:
        """Whether there are descriptors for so many more slots."""
        return len(self._slots) + new_slots <= self._max_busy

    def trim(self) -> list[int]:
        """Let go of unused slots that are retired, far too large or one too many; return their ids."""
        if len(self._slots) <= self.max_slots and not any(map(self._is_useless, self._slots.values())):
            return []
        unused = [slot for slot in self._slots.values() if slot.is_unused]
        doomed = [slot for slot in unused if self._is_useless(slot)]
        excess = len(self._slots) - self.max_slots - len(doomed)
        doomed += sorted((slot for slot in unused if slot not in doomed), key=_size)[: max(0, excess)]
        for slot in doomed:
            del self._slots[slot.fd]
        return [slot.id for slot in doomed]

    def give_back_unused(self) -> list[int]:
        """Let go of all slots that hold nothing, for memory is short; return their ids."""
        unused = [slot for slot in self._slots.values() if slot.is_unused]
        for slot in unused:
            del self._slots[slot.fd]
        return [slot.id for slot in unused]

    def _is_useless(self, slot: Slot) -> bool:
        recent = max(self._recent_bytes, default=0)
        return slot.is_retired or slot.size_bytes > size_class(recent) * TRIM_FACTOR

    def retire_viewed(self) -> None:
        """Never lend again what the user sees now: a forked child sees it too."""
        for slot in self._slots.values():
            if slot.has_view:
                slot.is_retired = True


def _size(slot: Slot) -> int:
    return slot.size_bytes


_live: weakref.WeakSet[SlotPool] = weakref.WeakSet()


def _retire_all_viewed() -> None:
    for pool in list(_live):
        pool.retire_viewed()


os.register_at_fork(before=_retire_all_viewed)
