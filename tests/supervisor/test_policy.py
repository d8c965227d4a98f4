"""The window and the back-off, by numbers alone."""

from __future__ import annotations

import pytest

from supervisor.policy import RestartPolicy, RestartWindow


def test_one_death_more_than_allowed_within_the_period_is_too_many() -> None:
    window = RestartWindow(RestartPolicy(max_restarts=2, period=10.0))
    assert window.allow(0.0) is not None
    assert window.allow(1.0) is not None
    assert window.allow(2.0) is None
    assert "death number 3 within 10 s" in window.why_exhausted()


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
    window = RestartWindow(RestartPolicy(max_restarts=2))
    window.allow(0.0)
    window.allow(0.0)
    window.progress()
    assert window.allow(0.0) is None


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
    ],
)
def test_bad_fields_are_named(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RestartPolicy(**arguments)  # type: ignore[arg-type]
