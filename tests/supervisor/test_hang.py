"""Seconds count only while a worker is at a task and somebody looks."""

from __future__ import annotations

import pytest

from supervisor.hang import LONGEST_STEP_S, SLOW_FACTOR, SLOW_S, Durations, TaskClock
from supervisor.page import BEGUN, SENT, TASK, Page, PageFile, State


def page_at(state: State, task: int = 0, begun_s: float = 0.0, sent: int = -1) -> Page:
    page = PageFile.create(workers=1).page(0)
    take(page, state, task, begun_s)
    page.words[SENT] = sent
    return page


def take(page: Page, state: State, task: int, begun_s: float = 0.0) -> None:
    page.words[TASK], page.seconds[BEGUN] = task, begun_s
    page.enter(state)


def test_a_task_counts_from_its_beginning_through_sample_and_collate() -> None:
    page, clock = page_at(State.SAMPLE, begun_s=10.1), TaskClock(now=10.0)
    assert clock.look(page, 10.5) == pytest.approx(0.4)
    page.enter(State.COLLATE)
    assert clock.look(page, 11.0) == pytest.approx(0.9)


def test_each_task_counts_anew() -> None:
    page, clock = page_at(State.SAMPLE, task=1, begun_s=0.0), TaskClock(now=0.0)
    assert clock.look(page, 0.9) == pytest.approx(0.9)
    take(page, State.SAMPLE, 2, begun_s=1.0)
    assert clock.look(page, 1.2) == pytest.approx(0.2)


def test_a_task_that_is_begun_again_counts_anew() -> None:
    page, clock = page_at(State.SAMPLE, task=1, begun_s=0.0), TaskClock(now=0.0)
    assert clock.look(page, 0.9) == pytest.approx(0.9)
    take(page, State.SAMPLE, 1, begun_s=1.0)
    assert clock.look(page, 1.2) == pytest.approx(0.2)


def test_sending_to_a_slow_consumer_does_not_count() -> None:
    page, clock = page_at(State.SAMPLE), TaskClock(now=0.0)
    assert clock.look(page, 0.5) == pytest.approx(0.5)
    page.enter(State.SENDING)
    assert [clock.look(page, now) for now in (1.0, 1.5, 2.0)] == pytest.approx([0.5] * 3)


@pytest.mark.parametrize("state", [State.SENDING, State.STARTING])
def test_where_there_is_no_limit_a_stop_counts_all_the_same(state: State) -> None:
    page, clock = page_at(state), TaskClock(now=0.0)
    clock.look(page, 0.5, lambda: True)
    spent_s = clock.look(page, 1.0, lambda: True)
    assert clock.look(page, 1.5, lambda: True) == pytest.approx(spent_s + 0.5)
    assert clock.look(page, 2.0, lambda: False) == pytest.approx(spent_s + 0.5)


@pytest.mark.parametrize("state", [State.STARTING, State.IDLE, State.CLOSED, State.LEAVING])
def test_without_a_task_nothing_counts(state: State) -> None:
    page, clock = page_at(state, task=3, sent=3), TaskClock(now=0.0)
    assert [clock.look(page, now / 2) for now in range(1, 9)] == [0.0] * 8


def test_a_task_that_is_not_taken_counts_once_it_was_seen() -> None:
    page, clock = page_at(State.IDLE, task=3, sent=5), TaskClock(now=0.0)
    assert [clock.look(page, now) for now in (0.5, 1.0, 1.5)] == pytest.approx([0.0, 0.5, 1.0])
    take(page, State.SAMPLE, 4, begun_s=1.5)
    assert clock.look(page, 1.75) == pytest.approx(0.25)


def test_time_in_which_nobody_looked_counts_as_one_step() -> None:
    page, clock = page_at(State.SAMPLE), TaskClock(now=0.0)
    clock.look(page, 0.5)
    assert clock.look(page, 1000.0) == pytest.approx(0.5 + LONGEST_STEP_S)


def test_a_task_that_was_begun_while_nobody_looked_has_one_step() -> None:
    page, clock = page_at(State.SAMPLE, begun_s=500.0), TaskClock(now=0.0)
    assert clock.look(page, 1000.0) == LONGEST_STEP_S


def test_a_task_is_slow_when_it_is_long_and_unusual() -> None:
    durations = Durations()
    for _ in range(5):
        durations.add(worked_s=10.0, tasks=1)
    durations.add(worked_s=10_000.0, tasks=1)
    assert not durations.is_slow(SLOW_S)
    assert durations.is_slow(10.0 * SLOW_FACTOR)
    quick = Durations()
    quick.add(worked_s=1.0, tasks=100)
    assert not quick.is_slow(SLOW_S - 0.1)
    assert quick.is_slow(SLOW_S)
