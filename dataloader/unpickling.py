"""Unpickling batches in the consumer, with errors that say what could not be made.

pickle says "invalid literal for int()", and nothing of what it was making. Its twin in Python, slow but the
same in all else, can be watched: after a failure the batch is unpickled once more by that.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Sequence
from typing import Any

from dataloader.interrupts import is_interrupt
from supervisor.exceptions import describe
from supervisor.payload import PayloadError


def load_batch(number: int, data: bytes, buffers: Sequence[Any]) -> Any:
    """Return batch ``number``.

    Raises PayloadError, naming the class, from whatever its unpickling raises; from that too which would end
    a loop or the program. What a signal handler raises comes as itself.
    """
    try:
        return pickle.loads(data, buffers=buffers)
    except BaseException as error:
        if is_interrupt(error):
            raise
        why = describe(error, f"from {_what_fails(data, buffers)}")
        raise PayloadError(f"batch {number} cannot be unpickled in this process: {why}") from error


def _what_fails(data: bytes, buffers: Sequence[Any]) -> str:
    """Return the name of what is called in vain to make a part of the batch; "pickle" where nothing is."""
    unpickler = _Watched(io.BytesIO(data), buffers=buffers)
    try:
        unpickler.load()
    except BaseException as error:
        if is_interrupt(error):
            raise
    making = unpickler.making
    return "pickle" if making is None else f"{making.__module__}.{making.__qualname__}"


class _Watched(pickle._Unpickler):
    """An unpickler that notes what it is making: the class, or what else is called."""

    making: Any = None
    stack: list[Any]


def _watched(opcode: bytes, made: Callable[[list[Any]], Any]) -> dict[int, Callable[[Any], None]]:
    """Return how ``opcode`` is carried out, noting what ``made`` finds on the stack."""
    carry_out = pickle._Unpickler.dispatch[opcode[0]]

    def note_and_carry_out(unpickler: Any) -> None:
        unpickler.making = made(unpickler.stack)
        carry_out(unpickler)
        unpickler.making = None

    return {opcode[0]: note_and_carry_out}


_Watched.dispatch = {
    **pickle._Unpickler.dispatch,
    **_watched(pickle.REDUCE, lambda stack: stack[-2]),
    **_watched(pickle.NEWOBJ, lambda stack: stack[-2]),
    **_watched(pickle.NEWOBJ_EX, lambda stack: stack[-3]),
    **_watched(pickle.BUILD, lambda stack: type(stack[-2])),
}
