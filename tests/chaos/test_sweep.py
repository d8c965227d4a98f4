"""However a worker ends, and wherever it is then: the same batches or the right error, and soon."""

from __future__ import annotations

from itertools import cycle

import pytest

from tests.chaos import sabotage, sweep
from tests.chaos.sabotage import Way
from tests.chaos.sweep import Stage, complaints, run, stages

pytestmark = pytest.mark.slow

BOUND_S = {"fork": 2.0, "forkserver": 2.0, "spawn": 10.0}  # fresh interpreters take a while to start
# `python -m tests.chaos.sweep` has every way at every point with each start method. Here are three ways at
# each point, by turns, with "fork", one with fresh supervisors, and one in all with fresh workers.
CASES = [
    *(("fork", stage, way) for stage, way in zip(stages("fork") * 3, cycle(sweep.WAYS), strict=False)),
    *(
        ("forkserver", stage, way)
        for stage, way in zip(stages("forkserver"), cycle(sweep.WAYS), strict=False)
    ),
    ("spawn", Stage(sabotage.SLOT_SENT, sweep.in_an_epoch), sabotage.SIGKILL),
]


@pytest.mark.parametrize(
    ("start_method", "stage", "way"),
    CASES,
    ids=[f"{start_method}, {stage.name}, {way.name}" for start_method, stage, way in CASES],
)
def test_an_end_anywhere_is_survived_or_is_the_right_error(start_method: str, stage: Stage, way: Way) -> None:
    assert complaints(stage, way, run(start_method, stage, way), BOUND_S[start_method]) == []
