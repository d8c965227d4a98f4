"""One worker as the supervisor sees it: its descriptors, its memory readings, and the report of its end."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from typing import NamedTuple

import psutil

from supervisor import exceptions, hang
from supervisor.channel import close_all
from supervisor.child import STACK_SIGNAL
from supervisor.hang import TaskClock
from supervisor.linux import create_memory_file, open_pidfd
from supervisor.memory import MemoryLog
from supervisor.memory_cgroup import MemoryCgroup
from supervisor.messages import Slow
from supervisor.page import Page, State
from supervisor.relay import Source
from supervisor.report import ExitReport
from supervisor.verdict import Evidence, ExitReason, MemoryFacts, classify, exit_code, signal_number

MAX_STACK_BYTES = 16_000


@dataclass(frozen=True)
class Remains:
    """Two memory files that outlive a worker: the stack that faulthandler wrote, and its last exception."""

    stack: int
    words: int

    @classmethod
    def create(cls) -> Remains:
        return cls(create_memory_file("worker-stack"), create_memory_file("worker-words"))

    def read_stack(self, start_bytes: int = 0) -> str:
        return os.pread(self.stack, MAX_STACK_BYTES, start_bytes).decode(errors="replace")

    @property
    def stack_bytes(self) -> int:
        return os.fstat(self.stack).st_size

    def read_exception(self) -> bytes | None:
        return os.pread(self.words, os.fstat(self.words).st_size, 0) or None

    def close(self) -> None:
        close_all((self.stack, self.words))


class Place(NamedTuple):
    """What a worker is at: its state, and the task and the item in hand, None where it has none."""

    state: State
    task: int | None
    item: int | None

    @classmethod
    def of(cls, page: Page) -> Place:
        state = page.state
        at_work = state in (State.SAMPLE, State.COLLATE, State.SENDING)
        return cls(state, page.task if at_work else None, page.item if state is State.SAMPLE else None)


class Worker:
    """A process that the supervisor made and has not reaped yet."""

    def __init__(self, worker: int, pid: int, restarts: int, page: Page, remains: Remains) -> None:
        self.worker = worker
        self.pid = pid
        self.restarts = restarts
        self.page = page
        self.remains = remains
        self.pidfd = open_pidfd(pid)
        self.started_s = time.monotonic()
        self.stderr: Source | None = None
        self.announced = False  # the consumer knows that it is ready
        self.replaces_death_s: float | None = None
        self.cgroup: MemoryCgroup | None = None  # its own
        self.ended: ExitReason | None = None  # why we sent SIGKILL
        self.ended_because = ""
        self.memory = MemoryLog(pid)
        self.clock = TaskClock(self.started_s)
        self.slow_task: int | None = None  # of which the consumer has been told
        self.is_hung = False
        self.status: int | None = None  # the kernel's, once it is collected
        self.peak_bytes = 0
        self._done_seen = 0
        self._completed = 0, page.worked_s
        self._stack_from_bytes = 0  # what is before was asked for in vain
        self._is_asked_for_stack = False
        self._place = Place.of(page)  # where it hangs, if it does

    def read_memory(self, now: float) -> bool:
        """Take a reading; return whether it has memory, which it has not once it is on its way out."""
        return self.memory.read(now)

    def has_progressed(self) -> bool:
        """Whether it has completed a task since this was last asked."""
        before, self._done_seen = self._done_seen, self.page.done
        return self._done_seen > before

    def completed_since_last_look(self) -> tuple[float, int]:
        """Return how many seconds it worked on how many tasks that it has completed since this was asked."""
        done, worked_s = self._completed
        self._completed = self.page.done, self.page.worked_s
        return self._completed[1] - worked_s, self._completed[0] - done

    def tell_to_leave(self, because: str) -> None:
        """Have it end before its next task, remembering why."""
        self.page.tell_to_leave()
        self.ended_because = because

    # ---- its stack -------------------------------------------------------------------------------

    @property
    def is_asked_for_stack(self) -> bool:
        return self._is_asked_for_stack

    def note_where_it_hangs(self) -> None:
        self.is_hung, self._place = True, Place.of(self.page)

    def ask_for_stack(self) -> None:
        """Have faulthandler write its stack, which takes a moment."""
        self._is_asked_for_stack = True
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(self.pid, STACK_SIGNAL)

    def forget_stack(self) -> None:
        """Let what it wrote not pass for the stack of its end."""
        if self._is_asked_for_stack:
            self._is_asked_for_stack = False
            self._stack_from_bytes = self.remains.stack_bytes

    def is_stopped(self) -> bool:
        """Whether it is stopped, by SIGSTOP or a debugger."""
        return self.memory.status in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)

    def is_starting_late(self, now: float) -> bool:
        """Whether this is a replacement, for which nobody waits in ``start``, and takes long to start up."""
        is_late = self.replaces_death_s is not None and now - self.started_s >= hang.SLOW_S
        return is_late and self.page.state is State.STARTING and self.slow_task != self.page.task

    def describe_slowness(self, spent_s: float) -> Slow:
        """Return what is to be told of the task in hand, with the stack that was asked for."""
        stack = self.remains.read_stack(self._stack_from_bytes) or "(no stack: it is stopped)"
        place = Place.of(self.page)
        return Slow(self.worker, self.pid, spent_s, place.task, place.item, stack)

    # ---- its end ---------------------------------------------------------------------------------

    def signal_group(self, number: int) -> None:
        """Signal the worker and what it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)
        if number == signal.SIGKILL:  # user code may have moved it to another group
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, number)

    def end(self, reason: ExitReason, because: str) -> None:
        """Kill it, remembering why."""
        self.ended, self.ended_because = reason, because
        self.signal_group(signal.SIGKILL)

    def has_exited(self) -> bool:
        """Whether it has ended; it stays unreaped, so that its pid and its group are still its own."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def collect(self) -> None:
        """Take an ended worker's status from the kernel."""
        self.signal_group(signal.SIGKILL)  # what it had started ends with it
        _, self.status, usage = os.wait4(self.pid, 0)
        self.peak_bytes = usage.ru_maxrss * 1024

    @property
    def was_killed(self) -> bool:
        """Whether SIGKILL ended it, and not ours. Known once it is collected."""
        return self.status == signal.SIGKILL and self.ended is None

    def reap(self, *, asked: bool, memory: MemoryFacts = MemoryFacts()) -> tuple[ExitReport, bytes | None]:  # noqa: B008
        """Take leave of an ended worker; return its report and the exception it left, packed."""
        if self.status is None:
            self.collect()
        exception = self.remains.read_exception()
        report = self._report(memory, exception, asked)
        self.remains.close()
        if self.pidfd is not None:
            os.close(self.pidfd)
        return report, exception

    def descriptors(self) -> list[int]:
        """All that a sibling must not inherit."""
        pidfd = [] if self.pidfd is None else [self.pidfd]
        return [self.remains.stack, self.remains.words, *pidfd]

    def _report(self, memory: MemoryFacts, exception: bytes | None, asked: bool) -> ExitReport:
        assert self.status is not None
        now = time.monotonic()
        state, stack = self.page.state, self.remains.read_stack(self._stack_from_bytes)
        evidence = Evidence(state, asked, self.ended, exception is not None, stack, memory)
        reason, confidence, because = classify(self.status, evidence)
        place = self._place if self.ended is ExitReason.HUNG else Place.of(self.page)
        ours = reason in (ExitReason.MEMORY_LIMIT, ExitReason.HUNG)
        return ExitReport(
            worker=self.worker,
            pid=self.pid,
            reason=reason,
            exit_code=exit_code(self.status),
            signal=signal_number(self.status),
            uptime_s=now - self.started_s,
            state=place.state,
            traceback=exceptions.text_of(exception) if exception else stack,
            readings=self.memory.before(now),
            peak_rss_bytes=self.peak_bytes,
            host_available_bytes=memory.available_bytes,
            cgroup_limit_bytes=memory.limit_bytes,
            cgroup_used_bytes=memory.used_bytes,
            evidence=[because, *([self.ended_because] if ours or self.ended else [])],
            confidence=confidence,
            task=place.task,
            item=place.item,
        )
