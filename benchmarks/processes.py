"""Which processes a loader has started, and which of them are its workers."""

from __future__ import annotations

import re
from typing import Any

import psutil

#: Leaves that are no workers either: they look after shared memory, or are daemons of Ray.
_HELPERS = re.compile(
    r"resource_tracker|torch_shm_manager|/ray/(core|dashboard|autoscaler|_private)/|ray::\w*Agent"
)


def worker_pids(loader: Any) -> list[int]:
    """The workers that live now: those that the loader names, else the leaves of this process's tree."""
    if hasattr(loader, "workers"):
        return [worker.pid for worker in loader.workers()]
    return [process.pid for process in psutil.Process().children(recursive=True) if _is_worker(process)]


def _is_worker(process: psutil.Process) -> bool:
    try:
        return not process.children() and not _HELPERS.search(" ".join(process.cmdline()))
    except psutil.NoSuchProcess:
        return False
