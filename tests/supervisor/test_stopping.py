"""The times of an ordered stop, by numbers alone."""

from __future__ import annotations

import signal

from supervisor.stopping import AFTER_KILL_S, OrderedStop


def test_each_signal_is_due_once_at_its_time() -> None:
    stop = OrderedStop(now=10.0, close_s=1.0, terminate_s=2.0)
    assert (stop.due(10.0), stop.next_s) == ([], 11.0)
    assert (stop.due(11.0), stop.next_s) == ([signal.SIGTERM], 13.0)
    assert (stop.due(12.9), stop.next_s) == ([], 13.0)
    assert (stop.due(13.0), stop.next_s) == ([signal.SIGKILL], 13.0 + AFTER_KILL_S)
    assert stop.due(13.1) == []


def test_who_looks_late_gets_all_signals_in_order() -> None:
    stop = OrderedStop(now=0.0, close_s=1.0, terminate_s=1.0)
    assert stop.due(5.0) == [signal.SIGTERM, signal.SIGKILL]
    assert not stop.is_given_up


def test_it_is_given_up_a_while_after_the_kill() -> None:
    stop = OrderedStop(now=0.0, close_s=1.0, terminate_s=1.0)
    stop.due(2.0 + AFTER_KILL_S - 0.1)
    assert not stop.is_given_up
    stop.due(2.0 + AFTER_KILL_S)
    assert stop.is_given_up


def test_no_time_at_all_kills_at_once() -> None:
    assert OrderedStop(now=3.0, close_s=0.0, terminate_s=0.0).due(3.0) == [signal.SIGTERM, signal.SIGKILL]
