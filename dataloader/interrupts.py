"""Telling an interrupt from an error.

A signal handler runs inside whatever Python code happens to run, so its exception looks like that code's
own. But its traceback goes through the handler.
"""

from __future__ import annotations

import functools
import signal
import traceback
from types import CodeType


def is_interrupt(error: BaseException) -> bool:
    """Return whether ``error`` was raised by a signal handler that is installed now.

    >>> is_interrupt(ValueError("an ordinary error"))
    False
    """
    if isinstance(error, KeyboardInterrupt):
        return True
    handlers = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    return any(frame.f_code in handlers for frame, _ in traceback.walk_tb(error.__traceback__))


def _code_of(handler: object) -> CodeType | None:
    while isinstance(handler, functools.partial):
        handler = handler.func
    if not callable(handler):
        return None
    function = getattr(handler, "__func__", handler)
    code = getattr(function, "__code__", None) or getattr(type(handler).__call__, "__code__", None)
    return code if isinstance(code, CodeType) else None
