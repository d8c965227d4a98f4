"""A worker: takes tasks, makes batches, answers.

    task --> lent slot mapped --> samples, collate (State SAMPLE, COLLATE) --> result sent (SENDING) --> IDLE

An exception in a sample or in collate is the answer to its task, and the worker lives on. A task that was
sent twice is done once. Results of tasks that came together leave together, where they are small and made in
no time.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Sequence
from typing import Any

from dataloader import wire
from dataloader.arena import Arena
from dataloader.pieces import NotInPieces, Seeds
from dataloader.random_state import LazySetter, set_random_state
from dataloader.recipe import Recipe, WorkerInit, sample_place, where
from dataloader.sample_errors import Survivors, packed_failures
from dataloader.slots import map_shared
from dataloader.stream_recipe import StreamRecipe
from dataloader.streams import StreamEnded
from dataloader.wire import DUMPS, Dump, Task
from dataloader.worker_info import WorkerInfo, become_worker
from supervisor import exceptions
from supervisor.channel import Channel, close_all
from supervisor.child import WorkerContext
from supervisor.linux import fill_standard_descriptors
from supervisor.page import CANCELLED, DONE, WORKED, State
from supervisor.payload import PayloadError

HELD_BYTES = 4096  # at most, of a result that waits for others
HELD_S = 0.0005  # at most, of work on results that wait
HELD_RESULTS = 14  # at most; their bytes are less than those of a message
QUICK_BEFORE = 16  # results in a row that were small and made in no time: then the next may wait

_NOTHING = memoryview(b"")


class Server:
    """What runs in a worker.

    A subclass says what else is set up, and by what batches are pickled.

    Parameters:
        recipe: how a batch is made.
        seed: the loader's.
        init: the user's ``worker_init_fn``.
    """

    dumps: Sequence[Dump] = DUMPS

    def __init__(self, recipe: Recipe | StreamRecipe, seed: int, init: WorkerInit | None) -> None:
        self.recipe = recipe
        self.seed = seed
        self.init = init

    def set_up(self, context: WorkerContext) -> None:
        """Become this worker: before its first sample, in a replacement too."""
        info = self.become(context)
        if self.init is not None:
            set_random_state(Seeds(info.seed, info.seed % 2**32, info.seed))
            _run_init(self.init, info.id)

    def become(self, context: WorkerContext) -> WorkerInfo:
        """Let code in this process know which worker it runs in."""
        return become_worker(context.worker, context.num_workers, self.seed, self.recipe.dataset)

    def serve(self, pipe: Channel, context: WorkerContext) -> None:
        """Answer tasks until the pipe ends."""
        self._setter = LazySetter()
        slots, outbox = MappedSlots(), Outbox(pipe)
        last_seq = -1
        while not context.page.is_to_leave and (message := pipe.receive()) is not None:
            tasks, descriptors = wire.decode_tasks(message)
            for task in tasks:
                if task.seq <= last_seq or context.page.is_to_leave:
                    continue
                last_seq = task.seq
                memory, descriptors = slots.memory_for(task, descriptors), []
                self._answer(task, memory, outbox, context)
            outbox.flush()
            close_all(descriptors)
        if context.page.is_to_leave:
            context.page.enter(State.LEAVING)

    def _answer(self, task: Task, memory: memoryview, outbox: Outbox, context: WorkerContext) -> None:
        page = context.page
        page.begin(task.seq)
        if task.seq <= page.words[CANCELLED]:
            outbox.put(wire.encode_cancelled(task.seq), None, 0.0)
            return
        data, fd = self._result(task, memory, context)
        page.enter(State.SENDING)
        worked_s = page.since_s - page.begun_s
        page.seconds[WORKED] += worked_s
        outbox.put(data, fd, worked_s)
        page.words[DONE] += 1
        page.enter(State.IDLE)

    def _result(self, task: Task, memory: memoryview, context: WorkerContext) -> tuple[bytes, int | None]:
        arena = Arena(memory, task.columns)
        try:
            batch = self.recipe.make(task.order, context.page, self._setter, arena)
            return self._encoded(task, batch, arena, context)
        except StreamEnded:
            return wire.encode_end(task.seq), None
        except NotInPieces:
            return wire.encode_whole(task.seq), None
        except BaseException as error:
            packed = exceptions.pack(error, f"{_me(context)}, {where(task.order, context.page)}")
            if self.recipe.news is not None:
                return wire.encode_stream_error(task.seq, packed, arena, self.recipe.news)
            return wire.encode_error(task.seq, packed), None
        finally:
            arena.close()

    def _encoded(
        self, task: Task, batch: Any, arena: Arena, context: WorkerContext
    ) -> tuple[bytes, int | None]:
        if isinstance(batch, Survivors):
            batch = self._packed(task, batch, context)
        try:
            return wire.encode_batch(task.seq, batch, arena, self.dumps, self.recipe.news)
        except PayloadError as error:
            if task.order.piece is not None:
                raise NotInPieces from None  # what is made of the samples may well be sent
            message = f"worker {context.worker} cannot send batch {task.order.batch}: {error}"
            raise PayloadError(message) from error.__cause__

    def _packed(self, task: Task, batch: Survivors, context: WorkerContext) -> Survivors:
        """Return the batch with its failures packed."""
        order = self.recipe.named(task.order)
        return packed_failures(batch, lambda position: f"{_me(context)}, {sample_place(order, position)}")


def _me(context: WorkerContext) -> str:
    return f"in worker {context.worker} (pid {os.getpid()})"


def _run_init(init: WorkerInit, worker: int) -> None:
    try:
        init(worker)
    except exceptions.CONTROL_FLOW as error:  # SystemExit would pass for an end of the worker's own will
        raise RuntimeError(exceptions.describe(error, "in worker_init_fn")) from error


class Outbox:
    """Results on their way: each goes at once, or waits a moment for those that are made next.

    To be woken costs the consumer more than to open a small batch. But what waits is lost if this worker dies
    of the next one, and is made again: so none waits before it is known that they cost next to nothing. How
    long the next one takes, nobody knows: if long, what waits comes that much later. Order is kept.
    """

    def __init__(self, pipe: Channel) -> None:
        self._pipe = pipe
        self._held: list[bytes] = []
        self._held_s = 0.0
        self._quick = 0  # results in a row

    def put(self, data: bytes, fd: int | None, worked_s: float) -> None:
        """Send a result that took ``worked_s`` seconds, or hold it until the next or until ``flush``."""
        if fd is not None or len(data) > HELD_BYTES:
            self._quick = 0
            self.flush()
            self._pipe.send(data, () if fd is None else (fd,))
            if fd is not None:
                os.close(fd)
            return
        self._held.append(data)
        self._held_s += worked_s
        if self._held_s > HELD_S or len(self._held) == HELD_RESULTS or self._quick < QUICK_BEFORE:
            self.flush()
        self._quick = self._quick + 1 if worked_s < HELD_S else 0

    def flush(self) -> None:
        """Send what was held."""
        if self._held:
            self._pipe.send(wire.join_results(self._held))
            self._held.clear()
            self._held_s = 0.0


class MappedSlots:
    """The slots that this worker has mapped.

    The descriptor is closed once the slot is mapped, and a process that user code forks does not inherit the
    mapping: it could otherwise write into a slot that is lent to another by then.
    """

    def __init__(self) -> None:
        self._memory: dict[int, memoryview] = {}

    def memory_for(self, task: Task, descriptors: Iterable[int]) -> memoryview:
        """Return the memory that was lent with ``task``, if any; take charge of the task's descriptors."""
        for number in task.forget:
            self._memory.pop(number, None)
        if task.slot is None:
            return _NOTHING
        number, size_bytes = task.slot
        for fd in descriptors:
            if number not in self._memory:
                fill_standard_descriptors()  # the mapping duplicates fd, and user code may have closed some
                memory = map_shared(fd, size_bytes)
                memory.madvise(mmap.MADV_DONTFORK)
                self._memory[number] = memoryview(memory)
            os.close(fd)
        return self._memory[number]
