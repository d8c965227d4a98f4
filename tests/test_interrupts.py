"""Telling what a signal handler raised from what the interrupted code raised."""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable, Iterator
from types import FrameType

import pytest

from dataloader.interrupts import is_interrupt

Handler = Callable[[int, FrameType | None], None]


class Alarm(Exception):
    pass


def function(number: int, frame: FrameType | None) -> None:
    raise Alarm


def by_a_helper(number: int, frame: FrameType | None) -> None:
    function(number, frame)


def with_more_arguments(more: object, number: int, frame: FrameType | None) -> None:
    raise Alarm


class Handlers:
    def method(self, number: int, frame: FrameType | None) -> None:
        raise Alarm

    def __call__(self, number: int, frame: FrameType | None) -> None:
        raise Alarm

    @staticmethod
    def static(number: int, frame: FrameType | None) -> None:
        raise Alarm


HANDLERS: dict[str, Handler] = {
    "function": function,
    "by a helper": by_a_helper,
    "method": Handlers().method,
    "callable object": Handlers(),
    "static method": Handlers.static,
    "partial": functools.partial(with_more_arguments, "more"),
    "partial of a partial": functools.partial(functools.partial(with_more_arguments, "more")),
}


@pytest.fixture(params=HANDLERS)
def handler(request: pytest.FixtureRequest) -> Iterator[Handler]:
    handler = HANDLERS[request.param]
    previous = signal.signal(signal.SIGUSR1, handler)
    yield handler
    signal.signal(signal.SIGUSR1, previous)


def caught(action: Callable[[], object]) -> BaseException:
    try:
        action()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def test_what_a_handler_raises_is_an_interrupt(handler: Handler) -> None:
    error = caught(lambda: signal.raise_signal(signal.SIGUSR1))
    assert type(error) is Alarm
    assert is_interrupt(error)


def test_the_same_exception_from_elsewhere_is_none(handler: Handler) -> None:
    def raise_alarm() -> None:
        raise Alarm

    assert not is_interrupt(caught(raise_alarm))


def test_an_interrupt_that_was_raised_again_is_one(handler: Handler) -> None:
    def outer() -> None:
        try:
            signal.raise_signal(signal.SIGUSR1)
        except Alarm:
            raise

    assert is_interrupt(caught(outer))


def test_what_replaced_an_interrupt_is_none(handler: Handler) -> None:
    def outer() -> None:
        try:
            signal.raise_signal(signal.SIGUSR1)
        except Alarm:
            raise KeyError from None

    assert not is_interrupt(caught(outer))


def test_a_handler_that_is_installed_no_longer_interrupts_no_longer() -> None:
    previous = signal.signal(signal.SIGUSR1, function)
    error = caught(lambda: signal.raise_signal(signal.SIGUSR1))
    signal.signal(signal.SIGUSR1, previous)
    assert not is_interrupt(error)


def test_a_keyboard_interrupt_always_is_one() -> None:
    assert is_interrupt(caught(lambda: signal.raise_signal(signal.SIGINT)))
    assert is_interrupt(KeyboardInterrupt())


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.SIG_DFL, "".join], ids=["ignore", "default", "C"])
def test_handlers_without_python_code_are_no_trouble(handler: Handler) -> None:
    previous = signal.signal(signal.SIGUSR1, handler)
    try:
        assert not is_interrupt(ValueError())
    finally:
        signal.signal(signal.SIGUSR1, previous)
