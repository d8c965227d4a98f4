"""Where figures were taken: without this they cannot be compared with others."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

_PACKAGES = (
    "supervised-dataloader",
    "multiprocess",
    "cloudpickle",
    "numpy",
    "pillow",
    "scipy",
    "torch",
    "torchdata",
    "grain",
    "spdl",
    "ray",
    "mpire",
    "loky",
)


def describe() -> dict[str, Any]:
    """The machine, how busy it was, and the versions of all that took part."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": _cpu(),
        "memory_bytes": psutil.virtual_memory().total,
        "load_average": os.getloadavg()[0],
        "kernel": platform.release(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in _PACKAGES},
    }


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
