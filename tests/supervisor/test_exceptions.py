"""Exceptions of every shape arrive as themselves, or as a stand-in that keeps their text."""

from __future__ import annotations

import os
import pickle
import sys
import threading
from dataclasses import dataclass
from typing import Any

import pytest

from supervisor import exceptions
from supervisor.channel import MAX_MESSAGE_BYTES
from supervisor.culprit import attributes
from supervisor.exceptions import MAX_TEXT_BYTES, WorkerTraceback
from tests.forks import in_child


class SeveralArguments(Exception):
    def __init__(self, path: str, line: int) -> None:
        super().__init__(path, line)
        self.path = path
        self.line = line


class HasMessage(Exception):
    """torch's loader rebuilds any exception whose class has ``message`` with that as a keyword."""

    message = "a class attribute"


class SetsMessage(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.message = f"code {code}"


class Opaque:
    """Its repr has its address, which is another after a journey."""


class CannotBeRebuilt(Exception):
    def __init__(self, path: str, line: int) -> None:
        super().__init__(f"{path}:{line}")


class IsRebuiltWrongly(Exception):
    """Rebuilt from its args, it would say "code code 3"."""

    def __init__(self, code: object) -> None:
        super().__init__(f"code {code}")


class RefusesToBePickled(Exception):
    def __reduce__(self) -> Any:
        raise pickle.PicklingError("never")


def exit_instead() -> Any:
    raise SystemExit(3)


class ExitsInsteadOfBeingRebuilt(Exception):
    def __reduce__(self) -> Any:
        return exit_instead, ()


@dataclass(frozen=True)
class Frozen(Exception):
    """Lets nobody set an attribute, not even its cause."""

    path: str


class Slotted(Exception):
    __slots__ = ("path",)

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path


class NeedsFile(OSError):
    def __init__(self, path: str) -> None:
        super().__init__(2, "No such file", path)


class Locked(Exception):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.held = {"lock": threading.Lock()}


class RaisesElsewhere:
    """Can be unpickled in the process that pickled it, and in no other."""

    def __reduce__(self) -> Any:
        return raise_in_others, (os.getpid(),)


def raise_in_others(pid: int) -> RaisesElsewhere:
    if os.getpid() != pid:
        raise ValueError("of another process")
    return RaisesElsewhere()


class CannotBeRead(Exception):
    def __init__(self) -> None:
        super().__init__(threading.Lock())

    def __str__(self) -> str:
        raise RuntimeError("no text")


CONTROL_FLOW = [StopIteration, SystemExit, KeyboardInterrupt, GeneratorExit]


def sent(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as raised:
        return exceptions.unpack(exceptions.pack(raised, "in worker 1"))


@pytest.mark.parametrize(
    "error",
    [
        ValueError("plain"),
        KeyError("with\nnewlines"),
        SeveralArguments("a.jpg", 3),
        HasMessage("text"),
        SetsMessage(3),
        MemoryError(),
        RecursionError("deep"),
        OSError(2, "No such file", "a.jpg"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_it_arrives_as_itself(error: BaseException) -> None:
    copy = sent(error)
    assert type(copy) is type(error)
    assert copy.args == error.args
    assert vars(copy) == vars(error)
    assert isinstance(copy.__cause__, WorkerTraceback)
    assert str(copy.__cause__).strip().startswith("in worker 1:\nTraceback")


def test_arguments_may_be_any_objects() -> None:
    copy = sent(ValueError("bad", Opaque()))
    assert type(copy) is ValueError
    assert copy.args[0] == "bad"
    assert type(copy.args[1]) is Opaque


def test_attributes_set_later_arrive() -> None:
    error = ValueError("text")
    error.sample = 12  # type: ignore[attr-defined]
    assert vars(sent(error)) == {"sample": 12}


def test_a_local_class_arrives_as_itself() -> None:
    class Local(Exception):
        pass

    copy = sent(Local("here"))
    assert type(copy).__name__ == "Local"
    assert copy.args == ("here",)


@pytest.mark.parametrize(
    "error",
    [
        CannotBeRebuilt("a.jpg", 3),
        IsRebuiltWrongly(3),
        RefusesToBePickled("text"),
        ExitsInsteadOfBeingRebuilt("text"),
        Frozen(path="a.jpg"),
        Slotted("a.jpg"),
        NeedsFile("a.jpg"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_whose_pickling_or_constructor_is_in_the_way_arrives_all_the_same(error: Exception) -> None:
    copy = sent(error)
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert copy.args == error.args
    assert dict(attributes(copy)) == dict(attributes(error))
    assert getattr(copy, "filename", None) == getattr(error, "filename", None)
    assert isinstance(copy.__cause__, WorkerTraceback)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="CPython 3.10 has no exception groups")
def test_a_group_arrives_whole_whatever_is_in_it() -> None:
    inner = CannotBeRebuilt("a.jpg", 3)
    group = ExceptionGroup("several", [KeyError("x"), ExceptionGroup("more", [inner])])  # noqa: F821
    vars(inner)["itself"] = inner
    copy: Any = sent(group)
    key_error, more = copy.exceptions
    assert (copy.message, key_error.args, more.message) == ("several", ("x",), "more")
    assert type(more.exceptions[0]) is CannotBeRebuilt
    assert more.exceptions[0].args == ("a.jpg:3",)
    assert vars(more.exceptions[0])["itself"] is more.exceptions[0]


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (Locked("text"), "error.held['lock'], a _thread.lock, cannot be pickled (TypeError: "),
        (RuntimeError("text", threading.Lock()), "error.args[1], a _thread.lock, cannot be pickled ("),
        (CannotBeRead(), "(its message could not be read: RuntimeError)\n"),
        (ValueError("x" * 30_000), "its pickle has 30,1"),
    ],
    ids=lambda value: "" if isinstance(value, str) else type(value).__name__,
)
def test_what_cannot_travel_has_a_stand_in_that_says_why(error: BaseException, why: str) -> None:
    copy = sent(error)
    assert type(copy) is RuntimeError
    assert str(copy).startswith(f"{type(error).__name__} in a worker: ")
    assert why in str(copy)
    assert "Traceback" in str(copy.__cause__)


def test_what_cannot_be_rebuilt_where_it_arrives_has_a_stand_in_too() -> None:
    data = in_child(lambda: exceptions.pack(ValueError("text", RaisesElsewhere()), "in worker 1"))
    copy = exceptions.unpack(data)
    assert type(copy) is RuntimeError
    assert str(copy).startswith("ValueError in a worker: ('text', ")
    assert "ValueError when it was rebuilt: of another process" in str(copy)
    assert str(copy.__cause__).strip().startswith("in worker 1:")


def test_an_interrupt_of_the_rebuilding_is_passed_on() -> None:
    data = in_child(lambda: exceptions.pack(ValueError("text", RaisesElsewhere()), "in worker 1"))
    with pytest.raises(ValueError, match="of another process"):
        exceptions.unpack(data, lambda error: isinstance(error, ValueError))


@pytest.mark.parametrize("kind", [*CONTROL_FLOW, StopAsyncIteration])
def test_what_would_end_a_loop_or_the_program_has_a_stand_in(kind: type[BaseException]) -> None:
    copy = sent(kind("why"))
    assert type(copy) is RuntimeError
    assert str(copy) == f"{kind.__name__} in a worker: why"
    assert "Traceback" in str(copy.__cause__)


def test_causes_are_in_the_text() -> None:
    try:
        try:
            raise KeyError("first")
        except KeyError as error:
            raise ValueError("second") from error
    except ValueError as error:
        copy = sent(error)
    assert "KeyError: 'first'" in str(copy.__cause__)


@pytest.mark.slow
@pytest.mark.parametrize("letter", ["x", "\u6f22", "\U0001f600", "\udcff"], ids=ascii)
def test_a_huge_message_is_shortened_and_fits(letter: str) -> None:
    try:
        raise ValueError("start " + letter * 1_000_000 + " end")
    except ValueError as error:
        data = exceptions.pack(error, "in worker 1")
    assert len(data) < MAX_MESSAGE_BYTES - MAX_TEXT_BYTES  # so that the text fits beside it once more
    copy = exceptions.unpack(data)
    for text in (str(copy), str(copy.__cause__)):
        assert "ValueError" in text
        assert "start " in text
        assert "bytes left out" in text
        assert " end\n" in text[-100:]


def test_text_with_lone_surrogates_is_kept() -> None:
    assert sent(ValueError("file \udcff")).args == ("file \udcff",)


def test_the_text_can_be_had_without_rebuilding() -> None:
    try:
        raise CannotBeRebuilt("a.jpg", 3)
    except CannotBeRebuilt as error:
        data = exceptions.pack(error, "in worker 1")
    assert exceptions.text_of(data) == str(exceptions.unpack(data).__cause__).lstrip("\n")
