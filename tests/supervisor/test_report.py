"""What is concluded from a wait status and the evidence, without a process."""

from __future__ import annotations

import json
import pickle
import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.page import State
from supervisor.report import Evidence, ExitReason, ExitReport, WorkerDiedError, classify, supervisor_report


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


@pytest.mark.parametrize("number", ["SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT"])
def test_a_crash_is_a_crash_even_where_we_were_stopping_or_ending_it(number: str) -> None:
    for evidence in (Evidence(asked=True), Evidence(ended=ExitReason.HUNG), Evidence()):
        assert classify(signal.Signals[number], evidence).reason is ExitReason.CRASHED


@pytest.mark.parametrize("state", [state for state in State if state is not State.CLOSED])
def test_an_exit_code_of_0_is_an_end_unasked_for_whatever_it_was_doing(state: State) -> None:
    assert classify(exited(0), Evidence(state=state)).reason is ExitReason.EXITED


@given(
    status=st.one_of(st.integers(0, 255).map(exited), st.integers(1, 64)),
    evidence=st.builds(
        Evidence,
        state=st.sampled_from(State),
        asked=st.booleans(),
        ended=st.none() | st.sampled_from(ExitReason),
        raised=st.booleans(),
        stack=st.sampled_from(["", CRASH]),
    ),
)
def test_every_status_has_a_reason_and_a_sentence(status: int, evidence: Evidence) -> None:
    verdict = classify(status, evidence)
    assert verdict.reason in ExitReason
    assert verdict.because
    assert verdict.confidence in ("proven", "likely", "unknown")


def report(**fields: object) -> ExitReport:
    return ExitReport(worker=1, pid=4711, reason=ExitReason.CRASHED, signal=11, **fields)  # type: ignore[arg-type]


def test_a_report_reads_as_a_diagnosis() -> None:
    text = str(report(batch=12, sample=345, attempt=2, state=State.SAMPLE, traceback="in decode"))
    assert text.startswith("worker 1 (pid 4711) is killed by signal: Segmentation fault.")
    assert "loading a sample, batch 12, sample 345, attempt 2" in text
    assert "in decode" in text


def test_a_report_tells_only_what_is_known() -> None:
    text = str(ExitReport(worker=0, pid=12, reason=ExitReason.EXITED, exit_code=3))
    assert text.startswith("worker 0 (pid 12) exited unexpectedly with exit code 3.")
    for word in ("batch", "sample", "attempt", "replaced", "stderr", "traceback"):
        assert word not in text


def test_a_report_tells_what_the_worker_wrote_last_and_when_it_was_replaced() -> None:
    text = str(report(stderr="libjpeg: bad\nmarker\n", replaced_s=0.0042))
    assert "    libjpeg: bad\n    marker" in text
    assert "in 4.2 ms" in text


def test_a_signal_without_a_name_is_told_by_number() -> None:
    assert ExitReport(0, 12, ExitReason.KILLED, signal=64).ending.endswith(("64", "Real-time signal 30"))


@pytest.mark.parametrize("reason", ExitReason)
def test_only_an_end_that_we_asked_for_is_no_death(reason: ExitReason) -> None:
    assert ExitReport(0, 12, reason).is_death == (reason is not ExitReason.CLOSED)


def test_the_end_of_a_supervisor_has_a_report_too() -> None:
    own = supervisor_report(4711, signal.SIGKILL)
    assert (own.worker, own.pid, own.signal, own.reason) == (-1, 4711, signal.SIGKILL, ExitReason.KILLED)
    assert "this was the supervisor process" in own.evidence
    assert supervisor_report(4711, exited(0)).reason is ExitReason.EXITED
    first, *others = str(own).splitlines()
    assert first == "the supervisor (pid 4711) is killed by signal: Killed."
    assert others[0].startswith("  reason:     killed (unknown: this was the supervisor process; ")


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
