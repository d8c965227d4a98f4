"""Why a worker ended: one ExitReport for each end, and the pure function that decides.

What is said is what is proven: the wait status, what we did ourselves, what the worker wrote into memory
that outlives it. Non-goals: finding these facts (see loop) and what to do about them (see policy).
"""

from __future__ import annotations

import json
import operator
import os
import signal
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any, Literal, NamedTuple

from supervisor.page import State

Confidence = Literal["proven", "likely", "unknown"]

CRASH_SIGNALS = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT})
FATAL_ERROR = "Fatal Python error"  # how faulthandler opens
SUPERVISOR = -1  # in place of a worker's id
LOST = -1  # in place of a wait status that nobody can have any more
NOT_OURS = "the supervisor did not send SIGKILL; who did is not known"
NEAR_LIMIT = 0.9  # of the cgroup's limit
HOST_FULL = 0.05  # of the machine's memory: the kernel kills at less, but a reading is up to 0.25 s old
HOST_FULL_BYTES = 2 << 30  # whatever the machine has

WIDTH = 100
MAX_TEXT_LINES = 60  # of a traceback or of stderr, in str()
MAX_NAME = 200  # characters of a sample's index
SHOWN_READINGS = 6

_DOING = {
    State.STARTING: "starting up",
    State.IDLE: "waiting for work",
    State.SAMPLE: "loading a sample",
    State.COLLATE: "collating",
    State.SENDING: "sending a result",
    State.CLOSED: "closing",
    State.LEAVING: "leaving, between two tasks",
}


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


@dataclass
class ExitReport:
    """The end of one worker.

    Parameters:
        worker: the worker's id, 0 to num_workers - 1; a replacement keeps it. -1: the supervisor.
        pid: its process id.
        reason: why it ended; see ExitReason.
        exit_code: the code it exited with, 0 to 255, or None after a signal.
        signal: the number of the signal that ended it, or None after an exit. Both are None where the
            exit status was lost with a supervisor that died.
        batch: number of the batch it was working on, or None.
        sample: index of the sample it was working on, or None.
        attempt: how many times that work had been tried, this time included, or None.
        uptime_s: seconds it lived.
        state: what it was doing.
        traceback: the Python traceback of an uncaught exception, or the stack of a crash; "" if none.
        stderr: the last that it wrote to standard error, at most 4 KiB; lost where its supervisor died.
        readings: its last memory readings: (seconds before its end, RSS in bytes).
        peak_rss_bytes: the most memory that it ever had resident.
        host_available_bytes: what the machine had left at its last readings, or None.
        cgroup_limit_bytes: the least memory limit of its cgroup and of those around it, or None.
        cgroup_used_bytes: what was charged under that limit at its last reading, or None.
        advice: what would help, after an OOM kill; else "".
        evidence: the facts behind ``reason``, a sentence each.
        confidence: "proven", "likely" or "unknown".
        replaced_s: seconds from when the death was noticed until a successor was ready, or None.
        task: number of the task in hand, as the pool's user counts, or None.
        item: position within that task, or None.

    >>> report = ExitReport(worker=1, pid=4711, reason=ExitReason.EXITED, exit_code=3, state=State.SAMPLE)
    >>> report.is_death, report.ending, report.where
    (True, 'exited unexpectedly with exit code 3', 'loading a sample')
    >>> report.to_dict()["reason"]
    'exited'
    """

    worker: int
    pid: int
    reason: ExitReason
    exit_code: int | None = None
    signal: int | None = None
    batch: int | None = None
    sample: Any = None
    attempt: int | None = None
    uptime_s: float = 0.0
    state: State = State.STARTING
    traceback: str = ""
    stderr: str = ""
    readings: list[tuple[float, int]] = field(default_factory=list)
    peak_rss_bytes: int = 0
    host_available_bytes: int | None = None
    cgroup_limit_bytes: int | None = None
    cgroup_used_bytes: int | None = None
    advice: str = ""
    evidence: list[str] = field(default_factory=list)
    confidence: Confidence = "unknown"
    replaced_s: float | None = None
    task: int | None = None
    item: int | None = None

    @property
    def is_death(self) -> bool:
        """Whether this was an end that nobody had asked for."""
        return self.reason is not ExitReason.CLOSED and not self.is_intended

    @property
    def is_intended(self) -> bool:
        """Whether the worker was replaced because we chose to, and left by itself."""
        return self.reason is ExitReason.MEMORY_LIMIT and self.signal is None

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain values that ``json.dumps`` takes.

        A sample's index that JSON does not know becomes a plain number if it is a whole one, else its repr.
        """
        plain = {part.name: getattr(self, part.name) for part in fields(self)}
        plain["reason"] = self.reason.value
        plain["state"] = self.state.name
        plain["sample"] = _plain(self.sample)
        plain["readings"] = [list(reading) for reading in self.readings]
        plain["evidence"] = list(self.evidence)
        return plain

    @property
    def ending(self) -> str:
        """How it ended, in the words that torch's loader uses."""
        if self.signal is not None:
            return f"is killed by signal: {signal.strsignal(self.signal) or self.signal}"
        if self.exit_code is None:
            return "ended, and its exit status is lost"
        if not self.is_death:
            return f"ended as it was asked to, with exit code {self.exit_code}"
        return f"exited unexpectedly with exit code {self.exit_code}"

    @property
    def where(self) -> str:
        """What it was doing, in words."""
        doing = _DOING[self.state]
        if self.batch is not None:
            doing += f", batch {self.batch}"
        if self.sample is not None:
            doing += f", sample {_name(self.sample)}"
        return doing

    def __str__(self) -> str:
        who = "the supervisor" if self.worker == SUPERVISOR else f"worker {self.worker}"
        why = f"{self.reason.value} ({self.confidence}: {'; '.join(self.evidence)})"
        lines = [f"{who} (pid {self.pid}) {self.ending}.", *_entry("reason", why)]
        if self.worker != SUPERVISOR:  # whose state and memory nobody knows
            attempt = f", attempt {self.attempt}" if self.attempt else ""
            peak = f", peak memory {mib(self.peak_rss_bytes)}" if self.peak_rss_bytes else ""
            lived = f"{self.uptime_s:.2f} s{peak}"
            lines += [*_entry("while", self.where + attempt), *_entry("lived", lived)]
        if self.reason in (ExitReason.OOM_KILLED, ExitReason.KILLED, ExitReason.MEMORY_LIMIT):
            lines += _entry("memory", self._memory())
        lines += _entry("advice", self.advice)
        if self.replaced_s is not None:
            lines += _entry("replaced", f"in {self.replaced_s * 1000:.1f} ms")
        return "\n".join([*lines, *_text("stderr", self.stderr), *_text("traceback", self.traceback)])

    def _memory(self) -> str:
        """Tell the last readings, in words."""
        parts = []
        if self.readings:
            sizes = ", ".join(f"{rss_bytes >> 20:,}" for _, rss_bytes in self.readings[-SHOWN_READINGS:])
            ago_s = self.readings[-SHOWN_READINGS:][0][0]
            parts.append(f"{sizes} MiB in its last {ago_s:.2f} s")
        if self.cgroup_limit_bytes is not None:
            used = "" if self.cgroup_used_bytes is None else f", {mib(self.cgroup_used_bytes)} in use"
            parts.append(f"cgroup's limit {mib(self.cgroup_limit_bytes)}{used}")
        if self.host_available_bytes is not None:
            parts.append(f"{mib(self.host_available_bytes)} available on the machine")
        return "; ".join(parts)


def mib(size_bytes: int) -> str:
    """Return a size in words.

    >>> mib(3 << 30)
    '3,072 MiB'
    """
    return f"{size_bytes / 2**20:,.0f} MiB"


def _entry(name: str, text: str) -> list[str]:
    """Return a line of a report, wrapped; none where there is nothing to say."""
    first = f"  {name + ':':<11} "
    return textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=" " * 14) if text else []


def _text(name: str, text: str) -> list[str]:
    """Return a text of many lines, without its middle where there are too many."""
    lines = ["    " + part for line in text.rstrip().splitlines() for part in _folded(line)]
    if len(lines) > MAX_TEXT_LINES:
        half = MAX_TEXT_LINES // 2
        lines[half:-half] = [f"    ... {len(lines) - 2 * half} lines ..."]
    return [f"  {name}:", *lines] if lines else []


def _folded(line: str) -> list[str]:
    """Return a line in parts that fit the terminal. What is longer than three such parts loses its rest."""
    width = WIDTH - 4
    parts = [line[start : start + width] for start in range(0, len(line), width)] or [""]
    return parts if len(parts) <= 3 else [*parts[:2], parts[2][:-3] + "..."]


def _name(index: Any) -> str:
    """Return the repr of an index, without its middle where it is long."""
    try:
        text = repr(index)
    except Exception:
        text = object.__repr__(index)
    return text if len(text) <= MAX_NAME else f"{text[: MAX_NAME // 2]}...{text[-MAX_NAME // 2 :]}"


def _plain(index: Any) -> Any:
    """Return an index as JSON can have it, the same when it is read again."""
    try:
        return operator.index(index) if not isinstance(index, bool) else index
    except Exception:
        return index if _is_plain(index) else _name(index)


def _is_plain(index: Any) -> bool:
    """Whether JSON gives the same back."""
    try:
        return bool(json.loads(json.dumps(index, allow_nan=False)) == index)
    except Exception:
        return False


def supervisor_report(pid: int, status: int) -> ExitReport:
    """Return the report of a supervisor's own end, under the worker id SUPERVISOR."""
    if status == LOST:
        because = "this process, or whoever reaps for it, had waited for it elsewhere"
        verdict = Verdict(ExitReason.KILLED, "unknown", because)
    else:
        verdict = classify(status, Evidence())
    reason, confidence, because = verdict
    return ExitReport(
        worker=SUPERVISOR,
        pid=pid,
        reason=reason,
        exit_code=exit_code(status),
        signal=signal_number(status),
        confidence=confidence,
        evidence=["this was the supervisor process", because],
    )


def exit_code(status: int) -> int | None:
    """Return the exit code in a wait status, or None after a signal."""
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else None


def signal_number(status: int) -> int | None:
    """Return the signal in a wait status, or None after an exit."""
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else None


class WorkerDiedError(RuntimeError):
    """Workers died and were not, or could not be, replaced.

    Parameters:
        reports: the ExitReport of every death that led to it, oldest first; at least one.
        why: a sentence that says why the dead were not replaced.
        kind: what to call a worker in the text.

    Its text opens as torch's does, and has the last three reports.

    >>> report = ExitReport(worker=0, pid=4711, reason=ExitReason.EXITED, exit_code=3)
    >>> error = WorkerDiedError([report], "It was not replaced, because restart=None.")
    >>> print(str(error).splitlines()[0])
    Worker (pid 4711) exited unexpectedly with exit code 3. It was not replaced, because restart=None.
    >>> error.report is report
    True
    """

    def __init__(self, reports: Sequence[ExitReport], why: str = "", kind: str = "Worker") -> None:
        self.reports = list(reports)
        self.why = why
        self.kind = kind
        super().__init__(self._text())

    @property
    def report(self) -> ExitReport:
        """The last death."""
        return self.reports[-1]

    def _text(self) -> str:
        opening = f"{self.kind} (pid {self.report.pid}) {self.report.ending}. {self.why}"
        return "\n\n".join([opening.strip(), *(str(report) for report in self.reports[-3:])])

    def __reduce__(self) -> tuple[Any, ...]:
        return (WorkerDiedError, (self.reports, self.why, self.kind))
