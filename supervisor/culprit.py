"""Finding what cannot be pickled in an object that cannot.

pickle says "cannot pickle '_thread.lock' object", and nothing of where in a dataset of ten layers that is.
So the object is walked, from the whole to its parts, as long as some part cannot be pickled on its own.
Non-goals: speed, for this happens once, before an error; objects that hide their parts behind ``__reduce__``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType, MethodType
from typing import Any, NamedTuple

from supervisor.sharing import is_sharing

MAX_DEPTH = 20


class Culprit(NamedTuple):
    """A part that cannot be pickled though its own parts can, or are not known.

    Parameters:
        path: how Python code would reach it.
        value: the part.
        error: what pickling it raises.
    """

    path: str
    value: Any
    error: Exception

    def __str__(self) -> str:
        kind = type(self.value)
        what = f"a {kind.__module__}.{kind.__qualname__}"
        return f"{self.path}, {what}, cannot be pickled ({type(self.error).__name__}: {self.error})"


def find(parts: Mapping[str, Any], dump: Callable[[Any], object]) -> Culprit | None:
    """Return the first culprit in ``parts``, whose keys are what to call them; None where all can be pickled.

    Parameters:
        parts: objects by name.
        dump: pickles an object, or raises.

    >>> import pickle, threading
    >>> found = find({"dataset": {"files": [1, threading.Lock()]}}, pickle.dumps)
    >>> found.path
    "dataset['files'][1]"
    """
    for name, value in parts.items():
        culprit = _find(name, value, dump, frozenset())
        if culprit is not None:
            return culprit
    return None


def _find(path: str, value: Any, dump: Callable[[Any], object], above: frozenset[int]) -> Culprit | None:
    error = _error_of(dump, value)
    if error is None or id(value) in above or len(above) >= MAX_DEPTH:
        return None  # where it holds itself another part is at fault
    for part_path, part in _parts(path, value):
        culprit = _find(part_path, part, dump, above | {id(value)})
        if culprit is not None:
            return culprit
    return Culprit(path, value, error)


def _error_of(dump: Callable[[Any], object], value: Any) -> Exception | None:
    try:
        dump(value)
    except Exception as error:
        return error
    return None


def _parts(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if is_sharing(value):
        return
    if isinstance(value, Mapping):
        yield from ((f"{path}[{key!r}]", part) for key, part in value.items())
    elif isinstance(value, list | tuple):
        yield from ((f"{path}[{i}]", part) for i, part in enumerate(value))
    elif isinstance(value, functools.partial):
        yield f"{path}.func", value.func
        yield from _parts(f"{path}.args", value.args)
        yield from _parts(f"{path}.keywords", value.keywords)
    elif isinstance(value, BaseException):
        yield from _parts(f"{path}.args", value.args)
        yield from ((f"{path}.{name}", part) for name, part in attributes(value))
    elif isinstance(value, MethodType):
        yield f"{path}.__self__", value.__self__
    elif isinstance(value, FunctionType):
        yield from _variables(path, value)
    else:
        yield from ((f"{path}.{name}", part) for name, part in attributes(value))


def _variables(path: str, function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Give the variables of outer functions and of the module that ``function`` uses."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        yield f"{path}'s variable {name}", cell.cell_contents
    for name in function.__code__.co_names:
        if name in function.__globals__:
            yield f"{path}'s variable {name}", function.__globals__[name]


def attributes(value: Any) -> Iterator[tuple[str, Any]]:
    """Give the attributes that ``value`` itself has, by name."""
    yield from getattr(value, "__dict__", {}).items()
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(value, name):
                yield name, getattr(value, name)
