"""Whoever dies, and whenever: the same batches, in order, every end reported, and nothing left over."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dataloader import ExitReason
from tests.chaos import storm
from tests.chaos.storm import EXIT_CODE, MIXED_STORMS, Outcome, Weather

LOADERS = [("fork", True), ("fork", False), ("forkserver", True), ("forkserver", False)]
# 1, 3, 6 and 8 workers, of either start method, in order and out of it.
SOME_MIXED_STORMS = [MIXED_STORMS[number] for number in (1, 4, 11, 14)]
# `python -m tests.chaos.storm` tells how long a storm takes on a quiet machine: at most 1.5 times as long.
# Here others may use the cores as well, and a replacement takes more of them than a sleeping sample does: the
# bound only says that nothing waits for a time out.
MAX_RATIO = 6.0


def assert_survived(calm: Outcome, rough: Outcome) -> None:
    assert rough.digest == calm.digest
    assert_every_end_is_reported_once(rough)
    for outcome in (calm, rough):
        assert outcome.survivors == []
        assert outcome.left == (0, 0, 0)


def assert_every_end_is_reported_once(outcome: Outcome) -> None:
    reported = [report.pid for report in outcome.reports]
    killed = {pid: number for epoch in outcome.killed for pid, number in epoch.items()}
    assert sorted(reported) == sorted(set(reported))
    assert killed.keys() <= set(reported)
    for report in outcome.reports:
        if report.exit_code == EXIT_CODE:
            assert report.reason is ExitReason.EXITED
        elif report.pid in killed:  # between epochs a kill can hit one that is being stopped
            assert report.signal == killed[report.pid]
        else:
            assert report.reason is ExitReason.CLOSED


@pytest.mark.slow
@pytest.mark.parametrize(("start_method", "persistent"), LOADERS)
def test_a_storm_changes_no_byte_and_leaves_nothing(start_method: str, persistent: bool) -> None:
    calm, rough = storm.calm_and_storm(Weather(start_method, persistent, epochs=2, batches=120, kills=10))
    assert all(len(killed) >= 9 for killed in rough.killed)  # the last may find nobody left to kill
    assert_survived(calm, rough)


@pytest.mark.slow
@pytest.mark.parametrize(("start_method", "persistent"), [("fork", True), ("forkserver", False)])
def test_a_storm_over_pieces_changes_no_byte_and_leaves_nothing(start_method: str, persistent: bool) -> None:
    weather = Weather(start_method, persistent, epochs=2, batches=100, kills=12, exits=4, in_pieces=True)
    calm, rough = storm.calm_and_storm(weather)
    assert all(len(killed) >= 11 for killed in rough.killed)
    assert_survived(calm, rough)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["iterable", "iterable with a state"])
def test_a_storm_over_streams_changes_no_byte_and_leaves_nothing(kind: Any) -> None:
    calm, rough = storm.calm_and_storm(Weather("fork", True, epochs=2, batches=100, kills=9, kind=kind))
    assert all(len(killed) >= 8 for killed in rough.killed)
    assert_survived(calm, rough)


@pytest.mark.slow
@pytest.mark.parametrize(
    "weather",
    SOME_MIXED_STORMS,
    ids=[f"{weather.start_method}, {weather.num_workers} workers" for weather in SOME_MIXED_STORMS],
)
def test_a_storm_of_mixed_causes_changes_no_byte_and_leaves_nothing(weather: Weather) -> None:
    calm, rough = storm.calm_and_storm(replace(weather, epochs=2, batches=100, kills=9, exits=3))
    assert all(len(killed) >= 8 for killed in rough.killed)
    assert rough.exits >= 2 * 3 - 2  # one that is about to exit may be killed first
    assert_survived(calm, rough)


@pytest.mark.slow  # one of four; `python -m tests.chaos.storm` runs them all
@pytest.mark.parametrize(("start_method", "persistent"), [("forkserver", False)])
def test_the_full_storm(start_method: str, persistent: bool) -> None:
    calm, rough = storm.calm_and_storm(Weather(start_method, persistent, kills=110))
    assert all(len(killed) >= 100 for killed in rough.killed)
    assert_survived(calm, rough)
    assert rough.duration_s < MAX_RATIO * calm.duration_s
