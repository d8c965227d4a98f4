"""Thousands of replacements in one loader, and what they leave: nothing but their reports.

``python -m tests.chaos.replacements`` prints the figures of 2,000.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psutil

from dataloader import DataLoader
from dataloader.status import WorkerStatus
from supervisor.memory import rss_bytes
from supervisor.page import State
from tests.chaos.storm import POLICY, kill_if_alive
from tests.datasets import LargeArrays
from tests.processes import belongings, living_descendants, open_descriptors, shared_mappings

SETTLING = 200  # replacements until caches are warm and the allocator has what it wants
MEASURED = 2000


@dataclass(frozen=True)
class Holdings:
    """What consumer and supervisor hold at one moment.

    Attributes:
        descriptors, mappings, threads: of the consumer.
        processes: how many live.
        supervisor_descriptors, supervisor_mappings: of the supervisor.
        consumer_bytes, supervisor_bytes: their resident memory.
    """

    descriptors: int
    mappings: int
    threads: int
    processes: int
    supervisor_descriptors: int
    supervisor_mappings: int
    consumer_bytes: int
    supervisor_bytes: int

    @classmethod
    def now(cls, supervisor_pid: int) -> Holdings:
        return cls(
            *belongings(),
            len(living_descendants()),
            len(open_descriptors(supervisor_pid)),
            shared_mappings(supervisor_pid),
            rss_bytes(psutil.Process().pid),
            rss_bytes(supervisor_pid),
        )

    @property
    def counts(self) -> tuple[int, ...]:
        """All but the memory."""
        return tuple(vars(self).values())[:6]

    def growth_since(self, before: Holdings) -> tuple[int, int]:
        """Return by how many bytes the consumer and the supervisor have grown."""
        return (
            self.consumer_bytes - before.consumer_bytes,
            self.supervisor_bytes - before.supervisor_bytes,
        )


def replace_many(start_method: str, settling: int, measured: int) -> tuple[Holdings, Holdings]:
    """Replace ``settling`` workers and then ``measured``; return what was held after either."""
    with DataLoader(
        LargeArrays(100_000),
        num_workers=2,
        persistent_workers=True,
        multiprocessing_context=start_method,
        restart=POLICY,
    ) as loader:
        batches = _endless(loader)
        next(batches)
        supervisor_pid = psutil.Process(loader.workers()[0].pid).ppid()
        _replace(loader, batches, settling)
        before = Holdings.now(supervisor_pid)
        _replace(loader, batches, settling + measured)
        return before, Holdings.now(supervisor_pid)


def _endless(loader: DataLoader) -> Iterator[Any]:
    for _ in itertools.count():
        yield from loader


def _replace(loader: DataLoader, batches: Iterator[Any], total: int) -> None:
    """Kill whoever is ready, after each batch, until so many are replaced and all are there and ready."""
    while len(loader.reports) < total:
        for worker in _ready(loader):
            kill_if_alive(worker.pid)
        next(batches)
    while len(_ready(loader)) < loader.num_workers:
        next(batches)


def _ready(loader: DataLoader) -> list[WorkerStatus]:
    return [worker for worker in loader.workers() if worker.state is not State.STARTING]


# ---- figures -------------------------------------------------------------------------------------


def figures(start_method: str) -> Iterator[str]:
    """Replace 2,000 workers; give the figures, a line each."""
    start_s = time.monotonic()
    before, after = replace_many(start_method, SETTLING, MEASURED)
    consumer, supervisor = (grown / 1e6 for grown in after.growth_since(before))
    yield f"{start_method}: {MEASURED} replacements in {time.monotonic() - start_s:.0f} s"
    yield f"  descriptors, mappings, threads, processes: {before.counts} before, {after.counts} after"
    yield f"  resident memory grown by {consumer:.2f} MB (consumer) and {supervisor:.2f} MB (supervisor)"


def main() -> None:
    """Print the figures."""
    logging.getLogger("supervisor").setLevel(logging.ERROR)
    for start_method in ("fork", "forkserver"):
        for line in figures(start_method):
            print(line, flush=True)


if __name__ == "__main__":
    main()
