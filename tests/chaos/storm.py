"""A storm of SIGKILLs over a loader, and what became of it.

``python -m tests.chaos.storm`` prints the figures of the full storm: 4 workers, 3 epochs of 2,000 batches
whose samples sleep about 2 ms a batch, 110 kills of living workers an epoch at seeded random times, with fork
and with forkserver, with workers that are kept from epoch to epoch and with workers that are not.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import random
import signal
import statistics
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataloader import DataLoader, ExitReport, RestartPolicy
from tests.processes import belongings, living_descendants, wait_until

BATCH_SIZE = 2
SLEEP_S = 0.002 / BATCH_SIZE
LONGEST_DELAY_S = 0.003
NUMBERS = 4200  # in a sample: with these a batch is just too large to travel inline
# Deaths are not counted against anybody here, and a replacement waits for nothing.
POLICY = RestartPolicy(max_restarts=100_000, period=60.0, backoff=0.0)


@dataclass(frozen=True)
class Weather:
    """What is loaded, and how often a worker is killed meanwhile.

    Parameters:
        start_method: see DataLoader.
        persistent: keep the workers from epoch to epoch.
        epochs, batches: how much is loaded.
        kills: how many workers are killed in each epoch.
    """

    start_method: str
    persistent: bool
    epochs: int = 3
    batches: int = 2000
    kills: int = 0


class SleepyNoise:
    """Samples that sleep a millisecond and draw a little: what is measured is what the kills cost."""

    def __init__(self, batches: int) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return self.batches * BATCH_SIZE

    def __getitem__(self, index: int) -> tuple[int, float, NDArray[np.float64]]:
        time.sleep(SLEEP_S)
        return index, random.random(), np.full(NUMBERS, np.random.rand())


@dataclass
class Outcome:
    """What the epochs came to.

    Attributes:
        digest: of all batches.
        duration_s: of all epochs.
        killed: pids of those who were killed, by epoch.
        reports: the loader's.
        left: (descriptors, mappings, threads) afterwards, less those before.
        survivors: pids of processes that were still there two seconds after the end.
    """

    digest: str = ""
    duration_s: float = 0.0
    killed: list[list[int]] = field(default_factory=list)
    reports: list[ExitReport] = field(default_factory=list)
    left: tuple[int, ...] = ()
    survivors: list[int] = field(default_factory=list)

    @property
    def kills(self) -> int:
        return sum(map(len, self.killed))

    @property
    def replaced_s(self) -> list[float]:
        """How long each replacement took, the shortest first."""
        return sorted(report.replaced_s for report in self.reports if report.replaced_s is not None)


class Killer:
    """Kills living workers at seeded random moments of an epoch, each worker once, about ``kills`` in all.

    A moment is a random number of milliseconds after a random batch, not one of the last: all are within the
    epoch however fast it goes. Where no worker is alive then, it waits for one. Used as
    ``with Killer(...) as killer``, and told of each batch.
    """

    def __init__(self, loader: DataLoader, kills: int, batches: int, seed: int) -> None:
        self.killed: list[int] = []
        self._loader = loader
        self._random = random.Random(seed)
        self._after = deque(sorted(self._random.randrange(batches * 9 // 10) for _ in range(kills)))
        self._due = threading.Semaphore(0)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Killer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._due.release()
        self._thread.join()

    def note(self, batch: int) -> None:
        """Take note that batch number ``batch`` has come."""
        while self._after and self._after[0] <= batch:
            self._after.popleft()
            self._due.release()

    def _run(self) -> None:
        while self._due.acquire() and not self._over.is_set():
            self._over.wait(self._random.uniform(0.0, LONGEST_DELAY_S))
            while not self._kill_one() and not self._over.is_set():
                self._over.wait(0.0005)

    def _kill_one(self) -> bool:
        workers = [worker.pid for worker in self._loader.workers() if worker.pid not in self.killed]
        if not workers or not kill_if_alive(pid := self._random.choice(workers)):
            return False
        self.killed.append(pid)
        return True


def kill_if_alive(pid: int) -> bool:
    """Send SIGKILL to process ``pid``; return whether that killed somebody who was alive."""
    with contextlib.suppress(ProcessLookupError):
        state = _state(pid)
        os.kill(pid, signal.SIGKILL)
        return state not in "ZX"
    return False


def _state(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def run(weather: Weather) -> Outcome:
    """Load with 4 workers in such weather."""
    outcome = Outcome()
    before = belongings()
    _load(weather, outcome)
    wait_until(lambda: not living_descendants(), timeout_s=2.0)
    outcome.survivors = living_descendants()
    outcome.left = tuple(now - then for now, then in zip(belongings(), before, strict=True))
    return outcome


def _load(weather: Weather, outcome: Outcome) -> None:
    loader = DataLoader(
        SleepyNoise(weather.batches),
        batch_size=BATCH_SIZE,
        shuffle=True,
        num_workers=4,
        persistent_workers=weather.persistent,
        multiprocessing_context=weather.start_method,
        seed=1,
        restart=POLICY,
    )
    digest = hashlib.sha256()  # of those at hand the quickest
    with loader:
        start_s = time.perf_counter()
        for epoch in range(weather.epochs):
            with Killer(loader, weather.kills, weather.batches, seed=epoch) as killer:
                _digest_epoch(loader, digest, killer)
            outcome.killed.append(killer.killed)
        outcome.duration_s = time.perf_counter() - start_s
    outcome.digest = digest.hexdigest()
    outcome.reports = loader.reports


def _digest_epoch(loader: DataLoader, digest: Any, killer: Killer) -> None:
    for number, batch in enumerate(loader):
        killer.note(number)
        for part in batch:
            digest.update(np.asarray(part).data)


def calm_and_storm(start_method: str, *, persistent: bool, **sizes: int) -> tuple[Outcome, Outcome]:
    """Run the same epochs undisturbed, and then with ``kills``."""
    rough = Weather(start_method, persistent, **sizes)
    return run(replace(rough, kills=0)), run(rough)


def quantile(ordered: list[float], share: float) -> float:
    """Return the smallest value that ``share`` of all do not exceed."""
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]


# ---- figures -------------------------------------------------------------------------------------


def figures(start_method: str, persistent: bool) -> Iterator[str]:
    """Run the full storm; give its figures, a line each."""
    calm, storm = calm_and_storm(start_method, persistent=persistent, kills=110)
    kind = "persistent workers" if persistent else "new workers each epoch"
    per_epoch = ", ".join(str(len(killed)) for killed in storm.killed)
    yield f"{start_method}, {kind}: {storm.kills} kills ({per_epoch} by epoch)"
    yield f"  digest {'equal' if storm.digest == calm.digest else 'DIFFERENT'}"
    ratio = storm.duration_s / calm.duration_s
    yield f"  {storm.duration_s:.2f} s; undisturbed {calm.duration_s:.2f} s; ratio {ratio:.2f}"
    times = [statistics.median(storm.replaced_s), quantile(storm.replaced_s, 0.99), storm.replaced_s[-1]]
    median_ms, p99_ms, max_ms = (f"{seconds * 1e3:.1f}" for seconds in times)
    yield f"  {len(storm.replaced_s)} replaced, in ms: median {median_ms}, p99 {p99_ms}, max {max_ms}"
    yield f"  left over: processes {len(storm.survivors)}, (descriptors, mappings, threads) {storm.left}"


def main() -> None:
    """Print the figures."""
    logging.getLogger("supervisor").setLevel(logging.ERROR)
    for start_method, persistent in product(("fork", "forkserver"), (True, False)):
        for line in figures(start_method, persistent):
            print(line, flush=True)


if __name__ == "__main__":
    main()
