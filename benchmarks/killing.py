"""Kills workers of a loader while it works."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from benchmarks.processes import worker_pids


@contextmanager
def killing(loader: Any, every_s: float | None) -> Iterator[None]:
    """While the block runs one of the workers gets SIGKILL every so many seconds; none, for ``None``."""
    if every_s is None:
        yield
        return
    over = threading.Event()
    killer = threading.Thread(target=_kill, args=(loader, every_s, over))
    killer.start()
    try:
        yield
    finally:
        over.set()
        killer.join()


def _kill(loader: Any, every_s: float, over: threading.Event) -> None:
    rng = random.Random(0)
    while not over.wait(every_s):
        if pids := worker_pids(loader):
            with suppress(ProcessLookupError):  # It has ended since it was listed.
                os.kill(rng.choice(pids), signal.SIGKILL)
