"""What runs in a worker: tasks in, answers out, slots mapped and let go."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from itertools import chain
from typing import Any

import numpy as np
import pytest

from dataloader import default_collate, wire
from dataloader.random_state import kept_random_state
from dataloader.recipe import Order, Recipe
from dataloader.slots import Slot, size_class
from dataloader.wire import BATCH, CANCELLED, ERROR, Result, Task
from dataloader.worker import HELD_BYTES, HELD_RESULTS, QUICK_BEFORE, MappedSlots, Server
from supervisor import exceptions, page
from supervisor.channel import Channel, Message
from supervisor.child import WorkerContext
from supervisor.linux import create_memory_file
from supervisor.page import RECORD_BYTES, Page, State
from supervisor.payload import PayloadError
from tests.datasets import LARGE_BYTES, LargeArrays, TwoArguments, Unpicklable, raise_two_arguments
from tests.forks import in_child
from tests.limits import descriptors_without_garbage
from tests.processes import open_descriptors, shared_mappings

SIZE = size_class(3 * LARGE_BYTES)


def make_slot(number: int, size_bytes: int = SIZE) -> Slot:
    fd = create_memory_file("test-slot")
    os.ftruncate(fd, size_bytes)
    slot = Slot(number, fd, size_bytes)
    slot.keep_descriptor()
    return slot


class Conversation:
    """All that one worker is sent, and all that it answers. It ends when it has nothing left to read."""

    def __init__(self, dataset: Any, collate: Callable[[Any], Any] = default_collate) -> None:
        self.page = Page(memoryview(bytearray(RECORD_BYTES)))
        self.page.reset()
        self.pipe, self._workers_pipe = Channel.pair()
        self._server = Server(Recipe(dataset, collate), seed=0, init=None)

    def send(self, seq: int, indices: list[int], slot: Slot | None = None, **rest: Any) -> None:
        self.send_together([seq], indices, slot, **rest)

    def send_together(
        self, seqs: list[int], indices: list[int], slot: Slot | None = None, **rest: Any
    ) -> None:
        lent = None if slot is None else (slot.id, slot.size_bytes)
        brings_slot = slot is not None and rest.get("brings_slot", True)
        forget = rest.get("forget", ())
        tasks = [Task(seq, Order(0, 0, 100 + seq, indices), lent, brings_slot, forget) for seq in seqs]
        data, owner = wire.encode_tasks(tasks)
        own = [] if owner is None else [owner.fileno()]
        self.pipe.send(data, ([slot.fd] if slot and brings_slot else []) + own)

    def answers(self) -> list[Message]:
        self.pipe.socket.shutdown(1)  # we say no more
        with kept_random_state():
            self._server.serve(self._workers_pipe, WorkerContext(3, 4, self.page))
        self._workers_pipe.close()
        return list(iter(self.pipe.receive, None))

    def results(self) -> list[Result]:
        return [result for message in self.answers() for result in wire.decode_results(message.data)]


def opened(result: Result, slot: Slot | None = None) -> Any:
    return wire.open_batch(0, result, slot, copy=False)


def test_tasks_are_answered_in_order() -> None:
    worker = Conversation(range(100))
    worker.send(5, [1, 2])
    worker.send(6, [30, 10])
    results = worker.results()
    assert [(result.seq, result.kind) for result in results] == [(5, BATCH), (6, BATCH)]
    assert [opened(result).tolist() for result in results] == [[1, 2], [30, 10]]


def test_a_task_that_comes_twice_is_done_once() -> None:
    before = descriptors_without_garbage()
    worker, slot = Conversation(range(100)), make_slot(1)
    for seq in (5, 5, 7, 6, 7, 8):
        worker.send(seq, [seq], slot)
    assert [result.seq for result in worker.results()] == [5, 7, 8]
    del worker, slot
    assert open_descriptors() == before


def test_tasks_that_come_together_are_each_answered_once() -> None:
    worker = Conversation(range(100))
    worker.send_together([5, 6], [3])
    worker.send_together([6, 7], [3])  # sent again by who was interrupted
    assert [result.seq for result in worker.results()] == [5, 6, 7]


def together(dataset: Any, batches: list[int]) -> list[list[int]]:
    """Return which results come in each message, where the tasks, of one sample each, came in one."""
    worker = Conversation(dataset, collate=lambda samples: samples[0])
    tasks = [Task(seq, Order(0, 0, seq, [index]), None, False, ()) for seq, index in enumerate(batches, 1)]
    worker.pipe.send(wire.encode_tasks(tasks)[0])
    return [[result.seq for result in wire.decode_results(answer.data)] for answer in worker.answers()]


def test_small_results_that_are_made_in_no_time_leave_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dataloader.worker.HELD_S", 60.0)
    messages = together(range(10), [1] * (QUICK_BEFORE + 2 * HELD_RESULTS + 1))
    assert [*map(len, messages)] == [*[1] * QUICK_BEFORE, HELD_RESULTS, HELD_RESULTS, 1]
    assert [*chain(*messages)] == [*range(1, QUICK_BEFORE + 2 * HELD_RESULTS + 2)]


def test_no_result_waits_for_one_that_takes_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dataloader.worker.HELD_S", 0.0)
    assert together(range(10), [1] * 3 * QUICK_BEFORE) == [[seq] for seq in range(1, 3 * QUICK_BEFORE + 1)]


def test_after_a_large_result_none_waits_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dataloader.worker.HELD_S", 60.0)
    messages = together([b"small", b"x" * 10_000], [*[0] * (QUICK_BEFORE + 2), 1, *[0] * (QUICK_BEFORE + 2)])
    quick = [1] * QUICK_BEFORE
    assert [*map(len, messages)] == [*quick, 2, 1, *quick, 2]


def test_results_of_all_sizes_leave_in_order() -> None:
    sizes = [0, *[5] * 20, 3000, HELD_BYTES, 60_000, *[1] * 20, 200_000, 2, 70_000, 4000]
    worker = Conversation([b"x" * size for size in sizes], collate=lambda samples: samples[0])
    tasks = [Task(seq, Order(0, 0, seq, [seq]), None, False, ()) for seq in range(1, len(sizes))]
    worker.pipe.send(wire.encode_tasks(tasks)[0])
    results = worker.results()
    assert [result.seq for result in results] == [*range(1, len(sizes))]
    inline = [(result.seq, len(opened(result))) for result in results if not result.spans]
    assert inline == [(seq, size) for seq, size in enumerate(sizes) if 0 < size < 65_000]


def test_a_worker_that_is_to_leave_does_not_begin_what_came_together() -> None:
    worker = Conversation([0, 1], collate=lambda samples: worker.page.tell_to_leave())
    worker.send_together([5, 6], [0])
    assert [result.seq for result in worker.results()] == [5]
    assert worker.page.state is State.LEAVING


def test_cancelled_tasks_are_not_done() -> None:
    loaded: list[int] = []
    worker = Conversation(Noting(loaded))
    worker.page.words[page.CANCELLED] = 6
    for seq in (5, 6, 7):
        worker.send(seq, [seq])
    results = worker.results()
    assert [(result.seq, result.kind) for result in results] == [(5, CANCELLED), (6, CANCELLED), (7, BATCH)]
    assert loaded == [7]


class Noting:
    """A dataset that notes which samples are loaded."""

    def __init__(self, loaded: list[int]) -> None:
        self.loaded = loaded

    def __getitem__(self, index: int) -> int:
        self.loaded.append(index)
        return index


def test_the_page_says_what_it_is_doing() -> None:
    worker = Conversation([0, 1, 2], collate=lambda samples: seen.append(worker.page.state))
    seen: list[State] = []
    for seq in (5, 6):
        worker.send(seq, [0, 1, 2])
    worker.results()
    assert seen == [State.COLLATE, State.COLLATE]
    assert (worker.page.state, worker.page.done, worker.page.task) == (State.IDLE, 2, 6)


# ---- slots ---------------------------------------------------------------------------------------


def test_a_large_batch_lies_in_the_slot_that_was_lent() -> None:
    worker, slot = Conversation(LargeArrays(10)), make_slot(1)
    worker.send(1, [3, 4], slot)
    (answer,) = worker.answers()
    result = wire.decode_results(answer.data)[0]
    assert (answer.descriptors, result.made_bytes) == ([], 0)
    assert opened(result, slot)[:, 0].tolist() == [3, 4]


@pytest.mark.parametrize("lent", [None, make_slot(1, size_class(1))], ids=["none", "too small"])
def test_without_room_the_worker_makes_a_slot(lent: Slot | None) -> None:
    before = descriptors_without_garbage()
    worker = Conversation(LargeArrays(10))
    worker.send(1, [3, 4], lent)
    (answer,) = worker.answers()
    result = wire.decode_results(answer.data)[0]
    made = Slot(2, answer.descriptors[0], result.made_bytes)
    made.keep_descriptor()
    assert opened(result, made)[:, 0].tolist() == [3, 4]
    del worker, answer, made
    assert open_descriptors() == before


def test_a_slot_is_mapped_once_and_its_descriptor_closed() -> None:
    before, mappings = descriptors_without_garbage(), shared_mappings()
    worker, slot = Conversation(LargeArrays(10)), make_slot(1)
    worker.send(1, [1], slot)
    worker.send(2, [2], slot, brings_slot=False)
    worker.send(3, [3], slot)  # sent again after an interrupt
    results = worker.results()
    assert len(results) == 3
    assert opened(results[2], slot)[0, 0] == 3
    del worker, slot
    assert (open_descriptors(), shared_mappings()) == (before, mappings)


def test_forgotten_slots_are_unmapped() -> None:
    gc.collect()
    slots = MappedSlots()
    first, second = make_slot(1), make_slot(2)
    mappings = shared_mappings()
    slots.memory_for(Task(1, Order(0, 0, 0, []), (1, SIZE), True, ()), [os.dup(first.fd)])
    slots.memory_for(Task(2, Order(0, 0, 0, []), (2, SIZE), True, ()), [os.dup(second.fd)])
    assert shared_mappings() == mappings + 2
    slots.memory_for(Task(3, Order(0, 0, 0, []), (2, SIZE), False, (1, 7)), [])
    assert shared_mappings() == mappings + 1


def test_what_user_code_forks_has_no_slot() -> None:
    """It could otherwise write into a slot that is lent to another by then."""
    gc.collect()
    slots, slot = MappedSlots(), make_slot(1)
    slots.memory_for(Task(1, Order(0, 0, 0, []), (1, SIZE), True, ()), [os.dup(slot.fd)])
    assert in_child(shared_mappings) == shared_mappings() - 1


# ---- errors --------------------------------------------------------------------------------------


class Broken:
    """A dataset of which sample 1 raises."""

    def __init__(self, action: Callable[[], Any]) -> None:
        self.action = action

    def __getitem__(self, index: int) -> Any:
        return self.action() if index == 1 else index


def error_of(worker: Conversation) -> BaseException:
    """Send a good task, a bad one and a good one; return the error that answers the bad one."""
    for seq in (5, 6, 7):
        worker.send(seq, [9, seq - 5])
    good, bad, good_again = worker.results()
    assert (good.kind, bad.kind, good_again.kind) == (BATCH, ERROR, BATCH)
    assert bad.body is not None
    assert worker.page.state is State.IDLE
    return exceptions.unpack(bad.body)


def test_an_exception_in_a_sample_is_the_answer() -> None:
    error = error_of(Conversation(Broken(raise_two_arguments)))
    assert isinstance(error, TwoArguments)
    assert (error.path, error.line, error.args) == ("a.jpg", 17, ("a.jpg", 17))
    text = str(error.__cause__)
    assert f"in worker 3 (pid {os.getpid()}), batch 106, sample 1:" in text
    assert "raise_two_arguments" in text
    assert 'TwoArguments("a.jpg", 17)' in text


def test_an_exception_in_collate_is_the_answer() -> None:
    def collate(samples: list[int]) -> list[int]:
        return [1 // (sample - 1) for sample in samples]

    error = error_of(Conversation(range(10), collate))
    assert isinstance(error, ZeroDivisionError)
    assert "batch 106, made of samples [9, 1]:" in str(error.__cause__)


def test_an_unpicklable_batch_is_an_error_of_its_own() -> None:
    error = error_of(Conversation(Broken(Unpicklable), collate=list))
    assert isinstance(error, PayloadError)
    assert str(error).startswith("worker 3 cannot send batch 106: batch[1], a tests.datasets.Unpicklable, ")


@pytest.mark.parametrize("kind", [StopIteration, SystemExit, KeyboardInterrupt, GeneratorExit])
def test_what_would_end_a_loop_or_a_program_is_a_runtime_error(kind: type[BaseException]) -> None:
    def fail() -> None:
        raise kind("no more")

    error = error_of(Conversation(Broken(fail)))
    assert type(error) is RuntimeError
    assert str(error) == f"{kind.__name__} in a worker: no more"


def test_an_unwritable_array_is_as_good_as_any() -> None:
    def frozen() -> Any:
        array = np.zeros(LARGE_BYTES, np.uint8)
        array.flags.writeable = False
        return array

    worker = Conversation(Broken(frozen), collate=lambda samples: samples[0])
    worker.send(1, [1], make_slot(1))
    assert worker.results()[0].kind == BATCH
