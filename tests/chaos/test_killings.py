"""Nothing of ours outlives the consumer, and workers do not outlive their supervisor."""

from __future__ import annotations

import pytest

from tests.chaos import killings
from tests.chaos.killings import BOUND_S, Aftermath

pytestmark = pytest.mark.slow

STARTS = pytest.mark.parametrize("start_method", killings.START_METHODS)
SITUATIONS = pytest.mark.parametrize("situation", killings.SITUATIONS)
# From which sample on one takes a minute.
MINUTES = pytest.mark.parametrize("minute_from", [100_000, 20], ids=["loading", "in a sample"])
TIMES = 2  # `python -m tests.chaos.killings` does it 20 times
LEAST_FAMILY = {"starting": 1, "loading": 4, "in a sample": 4, "idle": 4}  # supervisor and two workers


def assert_nothing_outlives(situation: str, start_method: str, delay_s: float) -> None:
    after = killings.kill_consumer(situation, start_method, delay_s)
    assert after.family >= LEAST_FAMILY[situation]
    assert after.gone_s < BOUND_S


def assert_clear_and_gone(after: Aftermath) -> None:
    assert after.error_s < BOUND_S
    assert after.gone_s < BOUND_S


@STARTS
@SITUATIONS
def test_nothing_outlives_a_killed_consumer(situation: str, start_method: str) -> None:
    assert_nothing_outlives(situation, start_method, delay_s=0.05)


@MINUTES
def test_a_killed_supervisor_is_a_clear_error_under_fork_and_leaves_no_worker(minute_from: int) -> None:
    assert_clear_and_gone(killings.kill_supervisor("fork", 0.05, minute_from))


@STARTS
@SITUATIONS
def test_nothing_outlives_a_consumer_killed_at_any_moment(situation: str, start_method: str) -> None:
    for delay_s in killings.moments(seed=1, count=TIMES, within_s=0.3):
        assert_nothing_outlives(situation, start_method, delay_s)


@MINUTES
def test_a_supervisor_killed_at_any_moment_leaves_no_worker(minute_from: int) -> None:
    for delay_s in killings.moments(seed=2, count=TIMES, within_s=0.3):
        assert_clear_and_gone(killings.kill_supervisor("fork", delay_s, minute_from))


@pytest.mark.parametrize("start_method", ["forkserver", "spawn"])
def test_supervisors_killed_at_any_moment_change_no_batch_and_leave_nothing(start_method: str) -> None:
    survival = killings.outlive_supervisors(start_method, TIMES, seed=3)
    assert survival.epochs == [True] * (TIMES + 2)
    assert survival.left == []
    assert survival.after == survival.before
