"""The way home for objects of classes that travel by value.

A class of ``__main__`` reaches a worker as a copy. To pickle an object of the copy, cloudpickle takes the
whole class along, at a millisecond each time, and where the class came from its attributes are overwritten
with the copy's. So each class is sent out under a number; on its way back a copy is nothing but that number,
and what arrives is an object of the very class that was sent out.
"""

from __future__ import annotations

import io
import itertools
import os
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import cloudpickle

_counter = itertools.count()
_numbers: weakref.WeakKeyDictionary[type, int] = weakref.WeakKeyDictionary()  # of classes sent out from here
_originals: weakref.WeakValueDictionary[int, type] = weakref.WeakValueDictionary()
_homes: dict[type, int] = {}  # of the copies that came here: their numbers where they came from

os.register_at_fork(after_in_child=_homes.clear)  # a child's results go to this process, not to its home


class Originals(tuple[type, ...]):
    """Keeps classes alive in the process that sent them out. A copy in another holds none."""

    def __reduce__(self) -> tuple[type[Originals], tuple[()]]:
        return Originals, ()


NONE = Originals()


def number_of(original: type) -> int:
    """Return the number under which a class is sent out: always the same."""
    number = _numbers.setdefault(original, next(_counter))
    _originals[number] = original
    return number


def original_of(number: int) -> type:
    return _originals[number]


def receive(copies: dict[int, type]) -> None:
    """Know from now on where these came from."""
    _homes.update({copy: number for number, copy in copies.items()})


def dumps(value: Any, protocol: int, buffer_callback: Callable[[pickle.PickleBuffer], object]) -> bytes:
    """Pickle for the process that the workers' job came from, by value what it does not have."""
    file = io.BytesIO()
    HomewardPickler(file, protocol, buffer_callback).dump(value)
    return file.getvalue()


class HomewardPickler(cloudpickle.Pickler):  # type: ignore[misc]
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type) and obj in _homes:
            return original_of, (_homes[obj],)
        return super().reducer_override(obj)
