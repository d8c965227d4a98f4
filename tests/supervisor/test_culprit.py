"""What cannot be pickled is found where it is."""

from __future__ import annotations

import functools
import pickle
import threading
from typing import Any

import cloudpickle
import pytest

from supervisor.culprit import find

LOCK = threading.Lock()


class Holder:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)

    def method(self) -> None:
        pass


class Slotted:
    __slots__ = ("empty", "held")

    def __init__(self, held: Any) -> None:
        self.held = held


class Stubborn:
    def __reduce__(self) -> Any:
        raise RuntimeError("holds a connection")


def closure() -> Any:
    held = LOCK
    return lambda: held


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (LOCK, "it"),
        (Holder(a=1, lock=LOCK), "it.lock"),
        (Holder(a=Holder(b=[0, {"c": LOCK}])), "it.a.b[1]['c']"),
        (Slotted(Holder(x=LOCK)), "it.held.x"),
        (Holder(lock=LOCK).method, "it.__self__.lock"),
        (functools.partial(print, 1, LOCK), "it.args[1]"),
        (functools.partial(print, end=LOCK), "it.keywords['end']"),
        (closure(), "it's variable held"),
        (Holder(a=Stubborn()), "it.a"),
        (Holder(f=closure()), "it.f's variable held"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_path_leads_to_it(value: Any, path: str) -> None:
    culprit = find({"innocent": [1, 2], "it": value}, cloudpickle.dumps)
    assert culprit is not None
    assert culprit.path == path


def test_what_can_be_pickled_has_no_culprit() -> None:
    assert find({"it": Holder(a=[1, {"b": (2, None)}])}, pickle.dumps) is None


def test_an_object_that_holds_itself_is_walked_once() -> None:
    holder = Holder(a=1)
    holder.myself = holder  # type: ignore[attr-defined]
    holder.lock = LOCK  # type: ignore[attr-defined]
    culprit = find({"it": holder}, pickle.dumps)
    assert culprit is not None
    assert culprit.path == "it.lock"


def test_it_reads_as_a_sentence() -> None:
    culprit = find({"dataset": Holder(lock=LOCK)}, pickle.dumps)
    assert str(culprit) == (
        "dataset.lock, a _thread.lock, cannot be pickled (TypeError: cannot pickle '_thread.lock' object)"
    )
    stubborn = find({"dataset": Stubborn()}, pickle.dumps)
    assert str(stubborn).endswith(
        "test_culprit.Stubborn, cannot be pickled (RuntimeError: holds a connection)"
    )
