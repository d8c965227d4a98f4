"""Every death is named right: its reason, signal or exit code, and the sample that was being loaded."""

from __future__ import annotations

import pytest

from dataloader import ExitReason
from tests.chaos import verdicts
from tests.chaos.verdicts import CAUSES, Cause

pytestmark = pytest.mark.slow

RUNS = 2  # `python -m tests.chaos.verdicts` has 25


@pytest.mark.parametrize("start_method", ["fork", "forkserver"])
@pytest.mark.parametrize("cause", CAUSES, ids=[cause.name for cause in CAUSES])
def test_every_cause_is_named_each_time(start_method: str, cause: Cause) -> None:
    judgements = list(verdicts.judge(start_method, cause, RUNS))
    assert [judgement.complaints(cause) for judgement in judgements] == [[]] * RUNS


def test_a_kill_from_outside_is_never_called_oom() -> None:
    (cause,) = [cause for cause in CAUSES if cause.sent == 9]
    for judgement in verdicts.judge("fork", cause, runs=10, seed=1):
        (report,) = judgement.deaths
        assert report.reason is ExitReason.KILLED
        assert "the supervisor did not send SIGKILL" in " ".join(report.evidence)
