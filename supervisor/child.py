"""What happens in a worker process around the user's function.

settle in        own process group, dies with the supervisor, no signal handlers of the parent's,
                 first choice of the kernel's when memory runs out, faulthandler into a memory file
load, set up     the page says STARTING
ready            the page says IDLE, the supervisor is told
serve            the user's function, until its pipe ends, or it leaves as its page tells it to
end              the page says CLOSED or LEAVING, or an exception is left behind; then exit, by os._exit
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import itertools
import os
import signal
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NoReturn

from supervisor import exceptions, launch, memory_cgroup
from supervisor.channel import Channel, close_all
from supervisor.linux import die_with_parent, unshared_bytes
from supervisor.page import Page, PageFile, State
from supervisor.payload import Payload
from supervisor.surroundings import Surroundings

STACK_SIGNAL = signal.SIGRTMAX - 1
OOM_SCORE_RAISE = 500
_OOM_SCORE_FILE = "/proc/self/oom_score_adj"


@dataclass(frozen=True)
class WorkerContext:
    """What a worker's functions are told about their surroundings.

    Parameters:
        worker: the worker's id, 0 to num_workers - 1.
        num_workers: how many there are.
        page: its shared record; ``page.enter(...)`` says what it is doing.
    """

    worker: int
    num_workers: int
    page: Page


Setup = Callable[[WorkerContext], None]
Serve = Callable[[Channel, WorkerContext], None]
Job = tuple[Setup | None, Serve]


@dataclass(frozen=True)
class Handles:
    """A worker's descriptors: its pipe, the pages, its stack, its last words, the ready signal."""

    pipe: int
    pages: int
    stack: int
    words: int
    ready: int

    def all(self) -> tuple[int, ...]:
        return (self.pipe, self.pages, self.stack, self.words, self.ready)


@dataclass(frozen=True)
class Birth:
    """All that a worker process is told. ``cgroup``: the folder of the memory cgroup made for it."""

    worker: int
    num_workers: int
    supervisor_pid: int
    handles: Handles
    cgroup: str | None = None


def run_forked(
    birth: Birth, load: Callable[[], Job], stderr_fd: int, not_ours: Callable[[], Iterable[int]]
) -> NoReturn:
    """Be a worker, in a child that the supervisor forked.

    ``stderr_fd`` becomes standard error; ``not_ours`` gives what is to be closed.
    """

    def arrive() -> None:
        os.dup2(stderr_fd, 2)
        os.setpgid(0, 0)
        close_all(not_ours())
        _forget_parent_processes()

    _live_and_exit(birth, arrive, load)


def run_fresh(birth: Birth, payload: Payload, surroundings: Surroundings) -> NoReturn:
    """Be a worker, in a fresh interpreter."""

    def arrive() -> None:
        for fd in (*payload.descriptors(), *birth.handles.all()):
            os.set_inheritable(fd, False)

    def load() -> Job:
        surroundings.apply()
        payload.import_modules()
        return load_job(payload, surroundings)

    _live_and_exit(birth, arrive, load)


def load_job(payload: Payload, surroundings: Surroundings) -> Job:
    """Return what a worker that inherits nothing is to do. What that imports should be imported already."""
    surroundings.apply_filters()
    job: Job = payload.load()
    return job


def _live_and_exit(birth: Birth, arrive: Callable[[], None], load: Callable[[], Job]) -> NoReturn:
    """Never return to the caller's stack, which is a copy of the supervisor's."""
    code = 1
    try:
        arrive()
        _settle_in(birth)
        _serve_until_end(birth, load)
        _wind_up()
        code = 0
    except SystemExit as error:
        code = _exit_code(error)
    except BaseException as error:
        where = f"in worker {birth.worker} (pid {os.getpid()})"
        os.pwrite(birth.handles.words, exceptions.pack(error, where), 0)
    finally:
        launch.exit_with(code)


def _serve_until_end(birth: Birth, load: Callable[[], Job]) -> None:
    pipe = Channel.from_descriptor(birth.handles.pipe)
    page = PageFile(birth.handles.pages).page(birth.worker)
    try:
        _work(pipe, WorkerContext(birth.worker, birth.num_workers, page), load, birth.handles.ready)
    except BrokenPipeError:
        if not pipe.ended:
            raise
    if pipe.ended:
        page.enter(State.CLOSED)


def _work(pipe: Channel, context: WorkerContext, load: Callable[[], Job], ready_fd: int) -> None:
    setup, serve = load()
    if setup is not None:
        setup(context)
    context.page.ready(unshared_bytes())
    os.eventfd_write(ready_fd, 1)
    serve(pipe, context)


def _settle_in(birth: Birth) -> None:
    die_with_parent(signal.SIGKILL)
    if os.getppid() != birth.supervisor_pid:
        os._exit(1)  # it died before the line above
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGINT, signal.SIGCHLD):  # all that the supervisor has handlers for
        signal.signal(number, signal.SIG_DFL)
    _print_at_once()
    _volunteer_for_oom()
    if birth.cgroup is not None:
        memory_cgroup.join(birth.cgroup)
    _yield_to_consumer()
    faulthandler.enable(birth.handles.stack, all_threads=True)
    faulthandler.register(STACK_SIGNAL, birth.handles.stack, all_threads=True)


def _print_at_once() -> None:
    """Let each line arrive as it is printed: a worker that dies does not write out what it had kept."""
    if isinstance(sys.stdout, io.TextIOWrapper) and not sys.stdout.closed:
        with contextlib.suppress(OSError):  # of what was kept before
            sys.stdout.reconfigure(line_buffering=True)


def _volunteer_for_oom() -> None:
    """Let the kernel, out of memory, pick a worker, which can be replaced, before the trainer."""
    with contextlib.suppress(OSError):  # /proc may be read-only
        fd = os.open(_OOM_SCORE_FILE, os.O_RDWR | os.O_CLOEXEC)
        score = min(1000, int(os.read(fd, 16)) + OOM_SCORE_RAISE)
        os.pwrite(fd, str(score).encode(), 0)
        os.close(fd)


def _yield_to_consumer() -> None:
    """Let a woken worker not interrupt what runs: often the consumer, which had just sent it a task."""
    with contextlib.suppress(OSError):  # it may be refused
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _forget_parent_processes() -> None:
    """Do what ``multiprocessing`` does in a child that it forks itself, for it and for ``multiprocess``.

    Otherwise the end of this process would terminate its parent's children, and user code in a worker of
    a daemonic process could start none.
    """
    for library in _loaded_process_libraries():
        process, util = library.process, library.util
        process.current_process()._config.pop("daemon", None)
        process._children = set()
        process._process_counter = itertools.count(1)
        util._finalizer_registry.clear()
        util._run_after_forkers()


def _wind_up() -> None:
    for library in _loaded_process_libraries():
        library.util._exit_function()


def _loaded_process_libraries() -> list[Any]:
    names = ("multiprocessing", "multiprocess")
    return [sys.modules[name] for name in names if f"{name}.util" in sys.modules]


def _exit_code(error: SystemExit) -> int:
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    print(error.code, file=sys.stderr)
    return 1
