"""Where random generators are, as text, and back.

Known are ``numpy.random.Generator`` and ``RandomState``, ``random.Random`` and ``torch.Generator``, and the
modules ``random`` and ``numpy.random`` themselves, which stand for their global generators.
"""

from __future__ import annotations

import base64
import json
import random
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numpy import random as numpy_random


class _Kind(NamedTuple):
    """How generators of one kind are told, read and set. ``read`` returns what JSON takes."""

    name: str
    includes: Callable[[Any], bool]
    read: Callable[[Any], Any]
    set: Callable[[Any, Any], None]


def state_text(generator: Any) -> str | None:
    """Return where ``generator`` is; None of what is no generator, or cannot be asked.

    >>> import random
    >>> generator = random.Random(1)
    >>> there, first = state_text(generator), generator.random()
    >>> set_state(generator, there)
    >>> generator.random() == first, state_text("no generator")
    (True, None)
    """
    kind = _kind_of(generator)
    if kind is None:
        return None
    return json.dumps({"generator": kind.name, "state": kind.read(generator)})


def set_state(generator: Any, text: str) -> None:
    """Put ``generator`` where another of its kind was.

    Raises:
        ValueError: ``text`` is no state of such a generator.
    """
    kind = _kind_of(generator)
    try:
        content = json.loads(text)
        if kind is None or content["generator"] != kind.name:
            raise ValueError(f"it is one of {content['generator']}")
        kind.set(generator, content["state"])
    except (ValueError, TypeError, KeyError, RuntimeError) as error:
        raise ValueError(f"this is no state of {type(generator).__name__}: {error}") from error


def generators_of(holder: Any) -> dict[str, Any]:
    """Return the generators that are attributes of ``holder``, by name."""
    attributes = getattr(holder, "__dict__", {})
    return {name: value for name, value in attributes.items() if _is_held(value)}


def global_generators() -> dict[str, Any]:
    """Return Python's, NumPy's and, where it is loaded, torch's global generator."""
    found = {"random": random, "numpy.random": numpy_random}
    torch = sys.modules.get("torch")
    return found if torch is None else {**found, "torch": torch.default_generator}


def _is_held(value: Any) -> bool:
    return not isinstance(value, ModuleType) and _kind_of(value) is not None


def _kind_of(generator: Any) -> _Kind | None:
    return next((kind for kind in _KINDS if kind.includes(generator)), None)


# ---- kinds ---------------------------------------------------------------------------------------


def _is_python(generator: Any) -> bool:
    if isinstance(generator, random.SystemRandom):
        return False
    return generator is random or isinstance(generator, random.Random)


def _set_python(generator: Any, state: Any) -> None:
    version, words, gauss = state
    generator.setstate((version, tuple(words), gauss))


def _read_numpy(generator: np.random.Generator) -> Any:
    return _plain(generator.bit_generator.state)


def _set_numpy(generator: np.random.Generator, state: Any) -> None:
    bits = generator.bit_generator
    bits.state = _like(bits.state, state)


def _is_old_numpy(generator: Any) -> bool:
    return generator is numpy_random or isinstance(generator, np.random.RandomState)


def _read_old_numpy(generator: Any) -> Any:
    return _plain(generator.get_state(legacy=False))


def _set_old_numpy(generator: Any, state: Any) -> None:
    generator.set_state(_like(generator.get_state(legacy=False), state))


def _is_torch(generator: Any) -> bool:
    kind = type(generator)
    return kind.__name__ == "Generator" and kind.__module__.partition(".")[0] == "torch"


def _read_torch(generator: Any) -> str:
    return base64.b64encode(generator.get_state().numpy().tobytes()).decode()


def _set_torch(generator: Any, state: str) -> None:
    data = np.frombuffer(base64.b64decode(state), np.uint8).copy()
    generator.set_state(sys.modules["torch"].from_numpy(data))


_KINDS = (
    _Kind("random", _is_python, lambda generator: generator.getstate(), _set_python),
    _Kind("numpy", lambda generator: isinstance(generator, np.random.Generator), _read_numpy, _set_numpy),
    _Kind("numpy, legacy", _is_old_numpy, _read_old_numpy, _set_old_numpy),
    _Kind("torch", _is_torch, _read_torch, _set_torch),
)


def _plain(state: Any) -> Any:
    """Return ``state`` with lists in place of arrays."""
    if isinstance(state, Mapping):
        return {key: _plain(value) for key, value in state.items()}
    return state.tolist() if isinstance(state, np.ndarray | np.generic) else state


def _like(model: Any, state: Any) -> Any:
    """Return ``state`` with arrays where ``model`` has them."""
    if isinstance(model, Mapping):
        return {key: _like(value, state[key]) for key, value in model.items()}
    return np.array(state, model.dtype) if isinstance(model, np.ndarray) else state
