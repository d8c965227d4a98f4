"""Exceptions on their way from one process to another.

An exception arrives as itself (same type, attributes and args) with the text of its traceback as its cause.
Whether it can is tried where it was raised: first as its class wants it, then without its constructor, for
many an ``__init__`` takes other arguments than ``args``. An exception that cannot be pickled, or not rebuilt,
arrives as a RuntimeError that has its type's name, its message, its traceback, and the reason. So do the four
that would end a loop or a program at the other end.
"""

from __future__ import annotations

import io
import pickle
import re
import traceback
from collections.abc import Callable
from typing import Any

import cloudpickle

from supervisor.culprit import Culprit, attributes, find

# Pickle, message and text fit into one message of a pipe, and the text once more beside them.
MAX_TEXT_BYTES = 16_000
MAX_PICKLE_BYTES = 24_000
MAX_MESSAGE_BYTES = 4_000
MAX_WHERE_BYTES = 1_000
CONTROL_FLOW = (StopIteration, StopAsyncIteration, SystemExit, KeyboardInterrupt, GeneratorExit)


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
    text = traceback_text(error)
    if where:
        text = f"{_shortened(where, MAX_WHERE_BYTES)}:\n{text}"
    message = describe(error, "in a worker")
    if isinstance(error, CONTROL_FLOW):
        return pickle.dumps((text, message, None))
    pickled, why_not = _faithful_pickle(error)
    return pickle.dumps((text, _with_reason(message, why_not) if why_not else message, pickled))


def unpack(data: bytes, is_interrupt: Callable[[BaseException], bool] | None = None) -> BaseException:
    """Return the exception in ``data``, its worker's traceback as its cause.

    Parameters:
        is_interrupt: tells what a signal handler raised, which is passed on, from what rebuilding the
            exception raised; None: only KeyboardInterrupt is passed on.
    """
    text, message, pickled = pickle.loads(data)
    try:
        error: BaseException = RuntimeError(message) if pickled is None else pickle.loads(pickled)
    except BaseException as failure:
        if is_interrupt(failure) if is_interrupt else isinstance(failure, KeyboardInterrupt):
            raise
        error = RuntimeError(_with_reason(message, describe(failure, "when it was rebuilt")))
    BaseException.__setattr__(error, "__cause__", WorkerTraceback(text))  # its class may let nobody set any
    return error


def text_of(data: bytes) -> str:
    """Return the traceback text in ``data`` without rebuilding the exception, which may be a user's class."""
    text: str = pickle.loads(data)[0]
    return text


def describe(error: BaseException, where: str) -> str:
    """Return what ``error`` is, ``where``, and its message.

    >>> describe(SystemExit(3), "in batch 5")
    'SystemExit in batch 5: 3'
    """
    try:
        message = str(error)
    except BaseException as failure:
        message = f"(its message could not be read: {type(failure).__name__})"
    what = f"{type(error).__qualname__} {where}"
    return f"{what}: {_shortened(message, MAX_MESSAGE_BYTES)}" if message else what


def traceback_text(error: BaseException) -> str:
    """Return the traceback of ``error`` with its causes; its middle left out where it is very long."""
    try:
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    except BaseException as failure:
        text = describe(failure, f"when the traceback of a {type(error).__name__} was formatted")
    return _shortened(text, MAX_TEXT_BYTES)


def _shortened(text: str, max_bytes: int) -> str:
    """Return ``text`` without its middle where it is very long."""
    data = text.encode(errors="surrogatepass")
    if len(data) <= max_bytes:
        return text
    half = max_bytes // 2
    start, end = data[:half].decode(errors="ignore"), data[-half:].decode(errors="ignore")
    return f"{start}\n... {len(data) - 2 * half} bytes left out ...\n{end}"


def _with_reason(message: str, reason: str) -> str:
    return f"{message}\n(it comes as a RuntimeError: {_shortened(reason, 1_000)})"


# ---- a pickle that is rebuilt to the same --------------------------------------------------------


def _faithful_pickle(error: BaseException) -> tuple[bytes | None, str]:
    """Return a pickle that is rebuilt to the same exception; or None, and why there is none."""
    why_not = ""
    for dump in (pickle.dumps, cloudpickle.dumps, _dump_without_constructors):
        try:
            data: bytes = dump(error)
            why_not = _shortcoming(data, error)
        except BaseException as failure:
            why_not = describe(failure, "when it was pickled or rebuilt")
        else:
            if not why_not:
                return data, ""
    return None, str(_culprit(error) or why_not)


def _shortcoming(data: bytes, error: BaseException) -> str:
    """Return why the pickle will not do, or nothing."""
    copy = pickle.loads(data)
    if type(copy) is not type(error) or _arguments(copy) != _arguments(error):
        return "it is rebuilt to another exception"
    return "" if len(data) <= MAX_PICKLE_BYTES else f"its pickle has {len(data):,} bytes"


def _arguments(error: BaseException) -> str:
    """Return the arguments as text, without the addresses that many an object's repr has."""
    return re.sub("0x[0-9a-f]+", "0x", repr(error.args))


def _culprit(error: BaseException) -> Culprit | None:
    try:
        return find({"error": error}, _dump_without_constructors)
    except BaseException:
        return None  # a part of it raises SystemExit or the like


class _WithoutConstructors(cloudpickle.Pickler):  # type: ignore[misc]
    """A pickler of exceptions, in groups too, that has their constructors and ``__reduce__`` left out."""

    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, BaseException):
            return super().reducer_override(obj)
        base: Any = next(kind for kind in type(obj).__mro__ if kind.__module__ == "builtins")
        _, arguments, *state = base.__reduce__(obj)
        state = {**(state[0] if state else {}), **dict(attributes(obj))}
        return _make, (type(obj), base, arguments), state, None, None, _set_attributes


def _dump_without_constructors(error: Any) -> bytes:
    file = io.BytesIO()
    _WithoutConstructors(file).dump(error)
    return file.getvalue()


def _make(kind: type[BaseException], base: type[BaseException], arguments: tuple[Any, ...]) -> BaseException:
    """Make an exception as ``base``, the built-in that ``kind`` derives from, would."""
    error = base.__new__(kind, *arguments)
    base.__init__(error, *arguments)
    return error


def _set_attributes(error: BaseException, state: dict[str, Any]) -> None:
    """Set attributes even of a class that lets nobody set any, such as a frozen dataclass."""
    for name, value in state.items():
        BaseException.__setattr__(error, name, value)
