"""Commands and events survive the journey; what is too large for a message is shortened, never refused."""

from __future__ import annotations

import pytest

from supervisor.channel import MAX_MESSAGE_BYTES
from supervisor.messages import (
    Check,
    Checked,
    Command,
    Died,
    End,
    Event,
    Failed,
    GaveUp,
    Ready,
    Start,
    Started,
    Stop,
    Stopped,
    decode,
    encode,
)
from supervisor.payload import Payload
from supervisor.report import ExitReport
from supervisor.verdict import ExitReason

BODIES: list[Command | Event] = [
    Start(
        1,
        2,
        Payload(6, b"other", frozenset(), ((0, 5, True),)),
        Payload(7, b"digest", frozenset({"numpy"}), ((0, 10, True),)),
    ),
    Check(),
    End(4711, ExitReason.HUNG, "it hung"),
    Stop(),
    Started(1, 4711, restarts=3),
    Ready(1, 4711, replaced_s=0.004),
    GaveUp("It was not replaced."),
    Checked(),
    Stopped(1),
    Failed(b"packed"),
]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: type(body).__name__)
def test_it_arrives_as_it_was(body: Command | Event) -> None:
    assert decode(encode(17, body)) == (17, body)


def test_a_report_that_fits_is_not_touched() -> None:
    died = Died(ExitReport(0, 4711, ExitReason.EXCEPTION, traceback="x" * 16_000), b"y" * 40_000, None)
    assert decode(encode(1, died)) == (1, died)


@pytest.mark.parametrize("letter", ["x", "\u6f22", "\U0001f600"], ids=ascii)
def test_a_report_that_does_not_fit_keeps_the_end_of_its_texts(letter: str) -> None:
    text = letter * 100_000 + "end"
    report = ExitReport(0, 4711, ExitReason.EXCEPTION, traceback=text, stderr=text)
    report.readings = [(float(n), n) for n in range(1000)]
    data = encode(1, Died(report, b"y" * MAX_MESSAGE_BYTES, None))
    assert len(data) <= MAX_MESSAGE_BYTES
    _, body = decode(data)
    assert isinstance(body, Died)
    assert body.report.traceback.endswith("end")
    assert body.report.stderr.endswith("end")
    assert body.report.readings[-1] == (999.0, 999)
