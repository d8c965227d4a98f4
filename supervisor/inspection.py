"""What the supervisor looks at in its workers, a few times a second: their memory, and how long they take.

    memory above the limit        told to leave before its next task
    memory far above it           ended, unless it has just begun its task and will soon leave by itself
    at one task for too long      its stack is asked for; at the next look it is ended
    unusually long, no time-out   its stack is asked for; at the next look the consumer is told, once
    a replacement starts for ever the same

A stack is asked for by a signal that faulthandler answers, also inside C code. A stopped worker could answer
only if it were continued: it has none. Non-goals: deaths, and what follows from them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from supervisor.hang import Durations
from supervisor.memory import Excess, excess
from supervisor.messages import Settings, Slow
from supervisor.oom import OomWatch
from supervisor.verdict import ExitReason
from supervisor.worker import Worker

SOON_S = 0.2  # what has not taken that long yet may end as soon


class Inspector:
    """Looks after the workers of one supervisor.

    Parameters:
        settings: has the limits.
        oom: is told who was alive at a reading.
    """

    def __init__(self, settings: Settings, oom: OomWatch) -> None:
        self._oom = oom
        self._timeout_s = settings.timeout_s
        self._limit_bytes = settings.memory_limit_bytes
        self._durations = Durations()

    def inspect(self, workers: Iterable[Worker], now: float) -> Iterator[Slow]:
        """Take a look at each worker; give what the consumer is to be told."""
        for worker in workers:
            if worker.read_memory(now):
                self._oom.seen_alive(worker.pid)
            self._note_duration(worker)
            if worker.is_starting_late(now):
                yield from self._tell(worker, now - worker.started_s)
                continue
            if self._timeout_s:
                spent_s = worker.clock.look(worker.page, now, worker.is_stopped)
                self._look_for_hang(worker, spent_s, self._timeout_s)
            else:
                spent_s = worker.clock.look(worker.page, now)
                yield from self._look_for_slowness(worker, spent_s)
            self._look_at_memory(worker, spent_s, now)

    def note_ready(self, worker: Worker, now: float) -> None:
        """What a worker has now, at the end of its start-up, is not charged to it."""
        if self._limit_bytes is not None:
            worker.memory.begin_charge(now, worker.page.unshared_bytes)

    def _look_at_memory(self, worker: Worker, spent_s: float, now: float) -> None:
        if self._limit_bytes is None:
            return
        own_bytes = worker.memory.own_bytes(self._limit_bytes, now)
        above = excess(own_bytes, self._limit_bytes)
        if above is Excess.FAR_ABOVE and spent_s >= SOON_S:
            worker.end(ExitReason.MEMORY_LIMIT, _over(own_bytes, self._limit_bytes))
        elif above is not Excess.NONE:
            worker.tell_to_leave(_over(own_bytes, self._limit_bytes))

    def _note_duration(self, worker: Worker) -> None:
        worked_s, tasks = worker.completed_since_last_look()
        if tasks:
            self._durations.add(worked_s, tasks)

    def _look_for_hang(self, worker: Worker, spent_s: float, timeout_s: float) -> None:
        """End a hung worker, though it may go on by now: the signal wakes it from many a wait."""
        because = f"it had been at one task for longer than timeout={timeout_s:g} seconds"
        if worker.is_hung:
            worker.end(ExitReason.HUNG, because)
        elif spent_s >= timeout_s:
            worker.note_where_it_hangs()
            if worker.is_stopped():
                worker.end(ExitReason.HUNG, f"{because}, for it was stopped")
            else:
                worker.ask_for_stack()

    def _look_for_slowness(self, worker: Worker, spent_s: float) -> Iterator[Slow]:
        if self._durations.is_slow(spent_s) and worker.slow_task != worker.page.task:
            yield from self._tell(worker, spent_s)
        else:
            worker.forget_stack()

    def _tell(self, worker: Worker, spent_s: float) -> Iterator[Slow]:
        if not worker.is_asked_for_stack:
            worker.ask_for_stack()
        else:
            worker.slow_task = worker.page.task
            yield worker.describe_slowness(spent_s)


def _over(own_bytes: int, limit_bytes: int) -> str:
    own, limit, over = (size / 2**20 for size in (own_bytes, limit_bytes, own_bytes - limit_bytes))
    return f"it had {own:,.0f} MiB of its own, {over:,.0f} MiB above the limit of {limit:,.0f} MiB"
