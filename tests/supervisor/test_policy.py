"""The window and the back-off, by numbers alone."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.policy import RestartPolicy, RestartWindow


def test_one_death_more_than_allowed_within_the_period_is_too_many() -> None:
    window = RestartWindow(RestartPolicy(max_restarts=2, period=10.0))
    assert window.allow(0.0) is not None
    assert window.allow(1.0) is not None
    assert window.allow(2.0) is None
    assert "death number 3 within 10 s" in window.why_exhausted()


def test_the_end_tells_how_many_deaths_of_which_reasons_came_in_how_many_seconds() -> None:
    window = RestartWindow(RestartPolicy(max_restarts=10, period=60.0))
    window.allow(0.0, reason="exited")  # too long ago
    for number in range(11):
        window.allow(100.0 + number, reason="oom_killed" if number % 4 == 1 else "crashed")
    assert window.is_exhausted
    assert "death number 11 within 60 s (8 crashed, 3 oom_killed in 10.0 s)" in window.why_exhausted()


def test_deaths_leave_the_window_after_the_period() -> None:
    window = RestartWindow(RestartPolicy(max_restarts=1, period=10.0))
    assert window.allow(0.0) is not None
    assert window.allow(10.0) is not None
    assert window.deaths == 1


def test_the_first_comes_at_once_and_each_further_one_waits_twice_as_long() -> None:
    window = RestartWindow(RestartPolicy(max_restarts=100, backoff=0.1))
    assert [window.allow(float(now)) for now in range(5)] == [0.0, 0.1, 0.2, 0.4, 0.8]


def test_no_wait_is_longer_than_the_period() -> None:
    window = RestartWindow(RestartPolicy(max_restarts=10_000, period=5.0))
    assert max(window.allow(0.0) or 0.0 for _ in range(2000)) == 5.0


def test_a_completed_task_resets_the_back_off_but_not_the_window() -> None:
    window = RestartWindow(RestartPolicy(max_restarts=3, backoff=0.1))
    assert [window.allow(0.0), window.allow(0.0)] == [0.0, 0.1]
    window.progress()
    assert window.allow(0.0) == 0.0
    window.progress()
    assert window.allow(0.0) is None


def test_a_worker_that_becomes_ready_is_no_progress() -> None:
    window = RestartWindow(RestartPolicy(backoff=0.1))
    window.allow(0.0)
    window.startup_succeeded()
    assert window.allow(0.0) == 0.1


def test_a_death_at_work_ends_a_row_of_failed_start_ups() -> None:
    window = RestartWindow(RestartPolicy())
    for during_startup in (True, True, False, True, True):
        assert window.allow(0.0, during_startup=during_startup) is not None


def test_no_restarts_at_all() -> None:
    window = RestartWindow(RestartPolicy(max_restarts=0))
    assert not window.is_exhausted
    assert window.allow(0.0) is None
    assert window.is_exhausted


@given(
    gaps_s=st.lists(st.floats(0.0, 3.0), max_size=60),
    max_restarts=st.integers(0, 5),
    period=st.floats(0.1, 10.0),
)
def test_no_period_has_more_replacements_than_allowed(
    gaps_s: list[float], max_restarts: int, period: float
) -> None:
    window = RestartWindow(RestartPolicy(max_restarts=max_restarts, period=period))
    deaths_s = list(accumulate(gaps_s))
    replaced_s = [now for now in deaths_s if window.allow(now) is not None]
    for end_s in replaced_s:
        assert sum(end_s - period < at <= end_s for at in replaced_s) <= max_restarts
    for number, now in enumerate(deaths_s):
        before = [at for at in deaths_s[: number + 1] if at > now - period]
        assert (now in replaced_s) or len(before) > max_restarts, "no more is refused than must be"


def test_three_failed_start_ups_in_a_row_are_too_many() -> None:
    window = RestartWindow(RestartPolicy(max_restarts=100))
    assert window.allow(0.0, during_startup=True) is not None
    assert window.allow(0.0, during_startup=True) is not None
    window.startup_succeeded()
    assert window.allow(0.0, during_startup=True) is not None
    assert window.allow(0.0, during_startup=True) is not None
    assert window.allow(0.0, during_startup=True) is None
    assert "start-up" in window.why_exhausted()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_restarts": -1}, "max_restarts=-1"),
        ({"max_restarts": 1.5}, r"max_restarts=1\.5"),
        ({"max_restarts": True}, "max_restarts=True"),
        ({"max_attempts": 0}, "max_attempts=0"),
        ({"period": 0.0}, r"period=0\.0"),
        ({"period": float("nan")}, "period=nan"),
        ({"backoff": -0.1}, r"backoff=-0\.1"),
        ({"period": "x"}, "period='x'"),
        ({"backoff": None}, "backoff=None"),
        ({"shrink_on_oom": 1}, "shrink_on_oom=1"),
        ({"own_cgroups": None}, "own_cgroups=None"),
    ],
)
def test_bad_fields_are_named(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RestartPolicy(**arguments)  # type: ignore[arg-type]
