"""How far ahead workers are, by what batches cost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from dataloader import DataLoader
from dataloader.pace import (
    BATCHES_PER_LOOK,
    CHEAP_AHEAD,
    CHEAP_BYTES,
    CHEAP_S,
    IN_PIECES_S,
    JOIN_SHARE,
    Pace,
)
from dataloader.pieces import MAX_PIECES

LOOKED = BATCHES_PER_LOOK


def looked(worked_s: float, moved_bytes: float, **settings: Any) -> Pace:
    """Return a pace that has looked once, at batches of which each cost that."""
    pace = Pace(workers=3, prefetch=2, **settings)
    pace.look(LOOKED, worked_s * LOOKED, int(moved_bytes * LOOKED))
    return pace


def test_what_is_ahead_is_as_asked_for_at_first() -> None:
    pace = Pace(workers=3, prefetch=2)
    assert (pace.per_worker, pace.ahead, pace.while_waiting) == (2, 6, 2)
    assert pace.is_time_for(1)
    assert not pace.wants_look(LOOKED - 1)
    assert pace.wants_look(LOOKED)


def test_cheap_batches_are_handed_out_when_half_is_used_up() -> None:
    pace = looked(CHEAP_S / 2, CHEAP_BYTES / 2)
    assert (pace.per_worker, pace.ahead, pace.while_waiting) == (CHEAP_AHEAD, 24, CHEAP_AHEAD)
    assert [pace.is_time_for(batches) for batches in (1, 11, 12)] == [False, False, True]


@pytest.mark.parametrize(("worked_s", "moved_bytes"), [(CHEAP_S * 2, 0), (0, CHEAP_BYTES * 2)])
def test_dear_batches_are_handed_out_at_once(worked_s: float, moved_bytes: float) -> None:
    pace = looked(worked_s, moved_bytes)
    assert (pace.ahead, pace.while_waiting) == (6, 2)
    assert pace.is_time_for(1)


def test_each_look_is_at_what_came_since_the_last() -> None:
    pace = looked(CHEAP_S / 2, 10)
    assert not pace.wants_look(2 * LOOKED - 1)
    assert pace.wants_look(2 * LOOKED)
    pace.look(2 * LOOKED, 1.0, 20 * LOOKED)
    assert pace.ahead == 6
    pace.look(3 * LOOKED, 1.0, 30 * LOOKED)
    assert pace.ahead == 3 * CHEAP_AHEAD


def test_what_was_worked_before_does_not_count() -> None:
    pace = Pace(workers=3, prefetch=2, worked_s=100.0)
    pace.look(LOOKED, 100.0, 0)
    assert pace.ahead == 3 * CHEAP_AHEAD


@pytest.mark.parametrize("settings", [{"may_go_ahead": False}, {"prefetch": CHEAP_AHEAD}])
def test_a_pace_that_is_settled_wants_no_look(settings: dict[str, Any]) -> None:
    assert not Pace(**{"workers": 3, "prefetch": 2, **settings}).wants_look(10**9)


class Drawn:
    """A sampler that knows how many indices were drawn."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.drawn = 0

    def __iter__(self) -> Iterator[int]:
        for index in range(self.count):
            self.drawn = index + 1
            yield index


def most_ahead(dataset: Any, count: int, **settings: Any) -> int:
    """Return how many batches of one sample were drawn at most beyond what was delivered."""
    sampler = Drawn(count)
    most = 0
    with DataLoader(
        dataset, sampler=sampler, num_workers=2, multiprocessing_context="fork", **settings
    ) as loader:
        for delivered, batch in enumerate(loader, 1):
            assert batch[0].flat[0] == delivered - 1
            most = max(most, sampler.drawn - delivered)
    assert delivered == count
    return most


def test_a_loader_goes_further_ahead_where_batches_are_cheap() -> None:
    assert most_ahead(range(200), 200) == 2 * CHEAP_AHEAD


def test_a_loader_goes_no_further_than_it_was_told() -> None:
    assert most_ahead(range(200), 200, prefetch_factor=3) == 2 * 3


def test_a_loader_goes_no_further_with_large_batches() -> None:
    assert most_ahead([np.full(CHEAP_BYTES, index) for index in range(80)], 80) == 2 * 2


# ---- in pieces -----------------------------------------------------------------------------------

DEAR_S = 3 * IN_PIECES_S  # of all three workers' time


def test_it_is_judged_after_the_first_batch_and_then_with_each_look() -> None:
    pace = Pace(workers=3, prefetch=2, in_pieces=None)
    assert [pace.wants_judgement(batches) for batches in (0, 1)] == [False, True]
    pace.judge(1, batch_s=2 * DEAR_S, join_s=0.0)
    assert [pace.wants_judgement(batches) for batches in (LOOKED, LOOKED + 1)] == [False, True]


@pytest.mark.parametrize(
    ("batch_s", "join_s", "expected"),
    [
        (DEAR_S * 1.1, 0.0, True),
        (DEAR_S * 0.9, 0.0, False),
        (DEAR_S * 2, IN_PIECES_S * 2 * JOIN_SHARE * 0.9, True),
        (DEAR_S * 2, IN_PIECES_S * 2 * JOIN_SHARE * 1.1, False),
    ],
)
def test_dear_batches_that_are_put_together_in_no_time_are_made_in_pieces(
    batch_s: float, join_s: float, expected: bool
) -> None:
    pace = Pace(workers=3, prefetch=2, in_pieces=None)
    pace.judge(1, batch_s, join_s)
    assert pace.in_pieces is expected


def test_what_takes_too_long_to_put_together_is_not_tried_again() -> None:
    pace = Pace(workers=3, prefetch=2, in_pieces=None)
    pace.judge(1, DEAR_S * 2, join_s=DEAR_S)
    assert not pace.wants_judgement(10**9)


def test_pieces_are_handed_out_late() -> None:
    pace = Pace(workers=3, prefetch=2, in_pieces=True)
    assert (pace.tasks(is_waiting=True), pace.tasks(is_waiting=False)) == (2, 2 * MAX_PIECES)
    pace.judge(1, batch_s=0.4, join_s=0.0)
    pace.note_return()
    pace.note_call()
    assert pace.tasks(is_waiting=False) == 2 + 1  # away for no time


def test_a_user_who_was_away_for_long_gets_what_is_made_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    pace = Pace(workers=3, prefetch=2, in_pieces=True)
    pace.judge(1, batch_s=0.4, join_s=0.0)
    for away_s in (0.25, 0.01):
        pace.note_return()
        now_s[0] += away_s
        pace.note_call()
    assert pace.tasks(is_waiting=False) == 2 + 3  # pieces of 0.1 s
    pace.note_return()
    now_s[0] += 1000
    pace.note_call()
    assert pace.tasks(is_waiting=False) == 2 * MAX_PIECES
