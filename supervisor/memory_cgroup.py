"""The memory cgroup that a process is charged to: its limit, its use, its OOM kills; one for a worker alone.

    /proc/<pid>/cgroup     which group, as the kernel calls it      4:memory:/jobs/a   0::/jobs/a
    /proc/self/mountinfo   where that is mounted, and from which root on
    cgroup.procs           whether the folder found so is the process', which is not so in every container

Version 1 is taken where it has the memory controller, as it may on hybrid machines; else version 2, and
there the nearest group around the process' own that the controller is switched on for. Nothing here is
guessed: what cannot be read is None. Reading one file costs about 10 us. Non-goals: groups of other
controllers (see cgroup), limits of swap, setting a limit.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NamedTuple

PROC = Path("/proc")
UNLIMITED_BYTES = 1 << 60  # version 1 writes "no limit" as a number near 2 ** 63
NAME = "supervised-worker"


class Files(NamedTuple):
    """What a version of cgroups calls its files."""

    limit: str
    used: str
    kills: tuple[str, ...]  # the first that is there


V1 = Files("memory.limit_in_bytes", "memory.usage_in_bytes", ("memory.oom_control",))
V2 = Files("memory.max", "memory.current", ("memory.events.local", "memory.events"))


class Mount(NamedTuple):
    """A mounted hierarchy: where, and which of its groups is the root of what is seen there."""

    point: Path
    root: str
    files: Files


@dataclass(frozen=True)
class MemoryCgroup:
    """One group, and the folders around it whose limits bind it too.

    Parameters:
        folder: its folder.
        top: where the hierarchy is mounted.
        files: names of its files.
    """

    folder: Path
    top: Path
    files: Files

    def oom_kills(self) -> int | None:
        """Return how many of its processes the kernel has killed for want of memory; None: not known.

        Those of groups below are not counted, but in version 2 on Linux before 5.2.
        """
        for name in self.files.kills:
            text = _read(self.folder / name)
            if text is not None:
                return _field(text, "oom_kill")
        return None

    def members(self) -> list[int] | None:
        """Return the pids of its processes."""
        text = _read(self.folder / "cgroup.procs")
        return None if text is None else [int(word) for word in text.split()]

    def tightest(self) -> MemoryCgroup | None:
        """Return this group or one around it, whichever has the least limit; None where there is no limit."""
        limited = [group for group in self._outwards() if group.limit_bytes() is not None]
        return min(limited, key=lambda group: group.limit_bytes() or 0, default=None)

    def limit_bytes(self) -> int | None:
        """Return its own limit; None: it has none, or it is not known."""
        limit_bytes = _number(self.folder / self.files.limit)
        return limit_bytes if limit_bytes is not None and limit_bytes < UNLIMITED_BYTES else None

    def used_bytes(self) -> int | None:
        """Return what is charged to it and to the groups below it, caches of files included."""
        return _number(self.folder / self.files.used)

    def _outwards(self) -> Iterator[MemoryCgroup]:
        folder = self.folder
        yield self
        while folder != self.top:
            folder = folder.parent
            yield MemoryCgroup(folder, self.top, self.files)

    # ---- a group of a worker's own ---------------------------------------------------------------

    def place_for_children(self) -> Path | None:
        """Return the folder in which a group for one of our children may be made; None: nowhere.

        Version 1: in the group. Version 2 lets no group have both processes and groups with controllers
        (except the root of all), so there it is beside the group, unless the child would escape a limit so.
        """
        if self.files is V1 or "memory" in self._controllers_below(self.folder):
            return self.folder
        beside = self.folder.parent
        if self.folder == self.top or "memory" not in self._controllers_below(beside):
            return None
        return None if self._limits_something() else beside

    def _controllers_below(self, folder: Path) -> list[str]:
        return (_read(folder / "cgroup.subtree_control") or "").split()

    def _limits_something(self) -> bool:
        names = (self.files.limit, "memory.high", "memory.swap.max", "pids.max", "cpu.max")
        texts = [_read(self.folder / name) for name in names]
        return any(text is not None and not text.startswith("max") for text in texts)

    def make_child(self, number: int) -> MemoryCgroup:
        """Make a group for one worker. Raises OSError where that is not allowed."""
        place = self.place_for_children()
        if place is None:
            raise PermissionError(f"no group with a memory controller can be made in or beside {self.folder}")
        folder = place / f"{NAME}.{os.getpid()}.{number}"
        os.mkdir(folder)
        return MemoryCgroup(folder, self.top, self.files)

    def remove(self) -> bool:
        """Remove the group, if it has no process left; return whether it is gone."""
        try:
            os.rmdir(self.folder)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True

    def empty_into(self, other: MemoryCgroup) -> None:
        """Move what processes are left here."""
        for pid in self.members() or ():
            with contextlib.suppress(OSError):
                _join(other.folder, pid)

    def stale_children(self) -> list[MemoryCgroup]:
        """Return the groups of workers whose supervisor was killed before it could remove them."""
        place = self.place_for_children()
        folders = [] if place is None else place.glob(f"{NAME}.*.*")
        stale = [folder for folder in folders if not (PROC / folder.name.split(".")[1]).exists()]
        return [MemoryCgroup(folder, self.top, self.files) for folder in stale]


def join(folder: str) -> None:
    """Move this process into the group at ``folder``; remove the group where that is refused.

    A group that is there is then one that its worker is in. It takes about 10 ms, so each worker does it.
    """
    try:
        _join(Path(folder), 0)
    except OSError:
        with contextlib.suppress(OSError):
            os.rmdir(folder)


def _join(folder: Path, pid: int) -> None:
    fd = os.open(folder / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, str(pid).encode())
    finally:
        os.close(fd)


def find(pid: int, proc: Path = PROC) -> MemoryCgroup | None:
    """Return the memory cgroup of process ``pid``, None where it cannot be told."""
    paths = _group_paths(_read(proc / str(pid) / "cgroup") or "")
    files, controller = (V1, "memory") if "memory" in paths else (V2, "")
    for mount in _mounts(_read(proc / "self" / "mountinfo") or ""):
        if mount.files is files and controller in paths:
            leaf = _below(mount, paths[controller])
            group = None if leaf is None else _charged(MemoryCgroup(leaf, mount.point, files), pid)
            if group is not None:
                return group
    return None


def _charged(leaf: MemoryCgroup, pid: int) -> MemoryCgroup | None:
    """Return the group that is charged for a member of ``leaf``, if ``pid`` is one."""
    if pid not in (leaf.members() or ()):
        return None
    return next((group for group in leaf._outwards() if group.used_bytes() is not None), None)


def _below(mount: Mount, path: str) -> Path | None:
    if not PurePosixPath(path).is_relative_to(mount.root):
        return None
    return mount.point / PurePosixPath(path).relative_to(mount.root)


def _group_paths(text: str) -> dict[str, str]:
    """Return a process' group by controller; version 2's is ""."""
    groups = [line.split(":", 2) for line in text.splitlines()]
    return {name: path for _, names, path in groups for name in names.split(",")}


def _mounts(text: str) -> Iterator[Mount]:
    """Give the mounted hierarchies that may have the memory controller.

    A line reads ``35 31 0:32 ROOT POINT rw,relatime - cgroup cgroup rw,memory``.
    """
    for line in text.splitlines():
        words, _, rest = line.partition(" - ")
        _, _, _, root, point, *_ = words.split()
        kind, *_, options = rest.split()
        if kind == "cgroup2" or (kind == "cgroup" and "memory" in options.split(",")):
            yield Mount(Path(_unescaped(point)), _unescaped(root), V2 if kind == "cgroup2" else V1)


def _unescaped(path: str) -> str:
    return path.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")


def _field(text: str, name: str) -> int | None:
    """Return the number behind ``name`` in lines like ``oom_kill 3``."""
    words = text.split()
    return int(words[words.index(name) + 1]) if name in words else None


def _number(file: Path) -> int | None:
    text = _read(file)
    return int(text) if text is not None and text.strip().isdecimal() else None


def _read(file: Path) -> str | None:
    try:
        fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(fd, 1 << 16).decode()
    except OSError:
        return None
    finally:
        os.close(fd)
