"""Small NumPy arrays on their way from a worker: in the pickle, as their bytes and a number for the type.

NumPy itself writes the type's name, and makes a buffer that is asked about: five times what it costs to move
the bytes of a small array. Other arrays are pickled as NumPy does it: large ones, whose memory stays out of
band; subclasses; types with fields, objects or units; what may not be written to, or has gaps.
"""

from __future__ import annotations

import copyreg
import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np

from dataloader.arena import SMALL_BYTES

_DTYPES = [*map(np.dtype, "?bBhHiIlLqQefdFD")]
# By id, for a type with metadata is equal to one without.
_NUMBERS = {id(dtype): number for number, dtype in enumerate(_DTYPES)}


def dumps(value: Any, /, protocol: int, *, buffer_callback: Callable[[pickle.PickleBuffer], object]) -> bytes:
    """Pickle ``value`` as ``pickle.dumps`` does, but for small arrays.

    >>> batch = [np.arange(3.0), "a"]
    >>> pickle.loads(dumps(batch, 5, buffer_callback=print))
    [array([0., 1., 2.]), 'a']
    """
    file = io.BytesIO()
    pickler = pickle.Pickler(file, protocol, buffer_callback=buffer_callback)
    pickler.dispatch_table = _REDUCERS
    pickler.dump(value)
    return file.getvalue()


def _reduce(array: np.ndarray[Any, Any]) -> Any:
    number = _NUMBERS.get(id(array.dtype))
    if number is None or not 0 < array.nbytes < SMALL_BYTES:
        return array.__reduce_ex__(5)
    flags = array.flags
    if not (flags.c_contiguous and flags.writeable):
        return array.__reduce_ex__(5)
    return rebuild, (bytearray(array.data), number, array.shape if array.ndim != 1 else None)


class Reducers(dict[type, Callable[[Any], Any]]):
    """What a pickler looks up: by type, how an object is taken apart. What is registered in copyreg holds."""

    def __missing__(self, kind: type) -> Callable[[Any], Any]:
        if kind is np.ndarray and kind not in copyreg.dispatch_table:
            return self.setdefault(kind, _reduce)
        return copyreg.dispatch_table[kind]


_REDUCERS = Reducers()


def rebuild(data: bytearray, number: int, shape: tuple[int, ...] | None) -> np.ndarray[Any, Any]:
    """Return the array whose memory is ``data``."""
    array = np.frombuffer(data, _DTYPES[number])
    return array if shape is None else array.reshape(shape)
