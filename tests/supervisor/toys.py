"""Workers for tests, importable by fresh interpreters without pytest, and what tests do with a pool."""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from supervisor.channel import Channel
from supervisor.child import WorkerContext
from supervisor.page import DONE, State
from supervisor.policy import RestartPolicy
from supervisor.pool import WorkerPool
from tests.processes import open_descriptors

START_METHODS = ["fork", "forkserver", "spawn"]
EAGER = RestartPolicy(max_restarts=1000, backoff=0.0)
GET_PARENT_DEATH_SIGNAL = 2  # PR_GET_PDEATHSIG

# ---- workers -------------------------------------------------------------------------------------


def crash() -> None:
    ctypes.string_at(0)


def raise_error() -> None:
    raise ValueError("two", "args")


def close_everything() -> None:
    """Close the worker's pipe too, as a user's daemonising code may, and live on."""
    os.closerange(3, 1 << 10)
    time.sleep(60)


ENDS: dict[bytes, Callable[[], object]] = {
    b"kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    b"crash": crash,
    b"abort": os.abort,
    b"exit 0": lambda: os._exit(0),
    b"exit 3": lambda: os._exit(3),
    b"sys.exit": lambda: sys.exit(4),
    b"raise": raise_error,
    b"close": close_everything,
    b"sleep": lambda: time.sleep(60),
}


def serve(pipe: Channel, context: WorkerContext) -> None:
    """Echo in capitals, or end as asked."""
    while (message := pipe.receive()) is not None:
        context.page.enter(State.SAMPLE)
        if message.data in ENDS:
            ENDS[message.data]()
        pipe.send(message.data.upper())
        context.page.enter(State.IDLE)


def counts_its_tasks(pipe: Channel, context: WorkerContext) -> None:
    """As ``serve``, and say in the page that a task is done."""
    while (message := pipe.receive()) is not None:
        if message.data in ENDS:
            ENDS[message.data]()
        context.page.words[DONE] += 1
        pipe.send(message.data.upper())


def answer(pipe: Channel, context: WorkerContext) -> None:
    """Answer questions about the process that this is."""
    while (message := pipe.receive()) is not None:
        pipe.send(json.dumps(QUESTIONS[message.data.decode()](context)).encode())


def oom_score(pid: int | str) -> int:
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())


def _run_a_process() -> int | None:
    process = multiprocessing.get_context("fork").Process(target=time.monotonic)
    process.start()
    process.join()
    return process.exitcode


def _parent_death_signal() -> int:
    number = ctypes.c_int()
    ctypes.CDLL(None).prctl(GET_PARENT_DEATH_SIGNAL, ctypes.byref(number), 0, 0, 0)
    return number.value


QUESTIONS: dict[str, Callable[[WorkerContext], Any]] = {
    "ids": lambda context: [context.worker, context.num_workers],
    "pid and group": lambda context: [os.getpid(), os.getpgid(0)],
    "descriptors": lambda context: list(open_descriptors().values()),
    "oom score": lambda context: oom_score("self"),
    "parent death signal": lambda context: _parent_death_signal(),
    "signals": lambda context: [
        signal.getsignal(number) == signal.SIG_DFL for number in (signal.SIGINT, signal.SIGCHLD)
    ],
    "stdin": lambda context: os.read(0, 10).decode(),
    "modules": lambda context: [name for name in ("numpy.random", "wave") if name in sys.modules],
    "run a process": lambda context: _run_a_process(),
}


def stubborn(pipe: Channel, context: WorkerContext) -> None:
    """Ignore SIGTERM and the end of the pipe."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    pipe.send(b"deaf")
    while True:
        time.sleep(60)


def changes_its_group(pipe: Channel, context: WorkerContext) -> None:
    os.setpgid(0, os.getpgid(os.getppid()))
    pipe.send(b"moved")
    time.sleep(60)


def starts_a_subprocess(pipe: Channel, context: WorkerContext) -> None:
    child = subprocess.Popen(["sleep", "60"], close_fds=False)
    pipe.send(str(child.pid).encode())
    serve(pipe, context)


def leaves_a_grandchild(pipe: Channel, context: WorkerContext) -> None:
    """Let a child that is in a session of its own hold the pipe, and die."""
    if pipe.receive() is None:
        return
    moved_fd, write_fd = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        os.write(write_fd, b"x")
        time.sleep(60)
        os._exit(0)
    os.read(moved_fd, 1)  # it is no longer in the group that ends with us
    pipe.send(str(child).encode())
    os.kill(os.getpid(), signal.SIGKILL)


def says_goodbye(pipe: Channel, context: WorkerContext) -> None:
    """Answer, and be dead before anybody can have read the answer's end."""
    while (message := pipe.receive()) is not None:
        pipe.send(message.data.upper())
        os.kill(os.getpid(), signal.SIGKILL)


def sends_a_descriptor(pipe: Channel, context: WorkerContext) -> None:
    read_fd, write_fd = os.pipe()
    pipe.send(b"here", [read_fd])
    os.close(read_fd)
    os.close(write_fd)
    pipe.receive()


# ---- start-ups -----------------------------------------------------------------------------------


def failing_setup(context: WorkerContext) -> None:
    raise KeyError("no such\ndataset")


def wordy_setup(context: WorkerContext) -> None:
    raise ValueError("\u6f22" * 100_000)


def slow_setup(context: WorkerContext) -> None:
    print("ready", flush=True)
    time.sleep(60)


def dying_setup(context: WorkerContext) -> None:
    os.abort()


# ---- what tests do with a pool -------------------------------------------------------------------


def await_reports(pool: WorkerPool, count: int, timeout_s: float = 10.0) -> None:
    end_s = time.monotonic() + timeout_s
    while len(pool.reports) < count:
        assert time.monotonic() < end_s, f"{len(pool.reports)} of {count} reports came"
        pool.wait(0.1)


def end_worker(pool: WorkerPool, worker: int, message: bytes) -> None:
    """Send a message that ends the worker, and wait for its report."""
    before = len(pool.reports)
    pool.workers[worker].pipe.send(message)
    await_reports(pool, before + 1)


def supervisor_pid(pool: WorkerPool) -> int:
    return psutil.Process(pool.workers[0].pid).ppid()


def pids(pool: WorkerPool) -> list[int]:
    """Return the pids of the supervisor and its workers."""
    return [supervisor_pid(pool), *(worker.pid for worker in pool.workers.values())]


def ask(pool: WorkerPool, question: str, worker: int = 0) -> Any:
    pool.workers[worker].pipe.send(question.encode())
    return json.loads(pool.receive(worker).data)


# ---- what fresh interpreters run -----------------------------------------------------------------


def describe_interpreter(fd: int) -> None:
    """Write down what this process was brought along."""
    facts = {
        "path": sys.path,
        "folder": os.getcwd(),
        "argv": sys.argv,
        "hash": hash("abc"),
        "stdin": sys.stdin.read(),
        "leads a session": os.getsid(0) == os.getpid(),
        "main": getattr(sys.modules["__main__"], "__file__", None),
        "descriptors": sorted(open_descriptors()),
    }
    os.write(fd, json.dumps(facts).encode())


def measure(fd: int, data: bytes) -> None:
    os.write(fd, str(len(data)).encode())


def fail() -> None:
    sys.stderr.close()  # its traceback is not wanted
    raise ValueError("on purpose")
