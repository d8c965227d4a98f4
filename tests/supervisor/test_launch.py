"""What a forked child and a fresh interpreter start with."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import multiprocess.spawn
import pytest

from supervisor import launch
from tests.processes import open_descriptors
from tests.supervisor.toys import describe_interpreter, fail, measure


def written_by(start: Callable[[int], int]) -> bytes:
    """Return what the process that ``start`` starts, given a descriptor, writes there; it must succeed."""
    read_fd, write_fd = os.pipe()
    pid = start(write_fd)
    os.close(write_fd)
    with open(read_fd, "rb") as file:
        data = file.read()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    return data


def fresh_interpreter() -> dict[str, Any]:
    data = written_by(lambda fd: launch.spawn(describe_interpreter, (fd,), (fd,)))
    facts: dict[str, Any] = json.loads(data)
    return facts


def test_a_fresh_interpreter_has_our_surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend("/first of all")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train.py", "--epochs", "3"])
    facts = fresh_interpreter()
    assert facts["path"][: len(sys.path)] == sys.path
    assert facts["folder"] == str(tmp_path)
    assert facts["argv"] == ["train.py", "--epochs", "3"]


def test_a_working_directory_that_is_gone_is_no_hindrance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    assert written_by(lambda fd: launch.spawn(measure, (fd, b"four"), (fd,))) == b"4"


def test_a_fresh_interpreter_leaves_the_choice_of_a_start_method_open() -> None:
    script = (
        "import multiprocess, os; from supervisor import launch\n"
        "os.waitpid(launch.spawn(print, ('x',), ()), 0)\n"
        "multiprocess.set_start_method('spawn')\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=30, capture_output=True)


def test_a_fresh_interpreter_is_on_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "__file__", "/no/such/script.py")
    facts = fresh_interpreter()
    assert facts["leads a session"]
    assert facts["stdin"] == ""
    assert facts["main"] is None, "the consumer's script must not run again"


def test_a_fresh_interpreter_inherits_what_it_was_given_and_no_more() -> None:
    others = [os.open(os.devnull, os.O_RDONLY) for _ in range(5)]
    for fd in others:
        os.set_inheritable(fd, True)
    *standard, given = fresh_interpreter()["descriptors"]
    assert standard == [0, 1, 2]
    assert given not in others
    for fd in others:
        os.close(fd)


def test_fresh_interpreters_share_a_hash_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    assert fresh_interpreter()["hash"] == fresh_interpreter()["hash"]


def test_a_hash_seed_of_the_users_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    command = [sys.executable, "-c", "print(hash('abc'))"]
    expected = subprocess.run(command, capture_output=True, check=True).stdout
    assert fresh_interpreter()["hash"] == int(expected)


def test_arguments_larger_than_a_pipe_arrive() -> None:
    data = bytes(5_000_000)
    assert written_by(lambda fd: launch.spawn(measure, (fd, data), (fd,))) == b"5000000"


def test_what_a_fresh_interpreter_raises_is_its_exit_code() -> None:
    pid = launch.spawn(fail, (), ())
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1


def test_an_interpreter_that_ends_at_once_is_told_by_its_status(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiprocess.spawn, "_python_exe", b"/bin/false")
    before = open_descriptors()
    pid = launch.spawn(measure, (1, bytes(5_000_000)), ())
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
    assert open_descriptors() == before


def test_an_interpreter_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiprocess.spawn, "_python_exe", b"/no/such/python")
    before = open_descriptors()
    with pytest.raises(FileNotFoundError, match="/no/such/python"):
        launch.spawn(measure, (1, b""), ())
    assert open_descriptors() == before


# ---- forks ---------------------------------------------------------------------------------------


def test_a_forked_child_leads_a_session_and_has_no_input() -> None:
    def describe(fd: int) -> None:
        os.write(fd, json.dumps([os.getsid(0) == os.getpid(), os.read(0, 10).decode()]).encode())

    assert json.loads(written_by(lambda fd: launch.fork(lambda: describe(fd)))) == [True, ""]


def test_a_forked_child_has_no_handlers_of_its_parents() -> None:
    def describe(fd: int) -> None:
        handlers = [signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT)]
        os.write(fd, json.dumps(handlers).encode())

    before = signal.signal(signal.SIGUSR1, lambda *_: None), signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    try:
        handlers = json.loads(written_by(lambda fd: launch.fork(lambda: describe(fd))))
    finally:
        signal.signal(signal.SIGUSR1, before[0])
        signal.signal(signal.SIGUSR2, before[1])
    assert handlers == [signal.SIG_DFL, signal.SIG_IGN, signal.SIG_IGN]


def test_a_forked_child_that_fails_never_returns_to_its_parents_code() -> None:
    def run() -> None:
        raise ValueError("on purpose")

    ours = os.getpid()
    pid = launch.fork(run)
    assert os.getpid() == ours
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1


def test_output_that_was_waiting_is_written_once() -> None:
    script = (
        "import os; from supervisor import launch\n"
        "print('parent', end=' ')\n"
        "os.waitpid(launch.fork(lambda: print('child', flush=True)), 0)\n"
    )
    outcome = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, timeout=30)
    assert outcome.stdout == b"parent child\n"


@pytest.mark.parametrize("stream", ["None", "open('/dev/full', 'w')", "closed"])
def test_output_that_cannot_be_written_is_no_hindrance(stream: str) -> None:
    script = (
        "import os, sys; from supervisor import launch\n"
        "closed = open('/dev/null', 'w'); closed.close()\n"
        f"sys.stdout = {stream}\n"
        "print('x') if sys.stdout is not closed else None\n"
        "assert os.waitpid(launch.fork(lambda: None), 0)[1] == 0\n"
        "os._exit(0)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=30)
