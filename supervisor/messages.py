"""What the consumer and the supervisor tell each other over the control pipe.

    consumer -> supervisor   Start  Check  End  Judge  Stop
    supervisor -> consumer   Started  Ready  Slow  Died  GaveUp  Warned  Checked  Stopped  Failed

Each message carries a number that grows. A sender that was interrupted may send the same message again, so a
receiver drops a number that it has had.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass

from supervisor.channel import MAX_MESSAGE_BYTES
from supervisor.payload import Payload
from supervisor.policy import RestartPolicy
from supervisor.report import ExitReport
from supervisor.verdict import ExitReason


@dataclass(frozen=True)
class Settings:
    """What a supervisor is told once, when it starts.

    Parameters:
        consumer_pid: the process it serves.
        start_method: "fork", "forkserver" or "spawn".
        policy: the bounds on replacing workers; None: never replace.
        reading_interval_s: seconds between memory readings.
        close_s: how long a worker has to end by itself once its pipe is closed.
        terminate_s: how long it then has after SIGTERM, before SIGKILL.
        timeout_s: how long a worker may be at one task; None: without end.
        memory_limit_bytes: how much memory of its own a worker may have; None: any.
        judges: the consumer judges deaths that may have been a task's fault: see Judge.
    """

    consumer_pid: int
    start_method: str
    policy: RestartPolicy | None
    reading_interval_s: float
    close_s: float
    terminate_s: float
    timeout_s: float | None = None
    memory_limit_bytes: int | None = None
    judges: bool = False


@dataclass(frozen=True)
class Start:
    """Start this many workers, for run number ``run``.

    Descriptors: the lifeline, then that of the surroundings and those of the payload, where there are such.
    The lifeline is a pipe of which the consumer holds the other end: when that closes, the workers are
    stopped.

    Parameters:
        surroundings: the consumer's Surroundings; None where they are inherited.
        payload: the job; None where it is inherited, or is that of the last run.
        resumes: workers of this run were ready before, under a supervisor that died.
    """

    run: int
    workers: int
    surroundings: Payload | None
    payload: Payload | None
    resumes: bool = False


@dataclass(frozen=True)
class Check:
    """Look for deaths now and say when all are dealt with."""


@dataclass(frozen=True)
class End:
    """End worker ``pid``, for ``reason``."""

    pid: int
    reason: ExitReason
    because: str


@dataclass(frozen=True)
class Judge:
    """Let the death of worker ``pid`` count in the window of restarts, or not.

    A death in the middle of a task, which may be the task's own fault, does not count before that is said.
    """

    pid: int
    counts: bool


@dataclass(frozen=True)
class Stop:
    """Stop all workers; their pipes are closed already."""


@dataclass(frozen=True)
class Started:
    """A worker's process is there. Descriptors: its pipe and, where there are such, its pidfd."""

    worker: int
    pid: int
    restarts: int


@dataclass(frozen=True)
class Ready:
    """A worker has completed its start-up."""

    worker: int
    pid: int
    replaced_s: float | None


@dataclass(frozen=True)
class Slow:
    """A worker has been at a task for unusually long, and is left alone.

    Parameters:
        spent_s: how long.
        task, item: see Page; None where it is at none.
        stack: where it is.
    """

    worker: int
    pid: int
    spent_s: float
    task: int | None
    item: int | None
    stack: str


@dataclass(frozen=True)
class Died:
    """A worker ended. ``exception`` is what it left behind, packed.

    ``gave_up``: why the dead are no longer replaced from now on, if so. It is no message of its own, which
    could come after the dead worker's task has been given to the next one.
    ``retired``: it is not replaced, and the others go on without.
    """

    report: ExitReport
    exception: bytes | None
    gave_up: str | None
    retired: bool = False


@dataclass(frozen=True)
class GaveUp:
    """A dead worker's successor could not be started, because ``why``."""

    why: str


@dataclass(frozen=True)
class Warned:
    """Something is not as the user wanted it; the supervisor goes on without."""

    text: str


@dataclass(frozen=True)
class Checked:
    """All deaths up to the last Check are dealt with."""


@dataclass(frozen=True)
class Stopped:
    """All workers are gone, up to those of run number ``run``. May be said twice of one run."""

    run: int


@dataclass(frozen=True)
class Failed:
    """The supervisor itself could not do something; ``exception`` is packed."""

    exception: bytes


@dataclass(frozen=True)
class Broken:
    """The supervisor ends by this exception, packed. It bears no number, and is the last that is said."""

    exception: bytes


Command = Start | Check | End | Judge | Stop
Event = Started | Ready | Slow | Died | GaveUp | Warned | Checked | Stopped | Failed | Broken


def encode(number: int, body: Command | Event) -> bytes:
    """Return one message. A report too large for one keeps the ends of its texts."""
    data = pickle.dumps((number, body))
    if len(data) > MAX_MESSAGE_BYTES and isinstance(body, Died):
        return encode(number, _shortened(body))
    return data


def decode(data: bytes) -> tuple[int, Command | Event]:
    number, body = pickle.loads(data)
    return number, body


def _shortened(died: Died) -> Died:
    report = died.report
    report.traceback, report.stderr = report.traceback[-8000:], report.stderr[-8000:]
    report.readings = report.readings[-10:]
    return Died(report, None, died.gave_up, died.retired)
