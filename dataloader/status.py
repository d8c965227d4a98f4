"""What a loader's workers are doing now."""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.memory import rss_bytes
from supervisor.page import State
from supervisor.pool_worker import PoolWorker


@dataclass(frozen=True)
class WorkerStatus:
    """One living worker.

    Parameters:
        id: 0 to num_workers - 1; a replacement keeps it.
        pid: its process id.
        state: what it is doing: STARTING, IDLE, SAMPLE, COLLATE, SENDING or CLOSED.
        rss_bytes: its resident memory, shared pages counted.
        batches: how many tasks it has completed.
        restarts: how many workers of this id came before.
    """

    id: int
    pid: int
    state: State
    rss_bytes: int
    batches: int
    restarts: int

    @classmethod
    def of(cls, worker: PoolWorker) -> WorkerStatus:
        """Read the status of a worker now."""
        page = worker.page
        return cls(worker.worker, worker.pid, page.state, rss_bytes(worker.pid), page.done, worker.restarts)
