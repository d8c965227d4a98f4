"""What can say where it is, and go on from there: torchdata's protocol."""

from __future__ import annotations

from typing import Any


def has_state(thing: Any) -> bool:
    """Whether ``thing`` can say where it is, and go on from there.

    >>> has_state([1, 2])
    False
    """
    return callable(getattr(thing, "state_dict", None)) and callable(getattr(thing, "load_state_dict", None))
