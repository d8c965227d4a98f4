"""How a supervisor or a worker process comes to be: a fork, or a fresh interpreter.

A fresh interpreter is started by ``multiprocess``' own bootstrap, which brings along what it takes to
unpickle our own functions, but never the caller's ``__main__``: what is defined there travels by value, so
that a script needs no ``if __name__ == "__main__"``. For the rest see surroundings.

Both kinds lead a session of their own: a terminal's Ctrl-C reaches the consumer alone. A fresh interpreter
that was started by its parent's main thread dies with it from its first line on, for it is busy with imports
for long, and cannot look: see ``die_with_parent``. A supervisor ends that once its workers are there.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from supervisor.linux import SET_PARENT_DEATH_SIGNAL, create_owned_pipe
from supervisor.surroundings import working_directory

DIE_WITH_PARENT = (
    "import ctypes, os; ctypes.CDLL(None).prctl({option}, {signal}, 0, 0, 0); "
    "os.getppid() == {parent} or os._exit(1); "
)
HASH_SEED = "0"  # fresh interpreters share one, or sets would be ordered differently in each


def fork(run: Callable[[], None]) -> int:
    """Return the pid of a forked child that calls ``run`` and ends with it."""
    flush_output()
    pid = os.fork()
    if pid == 0:
        _run_and_exit(run)
    return pid


def spawn(
    target: Callable[..., None],
    args: tuple[Any, ...],
    descriptors: Sequence[int],
    stderr_fd: int | None = None,
) -> int:
    """Return the pid of a fresh interpreter that calls ``target(*args)``.

    It inherits ``descriptors`` under the same numbers, and ``stderr_fd`` as its standard error: None: ours.
    The caller must wait for it.
    """
    told = pickle.dumps(_preparation()) + pickle.dumps(_Boot(target, args))
    reader, writer = create_owned_pipe()  # which can be closed twice, by who is interrupted
    try:
        process = subprocess.Popen(
            _command_line(reader.fileno()),
            pass_fds=(reader.fileno(), *descriptors),
            stdin=subprocess.DEVNULL,
            stderr=stderr_fd,
            start_new_session=True,
            cwd=None if working_directory() else "/",  # some do not start where there is none
            env={"PYTHONHASHSEED": HASH_SEED, **os.environ},
        )
        process.returncode = 0  # the caller reaps it: subprocess must not
        reader.close()
        _write_all(writer.fileno(), told)
    finally:
        writer.close()
        reader.close()
    return process.pid


def _command_line(pipe_fd: int) -> list[str]:
    from multiprocess.spawn import get_command_line

    *options, program, mark = get_command_line(pipe_handle=pipe_fd)
    if threading.current_thread() is threading.main_thread():  # the end of another need not be the process'
        first = {"option": SET_PARENT_DEATH_SIGNAL, "signal": int(signal.SIGKILL), "parent": os.getpid()}
        program = DIE_WITH_PARENT.format(**first) + program
    return [*options, program, mark]


def _reset_signals() -> None:
    """Drop the signal handlers that a forked process has from its parent; ignore SIGINT."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def detach_input() -> None:
    """Let standard input be empty: the consumer's terminal is not ours to read."""
    fd = os.open(os.devnull, os.O_RDONLY)
    os.dup2(fd, 0)
    os.close(fd)


def flush_output() -> None:
    """Write out what stdout and stderr hold, lest a forked child write it again."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # there is none, or it is closed, or the user's and fails
            stream.flush()


def exit_with(code: int) -> NoReturn:
    """End this process, whatever happens: its stack is a copy of its parent's."""
    try:
        flush_output()
    finally:
        os._exit(code)


class _Boot:
    """What ``multiprocess`` calls in the fresh interpreter once it is prepared."""

    def __init__(self, target: Callable[..., None], args: tuple[Any, ...]) -> None:
        self.target = target
        self.args = args

    def _bootstrap(self, parent_sentinel: int) -> int:
        os.close(parent_sentinel)
        self.target(*self.args)
        return 0


def _preparation() -> dict[str, Any]:
    """Return what the bootstrap is to set. Its own function fails where the working directory is gone."""
    from multiprocess import current_process, get_start_method

    return {
        "name": "supervised",
        "authkey": bytes(current_process().authkey),  # refuses to be pickled as itself
        "start_method": get_start_method(allow_none=True),  # asked otherwise, it settles ours
        "sys_path": sys.path,
        "sys_argv": sys.argv,
    }


def _run_and_exit(run: Callable[[], None]) -> NoReturn:
    code = 1
    try:
        os.setsid()
        _reset_signals()
        detach_input()
        run()
        code = 0
    finally:
        os._exit(code)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(fd, view) :]
    except BrokenPipeError:
        return  # it died: whoever waits for it will hear
