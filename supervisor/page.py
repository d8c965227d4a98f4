"""The shared page: where a worker says what it is doing, readable after it is gone.

One memory file for a pool, made by the consumer and mapped by consumer, supervisor and workers; one record
of 128 bytes for each worker. Every field is one aligned 8-byte word with one writer, so nothing is locked
and nothing can be half written:

    written by the worker       STATE TASK ITEM SINCE BEGUN DONE READY WORKED UNSHARED
    written by the consumer     CANCELLED SENT
    written by the supervisor   LEAVE

Times are of CLOCK_MONOTONIC, which all processes of a machine share. Non-goals: history, anything that
grows, and anything that a worker must wait for.
"""

from __future__ import annotations

import mmap
import os
import time
from enum import IntEnum

from supervisor.linux import create_memory_file

RECORD_BYTES = 128

STATE, TASK, ITEM, SINCE, BEGUN, DONE, READY, WORKED, CANCELLED, SENT, LEAVE, UNSHARED = range(12)


class State(IntEnum):
    """What a worker is doing."""

    STARTING = 0
    IDLE = 1
    SAMPLE = 2
    COLLATE = 3
    SENDING = 4
    CLOSED = 5
    LEAVING = 6  # between two tasks, because LEAVE says so


class Page:
    """One worker's record.

    ``words`` and ``seconds`` are its fields as integers and as floats, for code that is in a hurry.

    >>> file = PageFile.create(workers=2)
    >>> page = file.page(1)
    >>> page.enter(State.SAMPLE)
    >>> page.state, page.item
    (<State.SAMPLE: 2>, -1)
    """

    __slots__ = ("seconds", "words")

    def __init__(self, record: memoryview) -> None:
        self.words = record.cast("q")
        self.seconds = record.cast("d")

    def reset(self) -> None:
        """Empty the record for a new worker, but for CANCELLED and the time that its predecessors worked."""
        self.words[TASK] = self.words[ITEM] = self.words[SENT] = -1
        self.words[DONE] = self.words[LEAVE] = self.words[UNSHARED] = 0
        self.seconds[READY] = 0.0
        self.enter(State.STARTING)

    def enter(self, state: State) -> None:
        """Say what the worker is doing from now on."""
        self.seconds[SINCE] = time.monotonic()
        self.words[STATE] = state

    def begin(self, task: int) -> None:
        """Say that task number ``task`` is taken; what is done with it is said by ``enter``."""
        self.seconds[BEGUN] = time.monotonic()
        self.words[TASK], self.words[ITEM] = task, -1

    def ready(self, unshared_bytes: int = 0) -> None:
        """Say that start-up is over, and how much memory the worker has then that it does not share."""
        self.words[UNSHARED] = unshared_bytes
        self.seconds[READY] = time.monotonic()
        self.enter(State.IDLE)

    @property
    def state(self) -> State:
        return State(self.words[STATE])

    @property
    def task(self) -> int:
        """Number of the task that was taken last, or -1."""
        return self.words[TASK]

    @property
    def has_untaken(self) -> bool:
        """Whether a task was sent that the worker has not taken yet."""
        return self.words[SENT] > self.words[TASK]

    @property
    def is_to_leave(self) -> bool:
        """Whether the worker is to end before it takes another task."""
        return self.words[LEAVE] != 0

    def tell_to_leave(self) -> None:
        self.words[LEAVE] = 1

    @property
    def item(self) -> int:
        """Position within the task of the item in hand, or -1."""
        return self.words[ITEM]

    @property
    def since_s(self) -> float:
        return self.seconds[SINCE]

    @property
    def begun_s(self) -> float:
        """When the task that was taken last was begun."""
        return self.seconds[BEGUN]

    @property
    def done(self) -> int:
        """How many tasks this worker has completed."""
        return self.words[DONE]

    @property
    def worked_s(self) -> float:
        """How long this worker and those before it have worked on the tasks that they completed."""
        return self.seconds[WORKED]

    @property
    def unshared_bytes(self) -> int:
        """How much memory the worker had that it did not share, when start-up was over."""
        return self.words[UNSHARED]

    @property
    def ready_s(self) -> float:
        """When start-up was over, or 0.0 if it is not."""
        return self.seconds[READY]


class PageFile:
    """The memory file that holds the records of one pool."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._map = mmap.mmap(fd, 0)

    @classmethod
    def create(cls, workers: int) -> PageFile:
        fd = create_memory_file("worker-pages")
        os.ftruncate(fd, workers * RECORD_BYTES)
        file = cls(fd)
        for worker in range(workers):
            file.page(worker).reset()
        return file

    def page(self, worker: int) -> Page:
        start = worker * RECORD_BYTES
        return Page(memoryview(self._map)[start : start + RECORD_BYTES])

    def close(self) -> None:
        """Give the descriptor back; pages that are in use stay mapped."""
        os.close(self.fd)
