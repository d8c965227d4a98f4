"""What this process' control groups allow it, in version 1 and 2 of cgroups. Reads only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")


def cpu_quota(root: Path = ROOT, own: Path = OWN) -> float | None:
    """Return how many cores' time this process may use, None where nothing limits it."""
    quotas = [_quota_v2(folder / "cpu.max") for folder in _folders(root, own, "")]
    quotas += [_quota_v1(folder) for folder in _folders(root, own, "cpu")]
    return min((quota for quota in quotas if quota is not None), default=None)


def _folders(root: Path, own: Path, controller: str) -> Iterator[Path]:
    """Give the folders of our group under ``controller`` ("": version 2) and of the groups around it.

    In a container the path may be the host's: the container's own root is then what is there.
    """
    place = root / controller if controller else root
    path = Path(_group_paths(own).get(controller, "/").lstrip("/"))
    for part in (path, *path.parents):
        if (place / part).is_dir():
            yield place / part


def _group_paths(own: Path) -> dict[str, str]:
    """Return our group's path by controller.

    Each line reads ``7:cpu,cpuacct:/path``; version 2's is ``0::/path``.
    """
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return {}
    groups = [line.split(":", 2) for line in lines]
    return {name: path for _, names, path in groups for name in names.split(",")}


def _quota_v2(file: Path) -> float | None:
    """Read "max 100000" or "150000 100000": quota and period in microseconds."""
    words = _words(file)
    return int(words[0]) / int(words[1]) if len(words) == 2 and words[0] != "max" else None


def _quota_v1(folder: Path) -> float | None:
    quota, period = _words(folder / "cpu.cfs_quota_us"), _words(folder / "cpu.cfs_period_us")
    return int(quota[0]) / int(period[0]) if quota and period and int(quota[0]) > 0 else None


def _words(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except OSError:
        return []
