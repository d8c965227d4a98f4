"""A storm of SIGKILLs over a loader, and what became of it.

``python -m tests.chaos.storm`` prints the figures of the full storm for fork and forkserver: 4 workers, 3
epochs of 2,000 batches whose samples sleep about 2 ms a batch, 110 kills an epoch at seeded random times.
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
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dataloader import DataLoader, RestartPolicy

BATCH_SIZE = 4
SLEEP_S = 0.002 / BATCH_SIZE
POLICY = RestartPolicy(max_restarts=100_000, period=60.0, backoff=0.0)


class SleepyNoise:
    """Samples that take half a millisecond, with random augmentation."""

    def __init__(self, batches: int) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return self.batches * BATCH_SIZE

    def __getitem__(self, index: int) -> tuple[int, float, NDArray[np.float64]]:
        time.sleep(SLEEP_S)
        return index, random.random(), np.random.rand(3000)


@dataclass
class Outcome:
    """What an epoch or several came to."""

    digest: str
    duration_s: float
    kills: int = 0
    replaced_s: list[float] = field(default_factory=list)

    @property
    def p99_s(self) -> float:
        return statistics.quantiles(self.replaced_s, n=100)[98]


class Killer:
    """Kills random living workers at seeded random times, ``per_s`` a second, ``limit`` in all."""

    def __init__(self, loader: DataLoader, per_s: float, limit: int, seed: int) -> None:
        self.kills = 0
        self._limit = limit
        self._loader = loader
        self._per_s = per_s
        self._random = random.Random(seed)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Killer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while self.kills < self._limit and not self._over.wait(self._random.expovariate(self._per_s)):
            workers = self._loader.workers()
            if workers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._random.choice(workers).pid, signal.SIGKILL)
                    self.kills += 1


def run(
    start_method: str,
    *,
    batches: int,
    epochs: int,
    kills: int = 0,
    within_s: float = 1.0,
    persistent: bool = True,
) -> Outcome:
    """Load with 4 workers; have ``kills`` of them killed, spread over about ``within_s``."""
    loader = DataLoader(
        SleepyNoise(batches),
        batch_size=BATCH_SIZE,
        shuffle=True,
        num_workers=4,
        persistent_workers=persistent,
        multiprocessing_context=start_method,
        seed=1,
        restart=POLICY,
    )
    with loader:
        start_s = time.perf_counter()
        with Killer(loader, per_s=max(kills, 1) / within_s, limit=kills, seed=2) as killer:
            digest = _digest(loader, epochs)
        duration_s = time.perf_counter() - start_s
    replaced = [report.replaced_s for report in loader.reports if report.is_death]
    return Outcome(digest, duration_s, killer.kills, [seconds for seconds in replaced if seconds is not None])


def _digest(loader: DataLoader, epochs: int) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for _ in range(epochs):
        for batch in loader:
            for field_ in batch:
                digest.update(np.asarray(field_).tobytes())
    return digest.hexdigest()


def main() -> None:
    """Print the figures."""
    logging.getLogger("supervisor").setLevel(logging.ERROR)
    for start_method in ("fork", "forkserver"):
        calm = run(start_method, batches=2000, epochs=3)
        storm = run(start_method, batches=2000, epochs=3, kills=330, within_s=calm.duration_s)
        same = "equal" if storm.digest == calm.digest else "DIFFERENT"
        median_ms, p99_ms = statistics.median(storm.replaced_s) * 1e3, storm.p99_s * 1e3
        print(f"{start_method}: {storm.kills} kills in 3 epochs of 2,000 batches, digest {same}")
        print(f"  {storm.duration_s:.2f} s; {calm.duration_s:.2f} s undisturbed", end="; ")
        print(f"ratio {storm.duration_s / calm.duration_s:.2f}")
        print(f"  replaced in {median_ms:.1f} ms (median), {p99_ms:.1f} ms (p99)")


if __name__ == "__main__":
    main()
