"""Exceptions of every shape arrive as themselves, or as a stand-in that keeps their text."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from supervisor import exceptions
from supervisor.exceptions import MAX_TEXT_CHARACTERS, WorkerTraceback


class SeveralArguments(Exception):
    def __init__(self, path: str, line: int) -> None:
        super().__init__(path, line)
        self.path = path
        self.line = line


class HasMessage(Exception):
    message = "a class attribute"


class CannotBeRebuilt(Exception):
    def __init__(self, path: str, line: int) -> None:
        super().__init__(f"{path}:{line}")


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


def test_a_local_class_arrives_as_itself() -> None:
    class Local(Exception):
        pass

    copy = sent(Local("here"))
    assert type(copy).__name__ == "Local"
    assert copy.args == ("here",)


@pytest.mark.parametrize(
    "error",
    [CannotBeRebuilt("a.jpg", 3), CannotBePickled("text"), CannotBeRead()],
    ids=lambda error: type(error).__name__,
)
def test_what_cannot_travel_has_a_stand_in(error: BaseException) -> None:
    copy = sent(error)
    assert type(copy) is RuntimeError
    assert type(error).__name__ in str(copy)
    assert "Traceback" in str(copy.__cause__)


@pytest.mark.parametrize("kind", [StopIteration, SystemExit, KeyboardInterrupt, GeneratorExit])
def test_what_would_end_a_loop_or_the_program_has_a_stand_in(kind: type[BaseException]) -> None:
    copy = sent(kind("why"))
    assert type(copy) is RuntimeError
    assert kind.__name__ in str(copy)


def test_causes_are_in_the_text() -> None:
    try:
        try:
            raise KeyError("first")
        except KeyError as error:
            raise ValueError("second") from error
    except ValueError as error:
        copy = sent(error)
    assert "KeyError: 'first'" in str(copy.__cause__)


def test_a_huge_message_is_shortened_and_fits() -> None:
    data = exceptions.pack(ValueError("x" * 10_000_000))
    assert len(data) < 4 * MAX_TEXT_CHARACTERS
    assert "ValueError" in str(exceptions.unpack(data))
