"""What is concluded from a wait status and the evidence, without a process."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.page import State
from supervisor.verdict import Evidence, ExitReason, MemoryFacts, classify


def exited(code: int) -> int:
    return code << 8


CRASH = "Fatal Python error: Segmentation fault"
MIB = 1 << 20
OOM, KILLED = ExitReason.OOM_KILLED, ExitReason.KILLED


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


@pytest.mark.parametrize(
    ("memory", "reason", "confidence"),
    [
        # the kernel log
        (MemoryFacts(named=True), OOM, "proven"),
        (MemoryFacts(named=True, oom_kills=0), OOM, "proven"),
        (MemoryFacts(named=False), KILLED, "unknown"),
        (MemoryFacts(named=False, oom_kills=1), KILLED, "unknown"),  # a stranger's
        (MemoryFacts(named=False, oom_kills=1, alone=True), KILLED, "unknown"),  # what it had started
        (MemoryFacts(named=False, peak_bytes=99, limit_bytes=100), KILLED, "unknown"),
        # without it, the counter of a group
        (MemoryFacts(oom_kills=1, alone=True), OOM, "proven"),
        (MemoryFacts(oom_kills=1), OOM, "likely"),
        (MemoryFacts(oom_kills=0, alone=True), KILLED, "unknown"),
        (MemoryFacts(oom_kills=0, peak_bytes=99, limit_bytes=100), KILLED, "unknown"),
        (MemoryFacts(oom_kills=0, available_bytes=1, total_bytes=100), KILLED, "unknown"),
        # without either, what the memory looked like
        (MemoryFacts(peak_bytes=99, limit_bytes=100), OOM, "likely"),
        (MemoryFacts(peak_bytes=50, limit_bytes=100, used_bytes=100), KILLED, "unknown"),
        (MemoryFacts(available_bytes=1, total_bytes=100), OOM, "likely"),
        (MemoryFacts(available_bytes=50, total_bytes=100), KILLED, "unknown"),
        (MemoryFacts(available_bytes=3 << 30, total_bytes=1 << 40), KILLED, "unknown"),
        (MemoryFacts(alone=True), KILLED, "unknown"),
        (MemoryFacts(), KILLED, "unknown"),
    ],
)
def test_the_evidence_ladder(memory: MemoryFacts, reason: ExitReason, confidence: str) -> None:
    verdict = classify(signal.SIGKILL, Evidence(memory=memory))
    assert (verdict.reason, verdict.confidence) == (reason, confidence)


@pytest.mark.parametrize(
    ("status", "evidence"),
    [
        (signal.SIGKILL, Evidence(ended=ExitReason.HUNG)),
        (signal.SIGKILL, Evidence(asked=True)),
        (signal.SIGTERM, Evidence()),
        (signal.SIGSEGV, Evidence(stack=CRASH)),
        (exited(0), Evidence()),
        (exited(137), Evidence()),
    ],
)
def test_what_did_not_end_by_a_strangers_sigkill_is_no_oom_kill(status: int, evidence: Evidence) -> None:
    full = MemoryFacts(oom_kills=1, alone=True, peak_bytes=99, limit_bytes=100, available_bytes=0)
    assert classify(status, replace(evidence, memory=full)) == classify(status, evidence)


@pytest.mark.parametrize("number", ["SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT"])
def test_a_crash_is_a_crash_even_where_we_were_stopping_or_ending_it(number: str) -> None:
    for evidence in (Evidence(asked=True), Evidence(ended=ExitReason.HUNG), Evidence()):
        assert classify(signal.Signals[number], evidence).reason is ExitReason.CRASHED


@pytest.mark.parametrize("state", [s for s in State if s not in (State.CLOSED, State.LEAVING)])
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
        memory=st.builds(
            MemoryFacts, st.none() | st.booleans(), st.none() | st.integers(0, 2), st.booleans()
        ),
    ),
)
def test_every_status_has_a_reason_and_a_sentence(status: int, evidence: Evidence) -> None:
    verdict = classify(status, evidence)
    assert verdict.reason in ExitReason
    assert verdict.because
    assert verdict.confidence in ("proven", "likely", "unknown")
