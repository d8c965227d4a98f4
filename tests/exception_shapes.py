"""Exceptions of every shape, importable by fresh worker processes.

Imports little, because each of these processes imports it.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NoReturn

import numpy as np

Raise = Callable[[], Any]


class Reworded(Exception):
    """Hands one argument on where its constructor takes two."""

    def __init__(self, path: str, line: int) -> None:
        super().__init__(f"{path}:{line}")
        self.path = path
        self.line = line


class KeywordOnly(Exception):
    def __init__(self, *, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code


class HasMessage(Exception):
    """torch's loader rebuilds any exception whose class has ``message`` with that as a keyword."""

    message = "a class attribute"


class UnknownColour(KeyError):
    pass


class NeedsFile(OSError):
    def __init__(self, path: str) -> None:
        super().__init__(2, "No such file", path)


@dataclass(frozen=True)
class Frozen(Exception):
    """Lets nobody set an attribute, not even its cause."""

    path: str


class RefusesToBePickled(Exception):
    def __reduce__(self) -> NoReturn:
        raise pickle.PicklingError("never")


class ExitsWhenPickled(Exception):
    def __reduce__(self) -> NoReturn:
        raise SystemExit(3)


class RefusesToBeRebuilt(Exception):
    def __reduce__(self) -> tuple[Any, ...]:
        return _refuse, ()


def _refuse() -> NoReturn:
    raise SystemExit(3)


class OnceUnpickled:
    """Raises in the process that unpickles it."""

    def __init__(self, kind: type[BaseException], nbytes: int) -> None:
        self.kind = kind
        self.data = np.zeros(nbytes, np.uint8)

    def __setstate__(self, state: dict[str, Any]) -> NoReturn:
        raise state["kind"]("not here")


def of_another_module() -> Any:
    """Return an object whose class is in a module that only this process has."""
    module = sys.modules["no_such_module"] = ModuleType("no_such_module")
    kind = type("Thing", (), {"__module__": module.__name__})
    vars(module)["Thing"] = kind
    return kind()


def lock_in_depth() -> Any:
    return Locked("text")


def lock_behind_arrays() -> Any:
    return [np.zeros(100_000, np.uint8), threading.Lock()]


def generator() -> Any:
    return (letter for letter in "ab")


def lambda_with_lock() -> Any:
    lock = threading.Lock()
    return lambda: lock


def exits_when_pickled() -> Any:
    return ExitsWhenPickled()


strikes: list[int] = []  # signals, of which this process is to get one whenever it makes what follows


def _make_and_strike(kind: type[Any]) -> Any:
    if strikes:
        signal.raise_signal(strikes.pop())
    return kind()


class StrikesWhenUnpickled:
    def __reduce__(self) -> tuple[Any, ...]:
        return _make_and_strike, (type(self),)


class Striking(Exception):
    def __reduce__(self) -> tuple[Any, ...]:
        return _make_and_strike, (type(self),)


class NoText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Fatal(BaseException):
    """No Exception."""


class Locked(Exception):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.held = {"lock": threading.Lock()}


class OfOneProcess(Exception):
    """Can be rebuilt in the process that raised it, and in no other."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_in, (os.getpid(), self.args)


def _rebuild_in(pid: int, args: tuple[Any, ...]) -> OfOneProcess:
    if os.getpid() != pid:
        raise ValueError("of another process")
    return OfOneProcess(*args)


def raise_striking() -> NoReturn:
    raise Striking


def local_class() -> NoReturn:
    class Local(ValueError):
        def __init__(self, path: str, line: int) -> None:
            super().__init__(path, line)
            self.line = line

    raise Local("a.jpg", 3)


def chained() -> NoReturn:
    try:
        try:
            raise KeyError("the cause")
        except KeyError as error:
            raise ValueError("the context") from error
    except ValueError:
        raise TypeError("the last")  # noqa: B904 (a context is what it is to have)


def noted() -> NoReturn:
    error = ValueError("with attributes")
    vars(error).update(sample={"id": 12}, __notes__=["of shard 7"])
    raise error


def group() -> NoReturn:
    kind: Any = sys.modules["builtins"].ExceptionGroup  # type: ignore[attr-defined,unused-ignore]
    raise kind("several", [KeyError("x"), kind("more", [Reworded("a.jpg", 3)])])


def recursion() -> Any:
    return recursion()


def instance(make: Callable[..., BaseException], *args: Any, **keywords: Any) -> Raise:
    """Return a function that raises what ``make`` makes."""

    def fail() -> NoReturn:
        raise make(*args, **keywords)

    return fail


ITSELF: dict[str, Raise] = {
    "several arguments": instance(Reworded, "a.jpg", 3),
    "keyword only": instance(KeywordOnly, code=3),
    "local class": local_class,
    "message": instance(HasMessage, "text"),
    "KeyError": instance(KeyError, "with\nnewlines"),
    "KeyError subclass": instance(UnknownColour, "with\nnewlines"),
    "OSError subclass": instance(NeedsFile, "a.jpg"),
    "UnicodeDecodeError": instance(UnicodeDecodeError, "utf-8", b"\xff", 0, 1, "invalid"),
    "MemoryError": instance(MemoryError, "text"),
    "RecursionError": recursion,
    "chained": chained,
    "notes": noted,
    "frozen": instance(Frozen, path="a.jpg"),
    "refuses to be pickled": instance(RefusesToBePickled, "text"),
    "exits when pickled": instance(ExitsWhenPickled, "text"),
    "refuses to be rebuilt": instance(RefusesToBeRebuilt, "text"),
    "no text": instance(NoText, "text"),
    "BaseException": instance(Fatal, "text"),
}
if sys.version_info >= (3, 11):
    ITSELF["ExceptionGroup"] = group

ENDS_LOOPS: dict[str, Raise] = {
    kind.__name__: instance(kind, "why")
    for kind in (StopIteration, StopAsyncIteration, SystemExit, GeneratorExit)
}

CANNOT_TRAVEL: dict[str, Raise] = {
    "lock": instance(Locked, "text"),
    "of one process": instance(OfOneProcess, "text"),
    "1 MB": instance(ValueError, "start " + "x" * 1_000_000 + " end"),
}

ALL: dict[str, Raise] = {
    **ITSELF,
    **ENDS_LOOPS,
    **CANNOT_TRAVEL,
    "KeyboardInterrupt": instance(KeyboardInterrupt, "why"),
}
NAMES = list(ALL)


def fault_of(index: int) -> Raise | None:
    """Return what every second sample raises, each another shape."""
    return ALL[NAMES[index // 2]] if index % 2 else None


def load(index: int) -> int:
    fault = fault_of(index)
    return index if fault is None else fault()


class InSample:
    """Sample ``index`` is ``index``, or raises."""

    def __getitem__(self, index: int) -> int:
        return load(index)


class InSamples:
    def __getitems__(self, indices: list[int]) -> list[int]:
        return [load(index) for index in indices]


def collate(samples: list[int]) -> list[int]:
    return [load(sample) for sample in samples]
