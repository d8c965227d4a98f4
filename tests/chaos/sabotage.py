"""Ways to end a worker, and the points of the protocol at which it can be ended.

    consumer: plan.arm() --> a file --> the first worker that reaches the plan's point takes it away, and ends

A point lies in user code (the dataset and the functions below call ``reach``) or at a function of ours, which
then takes a detour in the worker: a fork inherits it, and a fresh interpreter makes it when it imports this
module, as the plan in its environment says. The product has no hooks.

A new way to end is a row of WAYS, and then of the sweep's and of the verdicts' tables; a new point is a name,
a call of ``reach`` or a row of DETOURS, and a stage of the sweep.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial, wraps
from pathlib import Path
from typing import Any, NamedTuple, NoReturn
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from dataloader import ExitReason, ExitReport, default_collate, wire
from dataloader.worker import Server
from supervisor import child
from supervisor.channel import Channel
from supervisor.memory_cgroup import join

ENVIRONMENT = "CHAOS_PLAN"
GROUP = "CHAOS_CGROUP"
POKE = signal.SIGUSR2  # lets a worker that waits for work run some code
NUMBERS = 4200  # in a sample: with these a batch is just too large to travel inline
SYSTEM_EXIT_CODE = 4
UNCAUGHT_CODE = 1  # of a worker that ends by an exception


# ---- ways ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Way:
    """A way to end, and what its report is to say of a worker that ended so.

    Parameters:
        name: for people.
        end: called in the worker.
        reason, signal, exit_code: see ExitReport.
        raises: what ``end`` raises, if it does: where that is caught, the worker lives on.
        arguments: of the loader, where it takes some to be noticed.
    """

    name: str
    end: Callable[[], object]
    reason: ExitReason
    signal: int | None = None
    exit_code: int | None = None
    raises: type[BaseException] | None = None
    arguments: dict[str, Any] = field(default_factory=dict)

    def is_named_by(self, report: ExitReport) -> bool:
        """Whether a report says what happened."""
        expected = (self.reason, self.signal, self.exit_code)
        return (report.reason, report.signal, report.exit_code) == expected


def by_signal(number: signal.Signals, reason: ExitReason) -> Way:
    return Way(number.name, partial(signal.raise_signal, number), reason, signal=number)


def by_exit(code: int) -> Way:
    return Way(f"os._exit({code})", partial(os._exit, code), ExitReason.EXITED, exit_code=code)


def by_exception(error: type[Exception]) -> Way:
    def end() -> NoReturn:
        raise error("sabotage")

    return Way(error.__name__, end, ExitReason.EXCEPTION, exit_code=UNCAUGHT_CODE, raises=error)


def run_out_of_memory() -> None:
    """Join the memory cgroup that ``GROUP`` names, and take all that it has."""
    join(os.environ[GROUP])
    take_memory(1 << 30)


def take_memory(size_bytes: int) -> None:
    """Take memory, and a while."""
    taken = np.ones(size_bytes, np.uint8)
    time.sleep(60)
    del taken


SYSTEM_EXIT = Way(
    "SystemExit",
    partial(sys.exit, SYSTEM_EXIT_CODE),
    ExitReason.EXITED,
    exit_code=SYSTEM_EXIT_CODE,
    raises=SystemExit,
)
SIGKILL = by_signal(signal.SIGKILL, ExitReason.KILLED)
SIGSEGV = by_signal(signal.SIGSEGV, ExitReason.CRASHED)
SEGFAULT = Way("segfault", partial(ctypes.string_at, 0), ExitReason.CRASHED, signal=signal.SIGSEGV)
ABORT = Way("abort", os.abort, ExitReason.CRASHED, signal=signal.SIGABRT)
# Lets somebody else end it.
WAITS_FOR_SIGKILL = Way("SIGKILL from outside", partial(time.sleep, 60), ExitReason.KILLED, signal.SIGKILL)
WAITS_FOR_SIGTERM = Way("SIGTERM from outside", partial(time.sleep, 60), ExitReason.KILLED, signal.SIGTERM)
# Ended by the supervisor.
TIMEOUT_S = 0.5
HANG = Way("hang", partial(time.sleep, 60), ExitReason.HUNG, signal.SIGKILL, arguments={"timeout": TIMEOUT_S})
SIGSTOP = Way(
    "SIGSTOP",
    partial(signal.raise_signal, signal.SIGSTOP),
    ExitReason.HUNG,
    signal.SIGKILL,
    arguments={"timeout": TIMEOUT_S},
)
MEMORY_LIMIT = Way(
    "memory limit",
    partial(take_memory, 80 << 20),
    ExitReason.MEMORY_LIMIT,
    signal.SIGKILL,
    arguments={"worker_memory_limit": 40 << 20},
)
OOM_KILL = Way("OOM kill", run_out_of_memory, ExitReason.OOM_KILLED, signal.SIGKILL)
EXIT_0, EXIT_3 = by_exit(0), by_exit(3)
VALUE_ERROR, MEMORY_ERROR = by_exception(ValueError), by_exception(MemoryError)

WAYS = {
    way.name: way
    for way in (
        *(SIGKILL, SIGSEGV, SEGFAULT, ABORT, WAITS_FOR_SIGKILL, WAITS_FOR_SIGTERM),
        *(HANG, SIGSTOP, MEMORY_LIMIT, OOM_KILL, EXIT_0, EXIT_3, SYSTEM_EXIT, VALUE_ERROR, MEMORY_ERROR),
    )
}


# ---- points --------------------------------------------------------------------------------------

Detour = tuple[Any, str, Callable[..., Any]]  # whose function, its name, what is called instead


def before(point: str, owner: Any, name: str) -> Detour:
    """Reach ``point`` before each call of a function of ours."""
    original = getattr(owner, name)

    @wraps(original)
    def detour(*args: Any) -> Any:
        reach(point)
        return original(*args)

    return owner, name, detour


def after(
    point: str, owner: Any, name: str, when: Callable[[Any, tuple[Any, ...]], bool] = lambda *_: True
) -> Detour:
    """Reach ``point`` after each call whose result and arguments are as ``when`` says."""
    original = getattr(owner, name)

    @wraps(original)
    def detour(*args: Any) -> Any:
        result = original(*args)
        if when(result, args):
            reach(point)
        return result

    return owner, name, detour


START_UP = "start-up"
LOAD = "dataset load"
INIT = "init function"
TASK = "before the task is read"
SAMPLE = "in the sample"
COLLATE = "in collate"
PICKLING = "in pickling"
SLOT_MADE = "slot made but not sent"
SLOT_SENT = "descriptor sent"
RESULT = "after the result"
IDLE = "idle between epochs"
PIPE_ENDED = "shutdown, the pipe ended"
WINDING_UP = "shutdown, winding up"

DETOURS: tuple[Detour, ...] = (
    after(START_UP, child, "_settle_in"),
    before(TASK, wire, "decode_tasks"),
    after(SLOT_MADE, wire, "encode_batch", lambda result, _: result[1] is not None),
    after(SLOT_SENT, Channel, "send", lambda _, args: len(args) == 3 and bool(args[2])),
    after(RESULT, Server, "_answer"),
    after(PIPE_ENDED, Server, "serve"),
    before(WINDING_UP, child, "_wind_up"),
)


# ---- plans ---------------------------------------------------------------------------------------


class Strike(NamedTuple):
    """Who was struck, where, and when (CLOCK_MONOTONIC)."""

    pid: int
    sample: int | None
    at_s: float


@dataclass(frozen=True)
class Plan:
    """Who reaches ``point`` first, once armed, ends in a certain way. ``folder`` tells everybody."""

    point: str
    way: str
    folder: str

    @property
    def _armed(self) -> Path:
        return Path(self.folder) / "armed"

    @property
    def _struck(self) -> Path:
        return Path(self.folder) / "struck"

    def arm(self) -> None:
        self._struck.unlink(missing_ok=True)
        self._armed.touch()

    def take(self, sample: int | None) -> bool:
        """Disarm it; whether the caller was the first to do so."""
        with contextlib.suppress(FileNotFoundError):
            taken = self._armed.rename(f"{self._armed}-{os.getpid()}")
            taken.write_text(json.dumps([os.getpid(), sample, time.monotonic()]))
            taken.rename(self._struck)
            return True
        return False

    def struck(self) -> Strike | None:
        """Return whom it struck, if it has."""
        with contextlib.suppress(FileNotFoundError):
            return Strike(*json.loads(self._struck.read_text()))
        return None


def reach(point: str, sample: int | None = None) -> None:
    """Be at a point of the protocol: the end, if the plan says so."""
    told = os.environ.get(ENVIRONMENT)
    if told is None:
        return
    plan = Plan(**json.loads(told))
    if plan.point == point and plan.take(sample):
        WAYS[plan.way].end()


@contextmanager
def sabotaged(plan: Plan) -> Iterator[None]:
    """Let workers that are started meanwhile follow ``plan``."""
    told = {ENVIRONMENT: json.dumps(vars(plan))}
    with ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, told))
        for detour in DETOURS:
            stack.enter_context(mock.patch.object(*detour))
        yield


# ---- user code -----------------------------------------------------------------------------------


@dataclass
class Sabotaged:
    """Samples that are of some size and draw at random; loading and unpickling them are points."""

    length: int

    def __len__(self) -> int:
        return self.length

    def __setstate__(self, state: dict[str, Any]) -> None:
        reach(LOAD)
        self.__dict__.update(state)

    def __getitem__(self, index: int) -> tuple[int, float, NDArray[np.float64]]:
        reach(SAMPLE, index)
        return index, random.random(), np.full(NUMBERS, np.random.rand())


class Baggage:
    """A part of a batch, whose pickling is a point."""

    def __reduce__(self) -> tuple[Any, ...]:
        reach(PICKLING)
        return Baggage, ()


def collate(samples: list[Any]) -> tuple[Any, Baggage]:
    reach(COLLATE)
    return default_collate(samples), Baggage()


def init(worker: int) -> None:
    reach(INIT)
    signal.signal(POKE, lambda *_: reach(IDLE))


if ENVIRONMENT in os.environ:  # in a fresh interpreter of a sabotaged loader
    for _owner, _name, _detour in DETOURS:
        setattr(_owner, _name, _detour)
