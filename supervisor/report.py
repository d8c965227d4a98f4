"""One ExitReport for each end of a worker, and the error where the dead are not replaced: for people.

Non-goals: why it ended (see verdict) and what to do about it (see policy).
"""

from __future__ import annotations

import json
import operator
import signal
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from supervisor.page import State
from supervisor.verdict import (
    LOST,
    Confidence,
    Evidence,
    ExitReason,
    Verdict,
    classify,
    exit_code,
    mib,
    signal_number,
)

SUPERVISOR = -1  # in place of a worker's id
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


def supervisor_report(pid: int, status: int, traceback: str = "") -> ExitReport:
    """Return the report of a supervisor's own end, under the worker id SUPERVISOR.

    ``traceback``: the text of what ended it, if it could still tell.
    """
    if status == LOST:
        because = "this process, or whoever reaps for it, had waited for it elsewhere"
        verdict = Verdict(ExitReason.KILLED, "unknown", because)
    else:
        verdict = classify(status, Evidence(raised=bool(traceback)))
    reason, confidence, because = verdict
    return ExitReport(
        worker=SUPERVISOR,
        pid=pid,
        reason=reason,
        exit_code=exit_code(status),
        signal=signal_number(status),
        traceback=traceback,
        confidence=confidence,
        evidence=["this was the supervisor process", because],
    )


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
