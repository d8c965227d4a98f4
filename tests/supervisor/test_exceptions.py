"""Exceptions of every shape arrive as themselves, or as a stand-in that keeps their text."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from supervisor import exceptions
from supervisor.channel import MAX_MESSAGE_BYTES
from supervisor.exceptions import MAX_TEXT_BYTES, WorkerTraceback


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


class CannotBePickled(Exception):
    def __reduce__(self) -> Any:
        raise pickle.PicklingError("never")


class CannotBeRead(Exception):
    def __init__(self) -> None:
        super().__init__(lambda: None)

    def __str__(self) -> str:
        raise RuntimeError("no text")

    def __reduce__(self) -> Any:
        raise RuntimeError("no pickle")


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
    [CannotBeRebuilt("a.jpg", 3), IsRebuiltWrongly(3), CannotBePickled("text"), CannotBeRead()],
    ids=lambda error: type(error).__name__,
)
def test_what_cannot_travel_has_a_stand_in(error: BaseException) -> None:
    copy = sent(error)
    assert type(copy) is RuntimeError
    assert type(error).__name__ in str(copy)
    assert "Traceback" in str(copy.__cause__)


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
        assert text.endswith((" end", " end\n"))


def test_text_with_lone_surrogates_is_kept() -> None:
    assert sent(ValueError("file \udcff")).args == ("file \udcff",)


def test_the_text_can_be_had_without_rebuilding() -> None:
    try:
        raise CannotBeRebuilt("a.jpg", 3)
    except CannotBeRebuilt as error:
        data = exceptions.pack(error, "in worker 1")
    assert exceptions.text_of(data) == str(exceptions.unpack(data).__cause__).lstrip("\n")
