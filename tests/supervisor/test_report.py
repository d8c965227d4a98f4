"""What a report says, to people and to machines."""

from __future__ import annotations

import json
import pickle
import signal
from typing import Any

import numpy as np
import pytest

from supervisor.page import State
from supervisor.report import WIDTH, ExitReport, WorkerDiedError, supervisor_report
from supervisor.verdict import ExitReason

MIB = 1 << 20


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
    assert ExitReport(0, 12, reason, signal=9).is_death == (reason is not ExitReason.CLOSED)
    left = ExitReport(0, 12, ExitReason.MEMORY_LIMIT, exit_code=0)
    assert not left.is_death


def test_the_end_of_a_supervisor_has_a_report_too() -> None:
    own = supervisor_report(4711, signal.SIGKILL)
    assert (own.worker, own.pid, own.signal, own.reason) == (-1, 4711, signal.SIGKILL, ExitReason.KILLED)
    assert "this was the supervisor process" in own.evidence
    assert supervisor_report(4711, 0).reason is ExitReason.EXITED
    told = supervisor_report(4711, 1 << 8, "LookupError: what no one foresaw")
    assert (told.reason, told.traceback) == (ExitReason.EXCEPTION, "LookupError: what no one foresaw")
    first, *others = str(own).splitlines()
    assert first == "the supervisor (pid 4711) is killed by signal: Killed."
    assert others[0].startswith("  reason:     killed (unknown: this was the supervisor process; ")


def test_a_report_is_ready_for_json() -> None:
    plain = report(readings=[(0.25, 1 << 20)], evidence=["a fact"]).to_dict()
    assert json.loads(json.dumps(plain)) == plain
    assert (plain["reason"], plain["state"]) == ("crashed", "STARTING")


@pytest.mark.parametrize(
    ("index", "plain"),
    [
        (7, 7),
        (np.int64(7), 7),
        (np.uint8(7), 7),
        (True, True),
        ("a.jpg", "a.jpg"),
        (0.5, 0.5),
        (None, None),
        (["a", 1], ["a", 1]),
        ((1, 2), "(1, 2)"),
        (float("inf"), "inf"),
        (b"ab", "b'ab'"),
        ({1: 2}, "{1: 2}"),
        (np.arange(3), "array([0, 1, 2])"),
        (np.float32, "<class 'numpy.float32'>"),
    ],
    ids=repr,
)
def test_a_report_is_ready_for_json_whatever_the_index_is(index: Any, plain: Any) -> None:
    text = json.dumps(report(sample=index).to_dict(), allow_nan=False)
    assert json.loads(text)["sample"] == plain
    assert type(json.loads(text)["sample"]) is type(plain)


class Unspeakable:
    def __repr__(self) -> str:
        raise RuntimeError("no name")


def test_an_index_without_a_repr_breaks_no_report() -> None:
    named = report(sample=Unspeakable())
    assert "Unspeakable" in json.dumps(named.to_dict())
    assert "Unspeakable object at" in str(named)


def test_a_report_fits_a_terminal() -> None:
    text = str(
        report(
            sample="/data/" + 400 * "x",
            state=State.SAMPLE,
            evidence=["a fact " * 30, "another"],
            advice="use fewer workers " * 10,
            traceback="\n".join(f"frame {number}" for number in range(1000)),
            stderr="z" * 1000,
        )
    )
    assert max(len(line) for line in text.splitlines()) <= WIDTH
    assert len(text.splitlines()) < 100
    for part in ("frame 0", "frame 999", "... 940 lines ...", "/data/xxx", "another", "advice:"):
        assert part in text, part


def test_a_report_of_a_kill_tells_the_memory() -> None:
    killed = ExitReport(
        worker=0,
        pid=12,
        reason=ExitReason.OOM_KILLED,
        signal=signal.SIGKILL,
        readings=[(2.0 - 0.25 * number, number * 1000 * MIB) for number in range(1, 8)],
        peak_rss_bytes=7500 * MIB,
        host_available_bytes=90 * MIB,
        cgroup_limit_bytes=8192 * MIB,
        cgroup_used_bytes=8100 * MIB,
    )
    text = " ".join(str(killed).split())
    for part in (
        "2,000, 3,000, 4,000, 5,000, 6,000, 7,000 MiB in its last 1.50 s",
        "peak memory 7,500 MiB",
        "cgroup's limit 8,192 MiB, 8,100 MiB in use",
        "90 MiB available on the machine",
    ):
        assert part in text, part


@pytest.mark.parametrize(
    ("reason", "number", "is_intended"),
    [
        (ExitReason.MEMORY_LIMIT, None, True),
        (ExitReason.MEMORY_LIMIT, signal.SIGKILL, False),
        (ExitReason.OOM_KILLED, signal.SIGKILL, False),
    ],
)
def test_only_who_left_by_itself_was_meant_to(
    reason: ExitReason, number: int | None, is_intended: bool
) -> None:
    assert ExitReport(0, 12, reason, signal=number).is_intended == is_intended


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
