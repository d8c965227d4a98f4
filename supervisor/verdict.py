"""Why a worker ended: the pure function that decides, and what it is given.

What is said is what is proven: the wait status, what we did ourselves, what the worker wrote into memory
that outlives it, what the kernel counted. Non-goals: finding these facts (see loop and oom) and telling them
to people (see report).
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from enum import Enum
from typing import Literal, NamedTuple

from supervisor.page import State

Confidence = Literal["proven", "likely", "unknown"]

CRASH_SIGNALS = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT})
FATAL_ERROR = "Fatal Python error"  # how faulthandler opens
LOST = -1  # in place of a wait status that nobody can have any more
NOT_OURS = "the supervisor did not send SIGKILL; who did is not known"
NEAR_LIMIT = 0.9  # of the cgroup's limit
HOST_FULL = 0.05  # of the machine's memory: the kernel kills at less, but a reading is up to 0.25 s old
HOST_FULL_BYTES = 2 << 30  # whatever the machine has


class ExitReason(str, Enum):
    """Why a worker ended. A member equals its value, a string.


    >>> ExitReason.CRASHED == "crashed"
    True
    """

    EXCEPTION = "exception"  # uncaught, outside a sample
    EXITED = "exited"  # any exit code, 0 too
    CRASHED = "crashed"  # SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT
    KILLED = "killed"  # another signal, from outside
    OOM_KILLED = "oom_killed"  # by the kernel, for want of memory
    MEMORY_LIMIT = "memory_limit"  # it had more memory of its own than it may have
    HUNG = "hung"  # it was at one task for too long
    CLOSED = "closed"  # we asked


@dataclass(frozen=True)
class MemoryFacts:
    """What is known of the memory around a worker that has ended. None: not known.

    Parameters:
        named: whether the kernel log, read without a gap, names it as killed for want of memory.
        oom_kills: how many such kills its cgroup has counted that may be it: those that came while it was
            last seen, explain no other death, and would not have met a larger worker that died with it.
        alone: no other process was in its cgroup.
        peak_bytes: the most memory that it ever had resident.
        limit_bytes: the least limit of its cgroup and of those around it; None: there is none, too.
        used_bytes: what was charged under that limit at its last reading.
        available_bytes: what the machine had left at its last two readings, the less.
        total_bytes: what the machine has.
    """

    named: bool | None = None
    oom_kills: int | None = None
    alone: bool = False
    peak_bytes: int = 0
    limit_bytes: int | None = None
    used_bytes: int | None = None
    available_bytes: int | None = None
    total_bytes: int = 0

    @property
    def was_near_limit(self) -> bool:
        return self.limit_bytes is not None and self.peak_bytes >= NEAR_LIMIT * self.limit_bytes

    @property
    def host_was_full(self) -> bool:
        full_bytes = min(HOST_FULL * self.total_bytes, HOST_FULL_BYTES)
        return self.available_bytes is not None and self.available_bytes <= full_bytes


@dataclass(frozen=True)
class Evidence:
    """What is known about an end beside its wait status.

    Parameters:
        state: what the worker was doing, from its page.
        asked: the supervisor was stopping its workers.
        ended: why the supervisor itself had sent SIGKILL, if it had.
        raised: the worker left an uncaught exception behind.
        stack: what faulthandler wrote.
        memory: what is known of the memory around it.
    """

    state: State = State.IDLE
    asked: bool = False
    ended: ExitReason | None = None
    raised: bool = False
    stack: str = ""
    memory: MemoryFacts = MemoryFacts()


class Verdict(NamedTuple):
    """A reason, how sure it is, and the sentence that says why."""

    reason: ExitReason
    confidence: Confidence
    because: str


def classify(status: int, evidence: Evidence) -> Verdict:
    """Decide why a worker with wait status ``status`` ended.

    >>> classify(9, Evidence(asked=True)).reason
    <ExitReason.CLOSED: 'closed'>
    >>> classify(0, Evidence(state=State.SAMPLE)).reason
    <ExitReason.EXITED: 'exited'>
    """
    if os.WIFSIGNALED(status):
        return _classify_signal(os.WTERMSIG(status), evidence)
    return _classify_exit(os.WEXITSTATUS(status), evidence)


def _classify_exit(code: int, evidence: Evidence) -> Verdict:
    if evidence.raised:
        return Verdict(ExitReason.EXCEPTION, "proven", "it left its exception behind")
    if code == 0 and evidence.state is State.CLOSED:
        return Verdict(ExitReason.CLOSED, "proven", "its pipe was closed and it had nothing left to do")
    if code == 0 and evidence.state is State.LEAVING:
        return Verdict(ExitReason.MEMORY_LIMIT, "proven", "it left between two tasks, as it was told to")
    return Verdict(ExitReason.EXITED, "proven", f"the wait status says exit code {code}")


def _classify_signal(number: int, evidence: Evidence) -> Verdict:
    if number in CRASH_SIGNALS:
        if evidence.stack.startswith(FATAL_ERROR):
            return Verdict(ExitReason.CRASHED, "proven", "faulthandler recorded the crash")
        return Verdict(ExitReason.CRASHED, "likely", "no crash was recorded: the signal may be from outside")
    if number == signal.SIGKILL and evidence.ended is not None:
        return Verdict(evidence.ended, "proven", "the supervisor ended it")
    if number in (signal.SIGKILL, signal.SIGTERM) and evidence.asked:
        return Verdict(ExitReason.CLOSED, "proven", "the supervisor was stopping it")
    if number == signal.SIGKILL:
        return _classify_sigkill(evidence.memory)
    return Verdict(ExitReason.KILLED, "proven", "the wait status names a signal that is not ours")


def _classify_sigkill(memory: MemoryFacts) -> Verdict:
    """Tell the kernel's kill for want of memory from another's: the first rung that holds.

    What the kernel says outweighs what the memory looked like, also where it says no.
    """
    if memory.named:
        return _oom("proven", "the kernel log names it as killed for want of memory")
    if memory.named is None and memory.oom_kills:
        if memory.alone:
            return _oom("proven", "a cgroup with no other process counted an OOM kill")
        return _oom("likely", "its cgroup, which others share, counted an OOM kill")
    if memory.named is None and memory.oom_kills is None:
        if memory.was_near_limit:
            return _oom("likely", "its peak memory was near its cgroup's limit")
        if memory.host_was_full:
            return _oom("likely", "the machine had next to no memory left")
    return Verdict(ExitReason.KILLED, "unknown", f"{NOT_OURS}{_not_the_kernel(memory)}")


def _oom(confidence: Confidence, because: str) -> Verdict:
    return Verdict(ExitReason.OOM_KILLED, confidence, because)


def _not_the_kernel(memory: MemoryFacts) -> str:
    if memory.named is False:
        return ", and the kernel log names no OOM kill of it"
    if memory.oom_kills == 0:
        return ", and its cgroup counted no OOM kill that could be it"
    return ""


def exit_code(status: int) -> int | None:
    """Return the exit code in a wait status, or None after a signal."""
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else None


def signal_number(status: int) -> int | None:
    """Return the signal in a wait status, or None after an exit."""
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else None


def mib(size_bytes: int) -> str:
    """Return a size in words.

    >>> mib(3 << 30)
    '3,072 MiB'
    """
    return f"{size_bytes / 2**20:,.0f} MiB"
