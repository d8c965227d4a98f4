"""A storm of deaths over a loader, and what became of it.

``python -m tests.chaos.storm`` prints the figures of the full storm: 4 workers, 3 epochs of 2,000 batches
whose samples sleep about 2 ms a batch, 110 kills of living workers an epoch at seeded random times, with fork
and with forkserver, with workers that are kept from epoch to epoch and with workers that are not. Then those
of mixed storms: SIGKILL, SIGSEGV and SIGTERM from outside and os._exit from inside, with 1 to 8 workers, in
order and not. Then those over iterable datasets, with a state and without, and over batches in pieces.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import random
import signal
import statistics
import tempfile
import threading
import time
import warnings
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dataloader import DataLoader, ExitReport, IterableDataset, RestartPolicy, get_worker_info
from dataloader.pieces import SAMPLES_PER_PIECE
from tests.in_pieces import always_in_pieces
from tests.processes import belongings, living_descendants, wait_until

SIGKILL, SIGSEGV, SIGTERM = signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM
MIXED = (SIGKILL, SIGSEGV, SIGTERM)
EXIT_CODE = 7
BATCH_S = 0.002  # that its samples sleep
STREAM_BATCH_S = BATCH_S / 4  # what was drawn is drawn again after each death
LONGEST_DELAY_S = 0.003
# Deaths are not counted against anybody here, and a replacement waits for nothing.
# A storm strikes whoever is at work, at times thrice at one sample; SIGSEGV from outside reads as its crash.
POLICY = RestartPolicy(max_restarts=100_000, period=60.0, backoff=0.0, max_attempts=20)


@dataclass(frozen=True)
class Weather:
    """What is loaded and by whom, and how often a worker ends meanwhile.

    Parameters:
        start_method: see DataLoader.
        persistent: keep the workers from epoch to epoch.
        epochs, batches: how much is loaded.
        kills: how many workers are killed in each epoch.
        signals: by one of which, each.
        exits: how many samples of each epoch end the first who loads them, by ``os._exit``.
        num_workers, in_order: see DataLoader.
        kind: of dataset.
        in_pieces: make each batch in two pieces, which write their rows into one slot.
    """

    start_method: str
    persistent: bool
    epochs: int = 3
    batches: int = 2000
    kills: int = 0
    signals: tuple[signal.Signals, ...] = (SIGKILL,)
    exits: int = 0
    num_workers: int = 4
    in_order: bool = True
    kind: Literal["map-style", "iterable", "iterable with a state"] = "map-style"
    in_pieces: bool = False

    @property
    def batch_size(self) -> int:
        return 2 * SAMPLES_PER_PIECE if self.in_pieces else 2

    @property
    def numbers(self) -> int:
        """How many there are in a sample: a batch, or a row, is just too large to travel inline."""
        return 8400 if self.in_pieces else 4200

    @property
    def calm(self) -> Weather:
        """The same without a death."""
        return replace(self, kills=0, exits=0)


class SleepyNoise:
    """Samples that sleep a moment and draw a little: what is measured is what the deaths cost."""

    def __init__(self, weather: Weather, mines: Mines) -> None:
        self.weather = weather
        self.mines = mines

    def __len__(self) -> int:
        return self.weather.batches * self.weather.batch_size

    def __getitem__(self, index: int) -> tuple[int, float, NDArray[np.float64]]:
        if self.mines.take(index):
            os._exit(EXIT_CODE)
        time.sleep(BATCH_S / self.weather.batch_size)
        return index, random.random(), np.full(self.weather.numbers, np.random.rand())


class NoisyStream(IterableDataset[Any]):
    """The same samples as a stream, which draws a little between them too."""

    def __init__(self, weather: Weather) -> None:
        self.weather = weather

    def __iter__(self) -> Iterator[Any]:
        return self.samples_from(0)

    def samples_from(self, position: int) -> Iterator[Any]:
        info = get_worker_info()
        assert info is not None
        length = self.weather.batches * self.weather.batch_size
        for index in range(info.id, length, info.num_workers)[position:]:
            time.sleep(STREAM_BATCH_S / self.weather.batch_size)
            yield index, random.random(), np.full(self.weather.numbers, np.random.rand())


class StatefulNoisyStream(NoisyStream):
    """The same, and knows where it is."""

    position = 0

    def __iter__(self) -> Iterator[Any]:
        for sample in self.samples_from(self.position):
            self.position += 1
            yield sample
        self.position = 0

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


class Mines:
    """Seeded samples, ``count`` others in each epoch, each of which ends the first who loads it.

    A mine that is laid is a file in ``folder``: who takes it away is the first.
    """

    def __init__(self, folder: str, length: int, epochs: int, count: int) -> None:
        self._folder = Path(folder)
        self._count = count
        self._samples = random.Random(1).sample(range(length), epochs * count)

    def lay(self, epoch: int) -> None:
        for sample in self._samples[epoch * self._count : (epoch + 1) * self._count]:
            (self._folder / str(sample)).touch()

    def take(self, sample: int) -> bool:
        with contextlib.suppress(FileNotFoundError):
            if sample in self._samples:
                (self._folder / str(sample)).unlink()
                return True
        return False


@dataclass
class Outcome:
    """What the epochs came to.

    Attributes:
        digest: of all batches, where they need not come in order of each epoch's sorted.
        duration_s: of all epochs.
        killed: pids of those who were killed and the signal that did it, by epoch.
        reports: the loader's.
        left: (descriptors, mappings, threads) afterwards, less those before.
        survivors: pids of processes that were still there two seconds after the end.
    """

    digest: str = ""
    duration_s: float = 0.0
    killed: list[dict[int, int]] = field(default_factory=list)
    reports: list[ExitReport] = field(default_factory=list)
    left: tuple[int, ...] = ()
    survivors: list[int] = field(default_factory=list)

    @property
    def kills(self) -> int:
        return sum(map(len, self.killed))

    @property
    def exits(self) -> int:
        """How many ended by ``os._exit``."""
        return sum(report.exit_code == EXIT_CODE for report in self.reports)

    @property
    def replaced_s(self) -> list[float]:
        """How long each replacement took, the shortest first."""
        return sorted(report.replaced_s for report in self.reports if report.replaced_s is not None)


class Killer:
    """Kills living workers at seeded random moments of an epoch, each worker once, about ``kills`` in all.

    ``signals``: by one of which, each.

    A moment is a random number of milliseconds after a random batch, not one of the last: all are within the
    epoch however fast it goes. Where no worker is alive then, it waits for one. Used as
    ``with Killer(...) as killer``, and told of each batch.
    """

    def __init__(
        self,
        loader: DataLoader,
        kills: int,
        batches: int,
        seed: int,
        signals: Sequence[signal.Signals] = (SIGKILL,),
    ) -> None:
        self.killed: dict[int, int] = {}  # by which signal, by pid
        self._signals = signals
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
        number = self._random.choice(self._signals)
        if not workers or not kill_if_alive(pid := self._random.choice(workers), number):
            return False
        self.killed[pid] = number
        return True


def kill_if_alive(pid: int, number: int = SIGKILL) -> bool:
    """Send a signal to process ``pid``; return whether that killed somebody who was alive."""
    with contextlib.suppress(ProcessLookupError):
        state = _state(pid)
        os.kill(pid, number)
        return state not in "ZX"
    return False


def _state(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def run(weather: Weather) -> Outcome:
    """Load in such weather."""
    outcome = Outcome()
    before = belongings()
    with tempfile.TemporaryDirectory() as folder, always_in_pieces(weather.in_pieces):
        _load(weather, folder, outcome)
    wait_until(lambda: not living_descendants(), timeout_s=2.0)
    outcome.survivors = living_descendants()
    outcome.left = tuple(now - then for now, then in zip(belongings(), before, strict=True))
    return outcome


def _load(weather: Weather, folder: str, outcome: Outcome) -> None:
    mines = Mines(folder, weather.batches * weather.batch_size, weather.epochs, weather.exits)
    datasets = {
        "map-style": SleepyNoise(weather, mines),
        "iterable": NoisyStream(weather),
        "iterable with a state": StatefulNoisyStream(weather),
    }
    loader = DataLoader(
        datasets[weather.kind],
        batch_size=weather.batch_size,
        shuffle=weather.kind == "map-style",
        num_workers=weather.num_workers,
        in_order=weather.in_order,
        persistent_workers=weather.persistent,
        multiprocessing_context=weather.start_method,
        seed=1,
        restart=POLICY,
    )
    digest = hashlib.sha256()  # of those at hand the quickest
    with loader:
        start_s = time.perf_counter()
        for epoch in range(weather.epochs):
            mines.lay(epoch)
            with Killer(loader, weather.kills, weather.batches, epoch, weather.signals) as killer:
                batches = _digest_batches(loader, killer)
            digest.update(b"".join(batches if weather.in_order else sorted(batches)))
            outcome.killed.append(killer.killed)
        outcome.duration_s = time.perf_counter() - start_s
    outcome.digest = digest.hexdigest()
    outcome.reports = loader.reports


def _digest_batches(loader: DataLoader, killer: Killer) -> list[bytes]:
    """Return the digest of each batch of an epoch."""
    digests = []
    for number, batch in enumerate(loader):
        killer.note(number)
        digests.append(digest_of(batch))
    return digests


def digest_of(batch: Sequence[object]) -> bytes:
    return hashlib.sha256(b"".join(np.asarray(part).data for part in batch)).digest()


def calm_and_storm(rough: Weather) -> tuple[Outcome, Outcome]:
    """Run the same epochs undisturbed, and then in ``rough`` weather."""
    return run(rough.calm), run(rough)


def quantile(ordered: list[float], share: float) -> float:
    """Return the smallest value that ``share`` of all do not exceed."""
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]


# ---- figures -------------------------------------------------------------------------------------


FULL = tuple(
    Weather(start_method, persistent, kills=110)
    for start_method, persistent in product(("fork", "forkserver"), (True, False))
)
# Each number of workers with both start methods. The half with an odd number under "fork" and an even one
# under "forkserver" has each combination of start method, persistent or not, and in order or not.
MIXED_STORMS = tuple(
    Weather(
        start_method,
        persistent=bool(num_workers & 4) == (start_method == "fork"),
        batches=400,
        kills=24,
        signals=MIXED,
        exits=6,
        num_workers=num_workers,
        in_order=not num_workers & 2,
    )
    for num_workers, start_method in product(range(1, 9), ("fork", "forkserver"))
)


STREAM_STORMS = tuple(
    Weather(start_method, persistent, epochs=1, batches=1000, kills=110, kind=kind)
    for kind in ("iterable", "iterable with a state")
    for start_method, persistent in (("fork", True), ("forkserver", False))
)


PIECE_STORMS = tuple(replace(weather, batches=1000, kills=55, in_pieces=True) for weather in FULL)


def figures(rough: Weather) -> Iterator[str]:
    """Run a storm; give its figures, a line each."""
    calm, storm = calm_and_storm(rough)
    kind = "persistent workers" if rough.persistent else "new workers each epoch"
    order = "in order" if rough.in_order else "in any order"
    signals = Counter(signal.Signals(number).name for killed in storm.killed for number in killed.values())
    causes = ", ".join(f"{count} {name}" for name, count in sorted(signals.items()))
    kind_of_batches = "batches in pieces" if rough.in_pieces else rough.kind
    what = f"{kind_of_batches}, {rough.start_method}, {rough.num_workers} {kind}, {order}"
    yield f"{what}: {causes}, {storm.exits} os._exit"
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
    warnings.filterwarnings("ignore", "num_workers=")  # they are many on purpose
    logging.getLogger("dataloader").setLevel(logging.ERROR)
    for weather in (*FULL, *MIXED_STORMS, *STREAM_STORMS, *PIECE_STORMS):
        for line in figures(weather):
            print(line, flush=True)


if __name__ == "__main__":
    main()
