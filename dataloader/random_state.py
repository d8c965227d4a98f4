"""The global random generators: set anew for each piece, or only where somebody draws from them.

A piece of work starts from its own random state. Setting it costs as much as loading dozens of cheap samples,
and most datasets never draw from Python's or NumPy's global generator. So a worker watches them: when nobody
has drawn for some batches it stops setting the state, and looks after each batch whether somebody has. Then
the batch is made again, with its state, and so are all after it. The results are the same: a state that
nobody draws from is of no consequence.

Torch's default generator is watched too (see ``torch_random``). Not seen: code that reads the state
(``random.getstate``) and does not draw, or puts it back. That is documented.
"""

from __future__ import annotations

import ctypes
import random
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numpy import random as numpy_random  # lazy in numpy 2: imported here, once, not in each forked worker
from numpy.random import mtrand

from dataloader.pieces import Seeds
from dataloader.torch_random import TorchWatch

T = TypeVar("T")

UNTOUCHED_BATCHES = 16  # after which the state is no longer set
NEVER = float("-inf")


def set_random_state(seeds: Seeds) -> None:
    """Seed Python's, numpy's and, if it is loaded, torch's global generator."""
    random.seed(seeds.python)
    numpy_random.seed(seeds.numpy)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.manual_seed(seeds.torch)


class kept_random_state:
    """Put the global generators back as they were, at the end.

    No ``contextlib.contextmanager``: that sets attributes of an exception, which a frozen dataclass refuses.
    """

    def __enter__(self) -> None:
        self._python, self._numpy = random.getstate(), numpy_random.get_state()
        torch = sys.modules.get("torch")
        self._torch = None if torch is None else torch.default_generator.get_state()

    def __exit__(self, *raised: object) -> None:
        random.setstate(self._python)
        numpy_random.set_state(self._numpy)
        if self._torch is not None:
            sys.modules["torch"].default_generator.set_state(self._torch)


class Setter:
    """Sets the global generators for each piece."""

    def run(self, in_pieces: Callable[[], T], as_a_whole: Callable[[], T]) -> T:
        """Make a batch piece by piece, calling ``set`` at the start of each; or as a whole, without."""
        return in_pieces()

    def set(self, seeds: Seeds) -> None:
        """Begin a piece."""
        set_random_state(seeds)

    def end(self) -> None:
        """End a piece, whether it was made or raised."""


class LazySetter(Setter):
    """Sets the global generators where somebody draws from them."""

    def __init__(self) -> None:
        self._watch = new_watch()
        self._torch: TorchWatch | None = None
        self._knows_torch = False  # it was loaded when last looked
        self._untouched = 0.0 if self._watch else NEVER  # batches in a row from which nobody drew

    def run(self, in_pieces: Callable[[], T], as_a_whole: Callable[[], T]) -> T:
        """Make a batch; twice, if it turns out to have drawn from a state that was not set."""
        self._look_for_torch()
        if self._untouched < UNTOUCHED_BATCHES:
            self._untouched += 1
            return in_pieces()
        try:
            result = as_a_whole()
        except Exception:
            if not self._is_touched():
                raise
        else:
            if not self._is_touched():
                return result
        return in_pieces()

    def set(self, seeds: Seeds) -> None:
        set_random_state(seeds)
        if self._watch is not None:
            self._watch.begin()
        if self._torch is not None:
            self._torch.begin()

    def _look_for_torch(self) -> None:
        """Watch torch's generator too once torch is loaded; for some batches it is set, as at the start."""
        if self._knows_torch or "torch" not in sys.modules:
            return
        self._knows_torch = True
        self._torch = TorchWatch.of_default_generator(sys.modules["torch"])
        self._untouched = min(self._untouched, 0.0) if self._torch else NEVER

    def end(self) -> None:
        self._is_touched()

    def _is_touched(self) -> bool:
        watch, torch = self._watch, self._torch
        if (watch is not None and watch.is_touched()) or (torch is not None and torch.is_touched()):
            self._untouched = NEVER
            return True
        return False


class Watch:
    """Tells whether Python's or NumPy's global generator was touched since ``begin``.

    It looks at the index and the first words of each state where CPython and NumPy keep them: a draw changes
    the index, or after 624 draws the words. Looking costs a fraction of a microsecond, where a copy of the
    state costs as much as setting it.
    """

    def __init__(self, generator: Any, words: list[memoryview]) -> None:
        self._generator = generator
        self._words = words
        self._begun: list[bytes] = []

    @classmethod
    def of_global_generators(cls) -> Watch | None:
        """Return the watch, None where the state does not lie where it is looked for."""
        generator = mtrand.get_bit_generator()
        if sys.implementation.name != "cpython" or not isinstance(generator, numpy_random.MT19937):
            return None
        python = id(random.random.__self__) + object.__basicsize__  # type: ignore[attr-defined]
        numpy = generator.ctypes.state_address
        words = [_memory(python, 12), _memory(numpy, 8), _memory(numpy + 624 * 4, 4)]
        watch = cls(generator, words)
        return watch if watch._look() == _expected() else None

    def copy(self) -> Watch:
        """Return one of the same generators that has not begun."""
        return Watch(self._generator, self._words)

    def is_of_global_generators(self) -> bool:
        """Whether NumPy's is still the global one; Python's cannot be another."""
        return mtrand.get_bit_generator() is self._generator

    def begin(self) -> None:
        self._begun = self._look()

    def is_touched(self) -> bool:
        return self._look() != self._begun or not self.is_of_global_generators()

    def _look(self) -> list[bytes]:
        return [words.tobytes() for words in self._words]


def new_watch() -> Watch | None:
    """Return a watch of its user's own. To find the words takes long: no forked worker does it again."""
    if _FOUND is None or not _FOUND.is_of_global_generators():
        return Watch.of_global_generators()
    return _FOUND.copy()


def _memory(address: int, size_bytes: int) -> memoryview:
    return memoryview((ctypes.c_char * size_bytes).from_address(address))


def _expected() -> list[bytes]:
    """Return what a watch must see, by the documented ways to ask."""
    *words, index = random.getstate()[1]
    numpy: Any = mtrand.get_state(legacy=False)["state"]
    values = [(index, *words[:2]), numpy["key"][:2], (numpy["pos"],)]
    return [np.array(value, np.uint32).tobytes() for value in values]


_FOUND = Watch.of_global_generators()
