"""A BatchPool whose workers live in this process: they answer while the pool waits, and die when told to.

Nothing in it takes time or happens by chance, so a test can strike at each instruction in turn.
"""

from __future__ import annotations

import copy
import dis
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import CodeType, FrameType
from typing import Any

from dataloader import (
    batch_pool,
    checkpoints,
    delivery,
    in_process_iterator,
    intake,
    joining,
    ledger,
    pace,
    review,
    samplers,
    slots,
    stats,
    stream_ledger,
    stream_state,
    streams,
    suspects,
    wire,
    worker_info,
    worker_iterator,
)
from dataloader.batch_pool import BatchPool
from dataloader.random_state import Setter
from dataloader.recipe import Recipe
from dataloader.stats import Tally
from dataloader.stream_recipe import StreamRecipe
from dataloader.watch import Watch
from dataloader.wire import Task
from dataloader.worker import MappedSlots, Server
from supervisor.channel import Channel, close_all, opened
from supervisor.child import WorkerContext
from supervisor.messages import Started
from supervisor.page import CANCELLED, RECORD_BYTES, Page, State
from supervisor.policy import RestartPolicy
from supervisor.pool_worker import PoolWorker
from supervisor.report import ExitReport
from supervisor.verdict import ExitReason


class Toy:
    """A worker that answers one task at a time, when asked to."""

    def __init__(self, worker: int, pid: int, recipe: Recipe | StreamRecipe, num_workers: int) -> None:
        ours, self.pipe = Channel.pair()
        self.page = Page(memoryview(bytearray(RECORD_BYTES)))
        self.page.reset()
        self.worker = PoolWorker(Started(worker, pid, restarts=0), ours, self.page)
        if isinstance(recipe, StreamRecipe):
            recipe = copy.deepcopy(recipe).fresh()
        self.server = Server(recipe, 0, None)
        self.server._setter = Setter()  # type: ignore[assignment]
        self.context = WorkerContext(worker, num_workers, self.page)
        self.slots = MappedSlots()
        self.last_seq = -1
        self.tasks: deque[tuple[Task, list[int]]] = deque()  # received, and not begun
        self.made: list[int] = []  # numbers of the batches that it made

    def answer(self) -> bool:
        """Answer the oldest task; say whether there was one."""
        self.pipe.drain()
        while self.pipe.inbox:
            tasks, descriptors = wire.decode_tasks(opened(self.pipe.inbox.popleft()))
            self.tasks.extend((task, descriptors if task.brings_slot else []) for task in tasks)
        while self.tasks:
            task, descriptors = self.tasks.popleft()
            if task.seq <= self.last_seq:
                close_all(descriptors)
                continue
            self.last_seq = task.seq
            memory = self.slots.memory_for(task, descriptors)
            if task.seq <= self.page.words[CANCELLED]:
                self.pipe.send(wire.encode_cancelled(task.seq))
                return True
            self.made.append(task.order.batch)
            with self._as_worker():
                data, fd = self.server._result(task, memory, self.context)
            self.pipe.send(data, () if fd is None else (fd,))
            close_all(() if fd is None else (fd,))
            return True
        return False

    @contextmanager
    def _as_worker(self) -> Iterator[None]:
        context = self.context
        worker_info.become_worker(context.worker, context.num_workers, 0, self.server.recipe.dataset)
        try:
            yield
        finally:
            worker_info._info = None


class ToyPool(BatchPool):
    """A pool of toys.

    Parameters:
        deaths: which wait a worker dies in, and which worker.
    """

    def __init__(
        self,
        recipe: Recipe | StreamRecipe,
        num_workers: int,
        prefetch: int,
        deaths: dict[int, int] | None = None,
    ) -> None:
        super().__init__(num_workers, "fork", RestartPolicy(), prefetch)
        self.recipe = recipe
        self.deaths = dict(deaths or {})
        self.reason = ExitReason.KILLED  # of their ends
        self.waits = 0
        self.slow: int | None = None  # a worker that answers only where no other has anything to do
        self.hired: list[Toy] = []
        self.toys: dict[int, Toy] = {}
        self.interrupter: Interrupter | None = None
        for worker in range(num_workers):
            self.hire(worker)

    def hire(self, worker: int) -> None:
        toy = Toy(worker, len(self.hired), self.recipe, self.num_workers)
        self.hired.append(toy)
        self.toys[worker] = toy
        self.workers[worker] = toy.worker

    def wait(self, timeout_s: float | None) -> None:
        """Let each worker answer a task, the last first, and take in what they sent."""
        with pausing(self.interrupter):
            dead = {number for wait, number in self.deaths.items() if wait <= self.waits}
            quick = [number for number in reversed(self.toys) if number not in dead and number != self.slow]
            answered = [self.toys[number].answer() for number in quick]
            if self.slow is not None and self.slow not in dead and not any(answered):
                answered = [self.toys[self.slow].answer()]
            self.waits += 1
        for worker in self.workers.values():
            worker.pipe.drain()
        due = [wait for wait in self.deaths if wait <= self.waits]
        for wait in due:
            self.bury(wait)
        assert any(answered) or due or any(worker.pipe.inbox for worker in self.workers.values()), (
            "nobody has anything to do: this wait would last for ever"
        )

    def bury(self, wait: int) -> None:
        """Do what a pool does when it is told of a death. An interrupted burial happens again."""
        number = self.deaths[wait]
        worker = self.workers[number]
        link = self._link(worker)
        self._take_results(link)
        report = ExitReport(number, worker.pid, self.reason, task=next(iter(link.leases), None))
        report.state, report.item = State.SAMPLE, 0
        self.describe(worker, report)
        self.on_death(worker, report)
        self.reports.append(report)
        self.hire(number)
        del self.deaths[wait]

    def poll_for_room(self, worker: PoolWorker, wanted: bool) -> None:
        """Nobody polls here."""


# ---- interrupts ----------------------------------------------------------------------------------


class Interrupt(Exception):
    """Raised by a signal handler. An Exception, for a KeyboardInterrupt is told from an error by its type."""


def interrupt(number: int, frame: object) -> None:
    raise Interrupt


TRACED = {
    module.__file__
    for module in (
        batch_pool,
        checkpoints,
        delivery,
        in_process_iterator,
        intake,
        joining,
        ledger,
        pace,
        review,
        samplers,
        slots,
        stats,
        stream_ledger,
        stream_state,
        streams,
        suspects,
        wire,
        worker_iterator,
    )
}
BEFORE_HANDLERS = ("CALL", "RESUME", "JUMP_BACKWARD", "JUMP_ABSOLUTE")  # with whatever follows in the name
BEFORE_NONE = "CALL_INTRINSIC"  # a call in name only; one of them ends a generator that is dropped


def unwatched() -> Watch:
    """Return what counts for an iterator that is nobody's."""
    return Watch(Tally(), None)


class Interrupter:
    """Raises out of a signal handler, once, at the n-th place where the interpreter could have run one.

    That is where a function begins, after each call, and where a loop begins anew; never between, say, a
    store and the return that follows it.
    """

    def __init__(self, at: int | None) -> None:
        self.at = at
        self.count = 0
        self.is_paused = False
        self.place = ""
        self._before: dict[FrameType, str] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        previous = sys.gettrace()
        handler = signal.signal(signal.SIGUSR1, self._trace)  # what it raises is then a handler's
        sys.settrace(self._trace)
        try:
            yield
        finally:
            sys.settrace(previous)
            signal.signal(signal.SIGUSR1, handler)
            self._before.clear()

    def _trace(self, frame: Any, event: Any, argument: object = None) -> Callable[..., Any] | None:
        if event == "call":
            if self.is_paused or frame.f_code.co_filename not in TRACED:
                return None
            frame.f_trace_lines, frame.f_trace_opcodes = False, True
            self._strike(frame)
        elif event == "opcode":
            name = operations(frame.f_code)[frame.f_lasti]
            if runs_handlers_after(self._before.get(frame, "")):
                self._strike(frame)
            self._before[frame] = name
        elif event == "exception":
            self._before[frame] = ""  # no handler runs after a call that raised
        return self._trace

    def _strike(self, frame: FrameType) -> None:
        self.count += 1
        if self.count == self.at:
            self.place = f"{frame.f_code.co_name}, line {frame.f_lineno}"
            interrupt(signal.SIGUSR1, frame)


def runs_handlers_after(operation: str) -> bool:
    return operation.startswith(BEFORE_HANDLERS) and not operation.startswith(BEFORE_NONE)


@cache
def operations(code: CodeType) -> dict[int, str]:
    return {instruction.offset: instruction.opname for instruction in dis.get_instructions(code)}


@contextmanager
def pausing(interrupter: Interrupter | None) -> Iterator[None]:
    """Strike nobody meanwhile: what happens here happens in another process."""
    if interrupter is None:
        yield
        return
    interrupter.is_paused = True
    try:
        yield
    finally:
        interrupter.is_paused = False
