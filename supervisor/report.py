"""Why a worker ended: one ExitReport for each end, and the pure function that decides.

What is said is what is proven: the wait status, what we did ourselves, what the worker wrote into memory
that outlives it. Non-goals: finding these facts (see loop) and what to do about them (see policy).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any, Literal, NamedTuple

from supervisor.page import State

Confidence = Literal["proven", "likely", "unknown"]

CRASH_SIGNALS = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT})
FATAL_ERROR = "Fatal Python error"  # how faulthandler opens
SUPERVISOR = -1  # in place of a worker's id
LOST = -1  # in place of a wait status that nobody can have any more

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

    Not given yet: OOM_KILLED.

    >>> ExitReason.CRASHED == "crashed"
    True
    """

    EXCEPTION = "exception"  # uncaught, outside a sample
    EXITED = "exited"  # any exit code, 0 too
    CRASHED = "crashed"  # SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT
    KILLED = "killed"  # another signal, from outside
    OOM_KILLED = "oom_killed"
    MEMORY_LIMIT = "memory_limit"  # it had more memory of its own than it may have
    HUNG = "hung"  # it was at one task for too long
    CLOSED = "closed"  # we asked


@dataclass(frozen=True)
class Evidence:
    """What is known about an end beside its wait status.

    Parameters:
        state: what the worker was doing, from its page.
        asked: the supervisor was stopping its workers.
        ended: why the supervisor itself had sent SIGKILL, if it had.
        raised: the worker left an uncaught exception behind.
        stack: what faulthandler wrote.
    """

    state: State = State.IDLE
    asked: bool = False
    ended: ExitReason | None = None
    raised: bool = False
    stack: str = ""


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
        because = "the supervisor did not send SIGKILL; who did is not known"
        return Verdict(ExitReason.KILLED, "unknown", because)
    return Verdict(ExitReason.KILLED, "proven", "the wait status names a signal that is not ours")


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
    evidence: list[str] = field(default_factory=list)
    confidence: Confidence = "unknown"
    replaced_s: float | None = None
    task: int | None = None
    item: int | None = None

    @property
    def is_death(self) -> bool:
        """Whether this was an end that nobody had asked for."""
        left = self.reason is ExitReason.MEMORY_LIMIT and self.exit_code == 0
        return self.reason is not ExitReason.CLOSED and not left

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain values, ready for JSON when the sample's index is."""
        plain = asdict(self)
        plain["reason"] = self.reason.value
        plain["state"] = self.state.name
        plain["readings"] = [list(reading) for reading in self.readings]
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
            doing += f", sample {self.sample!r}"
        return doing

    @property
    def _peak(self) -> str:
        peak_mib = self.peak_rss_bytes / 2**20
        return f", peak memory {peak_mib:.0f} MiB" if peak_mib else ""

    def __str__(self) -> str:
        who = "the supervisor" if self.worker == SUPERVISOR else f"worker {self.worker}"
        lines = [
            f"{who} (pid {self.pid}) {self.ending}.",
            f"  reason:     {self.reason.value} ({self.confidence}: {'; '.join(self.evidence)})",
        ]
        if self.worker != SUPERVISOR:  # whose state and memory nobody knows
            lines += [
                f"  while:      {self.where}" + (f", attempt {self.attempt}" if self.attempt else ""),
                f"  lived:      {self.uptime_s:.2f} s" + self._peak,
            ]
        if self.replaced_s is not None:
            lines.append(f"  replaced:   in {self.replaced_s * 1000:.1f} ms")
        for name, text in (("stderr", self.stderr), ("traceback", self.traceback)):
            if text:
                lines += [f"  {name}:", *("    " + line for line in text.rstrip().splitlines())]
        return "\n".join(lines)


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
