"""What is concluded from a wait status and the evidence, without a process."""

from __future__ import annotations

import json
import pickle
import signal

import pytest

from supervisor.page import State
from supervisor.report import Evidence, ExitReason, ExitReport, WorkerDiedError, classify


def exited(code: int) -> int:
    return code << 8


CRASH = "Fatal Python error: Segmentation fault"


@pytest.mark.parametrize(
    ("status", "evidence", "reason", "confidence"),
    [
        (exited(0), Evidence(state=State.SAMPLE), ExitReason.EXITED, "proven"),
        (exited(3), Evidence(), ExitReason.EXITED, "proven"),
        (exited(1), Evidence(raised=True), ExitReason.EXCEPTION, "proven"),
        (exited(0), Evidence(state=State.CLOSED), ExitReason.CLOSED, "proven"),
        (exited(0), Evidence(state=State.SAMPLE, asked=True), ExitReason.EXITED, "proven"),
        (signal.SIGSEGV, Evidence(stack=CRASH), ExitReason.CRASHED, "proven"),
        (signal.SIGSEGV, Evidence(), ExitReason.CRASHED, "likely"),
        (signal.SIGABRT, Evidence(stack=CRASH, asked=True), ExitReason.CRASHED, "proven"),
        (signal.SIGKILL, Evidence(), ExitReason.KILLED, "unknown"),
        (signal.SIGKILL, Evidence(ended=ExitReason.HUNG), ExitReason.HUNG, "proven"),
        (signal.SIGKILL, Evidence(asked=True), ExitReason.CLOSED, "proven"),
        (signal.SIGTERM, Evidence(asked=True), ExitReason.CLOSED, "proven"),
        (signal.SIGTERM, Evidence(), ExitReason.KILLED, "proven"),
        (signal.SIGINT, Evidence(asked=True), ExitReason.KILLED, "proven"),
    ],
)
def test_every_end_has_one_reason(
    status: int, evidence: Evidence, reason: ExitReason, confidence: str
) -> None:
    verdict = classify(status, evidence)
    assert (verdict.reason, verdict.confidence) == (reason, confidence)
    assert verdict.because


def report(**fields: object) -> ExitReport:
    return ExitReport(worker=1, pid=4711, reason=ExitReason.CRASHED, signal=11, **fields)  # type: ignore[arg-type]


def test_a_report_reads_as_a_diagnosis() -> None:
    text = str(report(batch=12, sample=345, attempt=2, state=State.SAMPLE, traceback="in decode"))
    assert text.startswith("worker 1 (pid 4711) is killed by signal: Segmentation fault.")
    assert "loading a sample, batch 12, sample 345, attempt 2" in text
    assert "in decode" in text


def test_a_report_is_ready_for_json() -> None:
    plain = report(readings=[(0.25, 1 << 20)], evidence=["a fact"]).to_dict()
    assert json.loads(json.dumps(plain)) == plain
    assert (plain["reason"], plain["state"]) == ("crashed", "STARTING")


def test_the_error_opens_as_torchs_does_and_tells_the_last_three() -> None:
    reports = [report(batch=number) for number in range(5)]
    error = WorkerDiedError(reports, "It was not replaced.", "DataLoader worker")
    assert str(error).startswith(
        "DataLoader worker (pid 4711) is killed by signal: Segmentation fault. It was not replaced."
    )
    assert [f"batch {number}" in str(error) for number in range(5)] == [False, False, True, True, True]
    assert error.report is reports[-1]


def test_the_error_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(WorkerDiedError([report()], "Why.", "Worker")))
    assert error.reports == [report()]
    assert str(error) == str(WorkerDiedError([report()], "Why.", "Worker"))
