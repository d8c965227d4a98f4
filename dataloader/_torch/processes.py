"""Workers as ``multiprocessing`` shows processes, for code that reads ``iterator._workers``."""

from __future__ import annotations

import contextlib
import time
import weakref

import psutil

from dataloader.batch_pool import BatchPool
from supervisor.pool_worker import PoolWorker
from supervisor.report import ExitReport
from supervisor.waiting import NotRunning

POLL_S = 0.01
HEAR_S = 2.0  # how long after a worker's end its report may take


class WorkerProcess:
    """One worker. It keeps no worker alive.

    Parameters:
        worker: the worker.
        pool: that it belongs to.

    Attributes:
        pid: its process id; ``ident`` too.
        name: for people.
    """

    daemon = True

    def __init__(self, worker: PoolWorker, pool: BatchPool) -> None:
        self.pid = self.ident = worker.pid
        self.name = f"DataLoader worker {worker.worker}"
        self._pool = weakref.ref(pool)
        self._reports = pool.reports
        self._process: psutil.Process | None = None
        with contextlib.suppress(psutil.NoSuchProcess):
            self._process = psutil.Process(worker.pid)

    def __repr__(self) -> str:
        return f"<{self.name}, pid {self.pid}, {'alive' if self.is_alive() else 'ended'}>"

    def is_alive(self) -> bool:
        if self._process is None or self._report is not None:
            return False
        try:
            return self._process.is_running() and self._process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end, ``timeout`` seconds at most."""
        end_s = float("inf") if timeout is None else time.monotonic() + timeout
        while self.is_alive() and time.monotonic() < end_s:
            time.sleep(POLL_S)

    def terminate(self) -> None:
        """Send SIGTERM."""
        if self._process is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                self._process.terminate()

    def kill(self) -> None:
        """Send SIGKILL."""
        if self._process is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                self._process.kill()

    @property
    def exitcode(self) -> int | None:
        """What it exited with, or minus the number of the signal that ended it.

        None while it lives, and where nobody heard how it ended, for its loader was gone by then.
        """
        if self.is_alive():
            return None
        end_s = time.monotonic() + HEAR_S
        while self._report is None and time.monotonic() < end_s and self._hear():
            pass
        report = self._report
        if report is None:
            return None
        return report.exit_code if report.signal is None else -report.signal

    @property
    def _report(self) -> ExitReport | None:
        return next((report for report in self._reports if report.pid == self.pid), None)

    def _hear(self) -> bool:
        """Let the pool take in what there is to hear; return whether there may be more."""
        pool = self._pool()
        if pool is None:
            return False
        try:
            with pool.turn:
                pool.wait(POLL_S)
        except NotRunning:
            return False
        return True
