"""A storm of deaths over an epoch that is left and taken up again: each time by another loader, from a state.

``python -m tests.chaos.resumption`` prints the figures of the full storm: 2 epochs of 1,000 batches, each in
5 parts, loaded by 4, 1, 3 and 2 workers in turn, 110 kills an epoch, with each start method, in order and
out of it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import cycle, islice, pairwise
from typing import Any

from dataloader import DataLoader
from tests.chaos.storm import POLICY, Killer, Mines, Outcome, SleepyNoise, Weather, digest_of
from tests.processes import belongings, living_descendants, wait_until

WORKERS = (4, 1, 3, 2)


@dataclass(frozen=True)
class Voyage:
    """What is loaded in which weather, and how often another loader takes it up.

    Parameters:
        weather: for ``num_workers`` see ``WORKERS``; nobody exits by itself.
        parts: how many loaders share an epoch.
    """

    weather: Weather
    parts: int = 5

    def lengths(self) -> list[int]:
        """Return how many batches each part has; unequal."""
        batches, parts = self.weather.batches, self.parts
        stops = [batches * part * (part + 1) // (parts * (parts + 1)) for part in range(parts + 1)]
        return [stop - start for start, stop in pairwise(stops)]


def run(voyage: Voyage) -> Outcome:
    """Load it all."""
    outcome = Outcome()
    before = belongings()
    with tempfile.TemporaryDirectory() as folder:
        _load(voyage, SleepyNoise(voyage.weather, Mines(folder, 0, 0, 0)), outcome)
    wait_until(lambda: not living_descendants(), timeout_s=2.0)
    outcome.survivors = living_descendants()
    outcome.left = tuple(now - then for now, then in zip(belongings(), before, strict=True))
    return outcome


def _load(voyage: Voyage, dataset: SleepyNoise, outcome: Outcome) -> None:
    digest, start_s = hashlib.sha256(), time.perf_counter()
    state: dict[str, Any] = {}
    workers = cycle(WORKERS)
    for epoch in range(voyage.weather.epochs):
        batches: list[bytes] = []
        outcome.killed.append({})
        for part, length in enumerate(voyage.lengths()):
            is_last = part == voyage.parts - 1
            with ExitStack() as stack:
                loader = stack.enter_context(_loader(voyage.weather, dataset, next(workers)))
                loader.load_state_dict(state)
                seed = epoch * voyage.parts + part
                killer = stack.enter_context(_killer(voyage, loader, length, seed))
                batches += _digests(loader, killer, None if is_last else length)
                state = json.loads(json.dumps(loader.state_dict()))
            outcome.killed[-1].update(killer.killed)
            outcome.reports += loader.reports
        digest.update(b"".join(batches if voyage.weather.in_order else sorted(batches)))
    outcome.digest, outcome.duration_s = digest.hexdigest(), time.perf_counter() - start_s


def _loader(weather: Weather, dataset: SleepyNoise, num_workers: int) -> DataLoader:
    return DataLoader(
        dataset,
        batch_size=weather.batch_size,
        shuffle=True,
        num_workers=num_workers,
        in_order=weather.in_order,
        persistent_workers=weather.persistent,
        multiprocessing_context=weather.start_method,
        seed=1,
        restart=POLICY,
    )


def _killer(voyage: Voyage, loader: DataLoader, length: int, seed: int) -> Killer:
    kills = round(voyage.weather.kills * length / voyage.weather.batches)
    return Killer(loader, kills, length, seed, voyage.weather.signals)


def _digests(loader: DataLoader, killer: Killer, count: int | None) -> Iterator[bytes]:
    for number, batch in enumerate(islice(loader, count)):
        killer.note(number)
        yield digest_of(batch)


def undisturbed(voyage: Voyage) -> Outcome:
    """Load the same by one loader, which nobody leaves, without a death."""
    return run(Voyage(voyage.weather.calm, parts=1))


# ---- figures -------------------------------------------------------------------------------------

FULL = tuple(
    Voyage(Weather(start_method, persistent=in_order, epochs=2, batches=1000, kills=110, in_order=in_order))
    for start_method in ("fork", "forkserver")
    for in_order in (True, False)
)


def figures(voyage: Voyage) -> Sequence[str]:
    """Run a storm; return its figures, a line each."""
    calm, storm = undisturbed(voyage), run(voyage)
    weather = voyage.weather
    order = "in order" if weather.in_order else "in any order"
    return [
        f"{weather.start_method}, {order}: {storm.kills} kills, {voyage.parts * weather.epochs} loaders",
        f"  digest {'equal' if storm.digest == calm.digest else 'DIFFERENT'}",
        f"  {storm.duration_s:.2f} s; undisturbed {calm.duration_s:.2f} s",
        f"  left over: processes {len(storm.survivors)}, (descriptors, mappings, threads) {storm.left}",
    ]


def main() -> None:
    """Print the figures."""
    logging.getLogger("supervisor").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", "num_workers=")  # they are many on purpose
    for voyage in FULL:
        for line in figures(voyage):
            print(line, flush=True)


if __name__ == "__main__":
    main()
