"""Telling an interrupt from an error.

A signal handler runs inside whatever Python code happens to run, so its exception looks like that code's
own. But its traceback goes through the handler.
"""

from __future__ import annotations

import functools
import signal
import traceback
from itertools import takewhile
from types import CodeType


def is_interrupt(error: BaseException) -> bool:
    """Return whether ``error`` was raised by a signal handler that is installed now.

    >>> is_interrupt(ValueError("an ordinary error"))
    False
    """
    if isinstance(error, KeyboardInterrupt):
        return True
    handlers = _handlers()
    return any(frame.f_code in handlers for frame, _ in traceback.walk_tb(error.__traceback__))


def frames_outside_handlers(error: BaseException) -> int:
    """Return how many frames ``error`` came through until it reached this one, not counting a handler's."""
    handlers = _handlers()
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    return sum(1 for _ in takewhile(lambda frame: frame.f_code not in handlers, frames))


def _handlers() -> set[CodeType | None]:
    return {_code_of(signal.getsignal(number)) for number in signal.valid_signals()} - {None}


def _code_of(handler: object) -> CodeType | None:
    while isinstance(handler, functools.partial):
        handler = handler.func
    if not callable(handler):
        return None
    function = getattr(handler, "__func__", handler)
    code = getattr(function, "__code__", None) or getattr(type(handler).__call__, "__code__", None)
    return code if isinstance(code, CodeType) else None
