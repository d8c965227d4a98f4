"""One worker as the supervisor sees it: its descriptors, its memory readings, and the report of its end."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass

from supervisor import exceptions
from supervisor.channel import close_all
from supervisor.linux import create_memory_file, open_pidfd
from supervisor.memory import MemoryLog
from supervisor.memory_cgroup import MemoryCgroup
from supervisor.page import Page, State
from supervisor.report import (
    Evidence,
    ExitReason,
    ExitReport,
    MemoryFacts,
    classify,
    exit_code,
    signal_number,
)

MAX_STACK_BYTES = 16_000


@dataclass(frozen=True)
class Remains:
    """Two memory files that outlive a worker: the stack that faulthandler wrote, and its last exception."""

    stack: int
    words: int

    @classmethod
    def create(cls) -> Remains:
        return cls(create_memory_file("worker-stack"), create_memory_file("worker-words"))

    def read_stack(self) -> str:
        return os.pread(self.stack, MAX_STACK_BYTES, 0).decode(errors="replace")

    def read_exception(self) -> bytes | None:
        return os.pread(self.words, os.fstat(self.words).st_size, 0) or None

    def close(self) -> None:
        close_all((self.stack, self.words))


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
        self.announced = False  # the consumer knows that it is ready
        self.replaces_death_s: float | None = None
        self.cgroup: MemoryCgroup | None = None  # its own
        self.ended: ExitReason | None = None  # why we sent SIGKILL
        self.ended_because = ""
        self.status: int | None = None  # the kernel's, once it is collected
        self.peak_bytes = 0
        self._done_seen = 0
        self._memory = MemoryLog(pid)

    def read_memory(self, now: float) -> bool:
        """Take a reading; return whether it has memory, which it has not once it is on its way out."""
        return self._memory.read(now)

    def has_progressed(self) -> bool:
        """Whether it has completed a task since this was last asked."""
        before, self._done_seen = self._done_seen, self.page.done
        return self._done_seen > before

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
        state, stack = self.page.state, self.remains.read_stack()
        evidence = Evidence(state, asked, self.ended, exception is not None, stack, memory)
        reason, confidence, because = classify(self.status, evidence)
        at_work = state in (State.SAMPLE, State.COLLATE, State.SENDING)
        return ExitReport(
            worker=self.worker,
            pid=self.pid,
            reason=reason,
            exit_code=exit_code(self.status),
            signal=signal_number(self.status),
            uptime_s=now - self.started_s,
            state=state,
            traceback=exceptions.text_of(exception) if exception else stack,
            readings=self._memory.before(now),
            peak_rss_bytes=self.peak_bytes,
            host_available_bytes=memory.available_bytes,
            cgroup_limit_bytes=memory.limit_bytes,
            cgroup_used_bytes=memory.used_bytes,
            evidence=[because, *([self.ended_because] if self.ended_because else [])],
            confidence=confidence,
            task=self.page.task if at_work else None,
            item=self.page.item if state is State.SAMPLE else None,
        )
