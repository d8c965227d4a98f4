"""SIGKILL of the consumer and of the supervisor at random moments, and what is left a second later.

``python -m tests.chaos.killings`` prints the figures: each is killed 20 times in each situation with each
start method, at seeded random moments. Under fork the end of a supervisor is an error; under the others the
next one goes on.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from dataloader import DataLoader, RestartPolicy, WorkerDiedError
from tests.chaos.storm import quantile
from tests.processes import belongings, is_gone, living_descendants, wait_until

START_METHODS = ("fork", "forkserver", "spawn")
WITH_OWN_SHM = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs tmpfs /dev/shm && exec "$@"', "sh"]
SITUATIONS = ("starting", "loading", "in a sample", "idle")
BOUND_S = 1.0
MARK = "CHAOS_MARK"

# The situations: killed while it starts its workers; while it takes batches; while it waits for samples that
# take a minute, each worker with a subprocess of its own; between two epochs.
CONSUMER = """
import subprocess, sys, time
from dataloader import DataLoader

situation, start_method = sys.argv[1:]

class Samples:
    def __len__(self):
        return 8 if situation == "idle" else 100_000
    def __getitem__(self, index):
        if situation == "in a sample":
            subprocess.run(["sleep", "60"])
        time.sleep(0.001)
        return index

loader = DataLoader(
    Samples(), num_workers=2, persistent_workers=True, multiprocessing_context=start_method
)
if situation == "starting":
    print("ready", flush=True)
iterator = iter(loader)
if situation == "idle":
    list(iterator)
print("ready", flush=True)
for batch in iterator:
    pass
time.sleep(60)
"""


@dataclass
class Aftermath:
    """What became of one killing.

    Attributes:
        gone_s: seconds until no process was left; infinity if one was still there after a while.
        family: how many there had been.
        error_s: seconds until the consumer raised, where it was not itself the one that was killed.
    """

    gone_s: float
    family: int
    error_s: float = 0.0


# ---- the consumer --------------------------------------------------------------------------------


def kill_consumer(situation: str, start_method: str, delay_s: float) -> Aftermath:
    """Start a consumer, kill it ``delay_s`` after it came into a situation, and wait for the end of its kin.

    Its kin are all processes with a mark in the environment that they inherited, whoever is their parent.
    """
    mark = uuid.uuid4().hex
    before = set() if mounts_are_allowed() else set(os.listdir("/dev/shm"))
    with _consumer(situation, start_method, mark) as process, _shared_memory_of(process.pid) as folder_fd:
        time.sleep(delay_s)
        family = len(marked(mark))
        assert not any(map(_uses_shared_memory_files, marked(mark)))
        process.kill()
        gone_s = _time_until(lambda: not marked(mark))
        # Where others share /dev/shm, they may use it for a moment; what nobody removes is ours.
        assert wait_until(lambda: set(os.listdir(folder_fd)) <= before, timeout_s=BOUND_S)
    return Aftermath(gone_s, family)


@contextmanager
def _consumer(situation: str, start_method: str, mark: str) -> Iterator[subprocess.Popen[str]]:
    alone = WITH_OWN_SHM if mounts_are_allowed() else []
    command = [*alone, sys.executable, "-c", CONSUMER, situation, start_method]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, MARK: mark}
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            for pid in marked(mark):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


@cache
def mounts_are_allowed() -> bool:
    """Whether a process may be given a /dev/shm of its own."""
    try:
        return subprocess.run([*WITH_OWN_SHM, "true"], capture_output=True).returncode == 0
    except OSError:
        return False


@contextmanager
def _shared_memory_of(pid: int) -> Iterator[int]:
    """Give a descriptor of the /dev/shm that a process sees; it outlives the process."""
    folder_fd = os.open(f"/proc/{pid}/root/dev/shm", os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield folder_fd
    finally:
        os.close(folder_fd)


def marked(mark: str) -> list[int]:
    """Return the pids of all living processes with this mark in their environment."""
    needle = f"{MARK}={mark}".encode()
    return [pid for pid in psutil.pids() if needle in _environment(pid)]


def _environment(pid: int) -> bytes:
    """Return the environment of a process; nothing if it has gone or is a zombie."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def _uses_shared_memory_files(pid: int) -> bool:
    try:
        return "/dev/shm/" in Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return False


def _time_until(condition: Callable[[], object]) -> float:
    start_s = time.monotonic()
    return time.monotonic() - start_s if wait_until(condition, timeout_s=10.0) else float("inf")


# ---- the supervisor ------------------------------------------------------------------------------


class Slow:
    """Samples that take a millisecond, or a minute from a certain one on."""

    def __init__(self, minute_from: int) -> None:
        self.minute_from = minute_from

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> int:
        time.sleep(60 if index >= self.minute_from else 0.001)
        return index


@dataclass
class SupervisorKiller:
    """Kills the supervisor of a loader from a thread, so that the consumer can be anywhere in ``next``."""

    loader: DataLoader
    delay_s: float
    pid: int = 0
    workers: list[int] = field(default_factory=list)
    at_s: float = 0.0

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> SupervisorKiller:
        self.workers = [worker.pid for worker in self.loader.workers()]
        self.pid = psutil.Process(self.workers[0]).ppid()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()

    def _run(self) -> None:
        time.sleep(self.delay_s)
        self.at_s = time.monotonic()
        os.kill(self.pid, signal.SIGKILL)


def kill_supervisor(start_method: str, delay_s: float, minute_from: int = 100_000) -> Aftermath:
    """Kill a supervisor while batches are taken; see what is raised, and when its workers are gone."""
    with DataLoader(Slow(minute_from), num_workers=2, multiprocessing_context=start_method) as loader:
        iterator = iter(loader)
        with SupervisorKiller(loader, delay_s) as killer:
            error, taken = _exhaust(iterator)
            error_s = time.monotonic() - killer.at_s
        assert taken == list(range(len(taken)))
        assert "supervisor process died" in str(error)
        assert error.report.pid == killer.pid
        assert error.report.signal == signal.SIGKILL
        _time_until(lambda: all(map(is_gone, killer.workers)))
        gone_s = time.monotonic() - killer.at_s
        assert next(iter(loader)).tolist() == [0]
    return Aftermath(gone_s, len(killer.workers), error_s)


@dataclass
class Survival:
    """What became of a loader whose supervisors were killed.

    Attributes:
        epochs: whether each epoch gave the batches of an undisturbed one.
        killed: how many supervisors were killed.
        left: pids of processes that are there though they should not be.
        before, after: this process' descriptors and mappings.
    """

    epochs: list[bool] = field(default_factory=list)
    killed: int = 0
    left: list[int] = field(default_factory=list)
    before: tuple[int, int, int] = (0, 0, 0)
    after: tuple[int, int, int] = (0, 0, 0)


class Drawn:
    """Samples that take a millisecond and draw a number."""

    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> float:
        time.sleep(0.001)
        return index + random.random()


def outlive_supervisors(start_method: str, times: int, seed: int) -> Survival:
    """Kill the supervisors of one loader at random moments, until ``times`` are dead; see what is left."""
    survival, generator = Survival(), random.Random(seed)
    options: dict[str, Any] = {"batch_size": 4, "seed": 7, "multiprocessing_context": start_method}
    policy = RestartPolicy(max_restarts=10 * times, backoff=0.0)
    ever: set[int] = set()
    with (
        DataLoader(Drawn(), num_workers=2, persistent_workers=True, restart=policy, **options) as loader,
        DataLoader(Drawn(), batch_size=4, seed=7) as undisturbed,
    ):
        survival.epochs.append(_batches(loader) == _batches(undisturbed))
        survival.before = belongings()
        while survival.killed < times:
            with _Assassin(loader, generator.uniform(0.0, 0.3)) as assassin:
                survival.epochs.append(_batches(loader) == _batches(undisturbed))
            survival.killed += 1
            ever |= assassin.seen
        survival.epochs.append(_batches(loader) == _batches(undisturbed))
        survival.after = belongings()
        alive = set(living_descendants())
        wait_until(lambda: all(is_gone(pid) for pid in ever - alive), timeout_s=BOUND_S)
        mine = {worker.pid for worker in loader.workers()} | {supervisor_pid(loader)}
        survival.left = [pid for pid in ever - mine if not is_gone(pid)]
    return survival


def _batches(loader: DataLoader) -> list[bytes]:
    return [batch.tobytes() for batch in loader]


def supervisor_pid(loader: DataLoader) -> int:
    """Return the pid of the supervisor that a loader has, dead or alive."""
    supervisor = loader._live.pools[0][0]._supervisor
    return 0 if supervisor is None else supervisor.pid


class _Assassin:
    """Kills the supervisor that a loader has after a while, from a thread.

    Attributes:
        seen: the pids of it and of what it had started.
    """

    def __init__(self, loader: DataLoader, delay_s: float) -> None:
        self.loader = loader
        self.delay_s = delay_s
        self.seen: set[int] = set()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> _Assassin:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()

    def _run(self) -> None:
        time.sleep(self.delay_s)
        pid = supervisor_pid(self.loader)
        self.seen = {pid, *living_descendants(pid)}
        os.kill(pid, signal.SIGKILL)


def _exhaust(iterator: Iterator[Any]) -> tuple[WorkerDiedError, list[int]]:
    taken: list[int] = []
    try:
        taken.extend(int(batch[0]) for batch in iterator)
    except WorkerDiedError as error:
        return error, taken
    raise AssertionError("nothing was raised")


# ---- figures -------------------------------------------------------------------------------------


def moments(seed: int, count: int, within_s: float) -> list[float]:
    """Return seeded random delays."""
    generator = random.Random(seed)
    return [generator.uniform(0.0, within_s) for _ in range(count)]


def _line(what: str, values: list[float]) -> str:
    times = (statistics.median(values), quantile(sorted(values), 0.9), max(values))
    return f"{what}: {len(values)} times, s: " + "median {:.3f}, p90 {:.3f}, max {:.3f}".format(*times)


def figures(start_method: str, times: int = 20) -> Iterator[str]:
    """Kill ``times`` times in each situation; give the figures, a line each."""
    for situation in SITUATIONS:
        afters = [kill_consumer(situation, start_method, delay_s) for delay_s in moments(1, times, 0.3)]
        yield _line(f"{start_method}, consumer killed, {situation}, all gone", [a.gone_s for a in afters])
    if start_method != "fork":
        start_s = time.monotonic()
        survival = outlive_supervisors(start_method, times, seed=3)
        each_s = (time.monotonic() - start_s) / times
        yield (
            f"{start_method}, supervisor killed {survival.killed} times: {len(survival.epochs)} epochs of "
            f"{each_s:.2f} s, all equal: {all(survival.epochs)}, left: {len(survival.left)}"
        )
        return
    for what, minute_from in (("loading", 100_000), ("in a sample", 20)):
        afters = [kill_supervisor(start_method, delay_s, minute_from) for delay_s in moments(2, times, 0.3)]
        yield _line(f"{start_method}, supervisor killed, {what}, error", [a.error_s for a in afters])
        yield _line(f"{start_method}, supervisor killed, {what}, workers gone", [a.gone_s for a in afters])


def main() -> None:
    """Print the figures."""
    for start_method in START_METHODS:
        for line in figures(start_method):
            print(line, flush=True)


if __name__ == "__main__":
    main()
