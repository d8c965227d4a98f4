"""Exceptions on their way from one process to another.

An exception arrives as itself (same type, attributes and args) with the text of its traceback as its cause.
Whether it can is tried where it was raised: an exception that cannot be pickled, or not rebuilt, travels as a
RuntimeError that keeps its type's name, its message and its traceback. So do the four that would end a loop
or a program at the other end.
"""

from __future__ import annotations

import pickle
import re
import traceback
from typing import Any

import cloudpickle

# Text and pickle, or text and the message of a stand-in, fit into one message of a pipe.
MAX_TEXT_BYTES = 16_000
MAX_PICKLE_BYTES = 24_000
_CONTROL_FLOW = (StopIteration, StopAsyncIteration, SystemExit, KeyboardInterrupt, GeneratorExit)


class WorkerTraceback(Exception):
    """The traceback of an exception in a worker, as text: the cause of the exception that reached you."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n\n{self.text}"


def pack(error: BaseException, where: str = "") -> bytes:
    """Return ``error`` as bytes for ``unpack``, never failing. ``where`` says which process and which work.

    >>> error = unpack(pack(KeyError("colour"), where="in worker 1"))
    >>> error, str(error.__cause__).strip().splitlines()[0]
    (KeyError('colour'), 'in worker 1:')
    """
    text = f"{where}:\n{traceback_text(error)}" if where else traceback_text(error)
    return pickle.dumps((_portable(error), text))


def unpack(data: bytes) -> BaseException:
    """Return the exception in ``data``, its worker's traceback as its cause."""
    portable, text = pickle.loads(data)
    error: BaseException = pickle.loads(portable) if isinstance(portable, bytes) else RuntimeError(portable)
    error.__cause__ = WorkerTraceback(text)
    return error


def text_of(data: bytes) -> str:
    """Return the traceback text in ``data`` without rebuilding the exception, which may be a user's class."""
    text: str = pickle.loads(data)[1]
    return text


def traceback_text(error: BaseException) -> str:
    """Return the traceback of ``error`` with its causes; its middle left out where it is very long."""
    try:
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    except Exception as failure:
        text = f"{type(error).__name__} (its traceback could not be formatted: {failure!r})"
    return _shortened(text)


def _shortened(text: str) -> str:
    """Return ``text`` without its middle where it is very long."""
    data = text.encode(errors="surrogatepass")
    if len(data) <= MAX_TEXT_BYTES:
        return text
    half = MAX_TEXT_BYTES // 2
    start, end = data[:half].decode(errors="ignore"), data[-half:].decode(errors="ignore")
    return f"{start}\n... {len(data) - 2 * half} bytes left out ...\n{end}"


def _portable(error: BaseException) -> bytes | str:
    """Return the pickle of ``error``, or the message of its stand-in."""
    if isinstance(error, _CONTROL_FLOW):
        return _stand_in_message(error)
    for dumps in (pickle.dumps, cloudpickle.dumps):
        data = _dump_faithfully(error, dumps)
        if data is not None:
            return data
    return _stand_in_message(error)


def _dump_faithfully(error: BaseException, dumps: Any) -> bytes | None:
    """Return the pickle of ``error`` if it fits and its rebuilding gives the same exception, else None."""
    try:
        data: bytes = dumps(error)
        copy = pickle.loads(data)
        same = type(copy) is type(error) and _arguments(copy) == _arguments(error)
    except Exception:
        return None
    return data if same and len(data) <= MAX_PICKLE_BYTES else None


def _arguments(error: BaseException) -> str:
    """Return the arguments as text, without the addresses that many an object's repr has."""
    return re.sub("0x[0-9a-f]+", "0x", repr(error.args))


def _stand_in_message(error: BaseException) -> str:
    try:
        message = str(error)
    except Exception as failure:
        message = f"(its message could not be read: {failure!r})"
    return f"{type(error).__qualname__} in a worker: {_shortened(message)}"
