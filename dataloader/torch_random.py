"""Torch's default generator, where torch is loaded, watched as ``random_state`` watches the others.

Its engine is found by its own words, as ``get_state`` tells them, near the start of the C++ object. Where
they are not found, nothing is watched, and the state is set for every piece.
"""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Callable
from typing import Any

SEARCHED_BYTES = 256  # of an object of more than 2,500
STATE = struct.Struct("<Q i i Q Q Q")  # seed, left, seeded, next, two words: what get_state begins with
ENGINE = struct.Struct("<Q i 4x I I I")  # the same in memory: seed, left, next, two words
READERS = ("get_rng_state", "initial_seed")

_reads = 0


class TorchWatch:
    """Tells whether torch's default generator was drawn from, seeded or read since ``begin``.

    Parameters:
        words: where the engine keeps what changes with each draw.
    """

    def __init__(self, words: memoryview) -> None:
        self._words = words
        self._begun: tuple[bytes, int] | None = None

    @classmethod
    def of_default_generator(cls, torch: Any) -> TorchWatch | None:
        """Return the watch, None where the state does not lie where it is looked for."""
        if sys.implementation.name != "cpython":
            return None
        generator = torch.default_generator
        expected = _expected(bytes(generator.get_state()[: STATE.size].tolist()))
        start = generator._cdata
        memory = ctypes.string_at(start, SEARCHED_BYTES)
        places = range(0, SEARCHED_BYTES - ENGINE.size, 8)
        found = [place for place in places if ENGINE.unpack_from(memory, place) == expected]
        if len(found) != 1:
            return None
        count_reads(torch)
        words = (ctypes.c_char * ENGINE.size).from_address(start + found[0])
        return cls(memoryview(words))

    def begin(self) -> None:
        self._begun = self._look()

    def is_touched(self) -> bool:
        return self._look() != self._begun

    def _look(self) -> tuple[bytes, int]:
        return self._words.tobytes(), _reads


def _expected(state: bytes) -> tuple[int, ...]:
    """Return what the engine holds, by the state that torch tells."""
    seed, left, _, following, *words = STATE.unpack(state)
    return (seed, left, following, *words)


def count_reads(torch: Any) -> None:
    """Have those functions of torch counted that read the state, ``fork_rng`` among their callers."""
    for module in (torch, torch.random):
        for name in READERS:
            function = getattr(module, name)
            if not hasattr(function, "__wrapped__"):
                setattr(module, name, _counted(function))


def _counted(function: Callable[[], Any]) -> Callable[[], Any]:
    def counted() -> Any:
        global _reads
        _reads += 1
        return function()

    counted.__wrapped__ = function  # type: ignore[attr-defined]
    return counted
