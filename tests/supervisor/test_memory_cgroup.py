"""Memory cgroups of version 1 and 2 and of both, read from folders that look like theirs."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from supervisor.memory_cgroup import V1, V2, MemoryCgroup, find, join
from supervisor.own_cgroups import OwnCgroups
from tests.cgroups import limited_cgroup
from tests.processes import is_gone

PID = 4711
NO_LIMIT_V1 = "9223372036854771712"


@dataclass
class Machine:
    """A made-up /proc and the hierarchies that it tells of."""

    root: Path

    @property
    def proc(self) -> Path:
        return self.root / "proc"

    def says(self, groups: str, *mounts: str) -> None:
        """Let process PID be in ``groups``; ``mounts`` are "KIND ROOT OPTIONS", mounted at KIND-OPTIONS."""
        write(self.proc / str(PID) / "cgroup", groups)
        lines = ["22 1 0:5 / /proc rw - proc proc rw"]
        for mount in mounts:
            kind, root, options = mount.split()
            point = str(self.top(kind, options)).replace(" ", "\\040")
            lines.append(f"35 31 0:32 {root} {point} rw,relatime shared:9 - {kind} {kind} rw,{options}")
        write(self.proc / "self" / "mountinfo", "\n".join(lines) + "\n")

    def top(self, kind: str, options: str = "memory") -> Path:
        return self.root / f"mounted {kind}-{options}"

    def group(
        self, kind: str, path: str, *, members: str = "", limit: str | None = None, kills: int = 0
    ) -> Path:
        folder = self.top(kind) / path
        write(folder / "cgroup.procs", members)
        if limit is None:
            return folder
        if kind == "cgroup":
            write(folder / "memory.limit_in_bytes", limit + "\n")
            write(folder / "memory.usage_in_bytes", "1000\n")
            write(folder / "memory.oom_control", f"oom_kill_disable 0\nunder_oom 0\noom_kill {kills}\n")
        else:
            write(folder / "memory.max", limit + "\n")
            write(folder / "memory.current", "2000\n")
            write(folder / "memory.events.local", f"low 0\noom 7\noom_kill {kills}\noom_group_kill 0\n")
        return folder


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def found(machine: Machine) -> MemoryCgroup:
    group = find(PID, machine.proc)
    assert group is not None
    return group


def test_version_1(machine: Machine) -> None:
    machine.says("5:cpu:/\n4:memory:/jobs/a\n0::/\n", "cgroup / cpu", "cgroup / memory", "cgroup2 / x")
    folder = machine.group("cgroup", "jobs/a", members=f"12\n{PID}\n", limit="5000", kills=3)
    group = found(machine)
    assert (group.folder, group.files) == (folder, V1)
    assert (group.limit_bytes(), group.used_bytes(), group.oom_kills()) == (5000, 1000, 3)
    assert group.members() == [12, PID]


def test_version_2(machine: Machine) -> None:
    machine.says("0::/user/a\n", "cgroup2 / memory")
    folder = machine.group("cgroup2", "user/a", members=f"{PID}\n", limit="max", kills=2)
    group = found(machine)
    assert (group.folder, group.files) == (folder, V2)
    assert (group.limit_bytes(), group.used_bytes(), group.oom_kills()) == (None, 2000, 2)


def test_version_2_charges_the_nearest_group_with_the_controller(machine: Machine) -> None:
    machine.says("0::/user/a/b\n", "cgroup2 / memory")
    machine.group("cgroup2", "user/a/b", members=f"{PID}\n")
    folder = machine.group("cgroup2", "user/a", limit="7000")
    assert found(machine).folder == folder


def test_a_hybrid_machine_whose_memory_is_in_version_2(machine: Machine) -> None:
    machine.says("5:cpu:/c\n0::/a\n", "cgroup / cpu", "cgroup2 / memory")
    folder = machine.group("cgroup2", "a", members=f"{PID}\n", limit="7000")
    assert found(machine).folder == folder


def test_linux_before_5_2_counts_with_the_groups_below(machine: Machine) -> None:
    machine.says("0::/a\n", "cgroup2 / memory")
    folder = machine.group("cgroup2", "a", members=f"{PID}\n", limit="max", kills=2)
    (folder / "memory.events.local").rename(folder / "memory.events")
    assert found(machine).oom_kills() == 2
    (folder / "memory.events").write_text("low 0\n")  # before 4.13 nobody counts
    assert found(machine).oom_kills() is None


@pytest.mark.parametrize("kind", ["cgroup", "cgroup2"])
def test_a_container_sees_its_own_group_as_the_root(machine: Machine, kind: str) -> None:
    path = "/docker/abc"
    machine.says(f"4:memory:{path}/in\n" if kind == "cgroup" else f"0::{path}/in\n", f"{kind} {path} memory")
    folder = machine.group(kind, "in", members=f"{PID}\n", limit="5000")
    assert found(machine).folder == folder


@pytest.mark.parametrize("path", ["/elsewhere", "/../outside", "/a"])
def test_a_folder_that_is_not_the_process_own_is_not_taken(machine: Machine, path: str) -> None:
    machine.says(f"4:memory:{path}\n", "cgroup /docker memory" if path == "/elsewhere" else "cgroup / memory")
    machine.group("cgroup", "a", members="1\n", limit="5000")
    assert find(PID, machine.proc) is None


def test_without_proc_or_mounts_nothing_is_known(machine: Machine) -> None:
    assert find(PID, machine.proc) is None
    machine.says("4:memory:/a\n")
    assert find(PID, machine.proc) is None


def test_the_least_limit_on_the_way_to_the_root_counts(machine: Machine) -> None:
    machine.says("4:memory:/a/b\n", "cgroup / memory")
    machine.group("cgroup", "", limit=NO_LIMIT_V1)
    around = machine.group("cgroup", "a", limit="4000")
    machine.group("cgroup", "a/b", members=f"{PID}\n", limit="6000")
    tightest = found(machine).tightest()
    assert tightest is not None
    assert (tightest.folder, tightest.limit_bytes()) == (around, 4000)


def test_no_limit_at_all(machine: Machine) -> None:
    machine.says("4:memory:/\n", "cgroup / memory")
    machine.group("cgroup", "", members=f"{PID}\n", limit=NO_LIMIT_V1)
    assert found(machine).tightest() is None


def test_this_process_is_in_a_group() -> None:
    group = find(os.getpid())
    if group is None:
        pytest.skip("no memory cgroup can be seen here")
    assert os.getpid() in (group.members() or ())
    assert (group.used_bytes() or 0) > 0


# ---- groups of workers' own ----------------------------------------------------------------------


def v2_machine(
    machine: Machine, *, below: str = "", beside: str = "memory", limit: str = "max"
) -> MemoryCgroup:
    machine.says("0::/slice/run\n", "cgroup2 / memory")
    folder = machine.group("cgroup2", "slice/run", members=f"{PID}\n", limit=limit)
    write(folder / "cgroup.subtree_control", below)
    write(folder.parent / "cgroup.subtree_control", beside)
    return found(machine)


def test_version_1_has_children_in_the_group(machine: Machine) -> None:
    machine.says("4:memory:/a\n", "cgroup / memory")
    folder = machine.group("cgroup", "a", members=f"{PID}\n", limit="6000")
    assert found(machine).place_for_children() == folder


def test_version_2_has_them_beside_it(machine: Machine) -> None:
    group = v2_machine(machine)
    assert group.place_for_children() == group.folder.parent


def test_version_2_has_them_in_it_where_the_kernel_allows_that(machine: Machine) -> None:
    group = v2_machine(machine, below="cpu memory")
    assert group.place_for_children() == group.folder


def test_no_worker_escapes_a_limit(machine: Machine) -> None:
    assert v2_machine(machine, limit="7000").place_for_children() is None
    group = v2_machine(machine)
    write(group.folder / "pids.max", "100")
    assert group.place_for_children() is None


def test_version_2_without_the_controller_around_it_has_none(machine: Machine) -> None:
    assert v2_machine(machine, beside="cpu").place_for_children() is None
    with pytest.raises(PermissionError, match="in or beside"):
        found(machine).make_child(0)


@pytest.fixture
def around(machine: Machine) -> MemoryCgroup:
    machine.says("4:memory:/a\n", "cgroup / memory")
    machine.group("cgroup", "a", members=f"{PID}\n", limit="6000")
    return found(machine)


def test_groups_are_made_left_and_removed(around: MemoryCgroup) -> None:
    warnings: list[str] = []
    own = OwnCgroups(True, warnings.append)
    own.settle_in(around)
    first, second = own.make(), own.make()
    assert first is not None
    assert second is not None
    assert first.folder.is_dir()
    own.leave(first)
    assert [group.folder.exists() for group in (first, second)] == [False, True]
    own.check(second)
    own.close()
    assert (second.folder.exists(), warnings) == (False, [])


def test_none_is_made_where_none_is_wanted(around: MemoryCgroup) -> None:
    own = OwnCgroups(False, pytest.fail)
    own.settle_in(around)
    assert own.make() is None
    own.check(None)
    own.close()


def test_where_none_can_be_made_one_warning_says_so(
    around: MemoryCgroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    warnings: list[str] = []
    own = OwnCgroups(True, warnings.append)
    own.settle_in(around)
    monkeypatch.setattr(os, "mkdir", refuse)
    assert [own.make(), own.make()] == [None, None]
    assert len(warnings) == 1
    assert "Permission denied" in warnings[0]


def test_where_the_group_is_not_known_one_warning_says_so() -> None:
    warnings: list[str] = []
    own = OwnCgroups(True, warnings.append)
    own.settle_in(None)
    assert [own.make(), own.make()] == [None, None]
    assert len(warnings) == 1


def test_a_worker_that_may_not_join_removes_its_group_and_that_is_told(around: MemoryCgroup) -> None:
    warnings: list[str] = []
    own = OwnCgroups(True, warnings.append)
    own.settle_in(around)
    group = own.make()
    assert group is not None
    join(str(group.folder))  # it has no cgroup.procs
    assert not group.folder.exists()
    own.check(group)
    assert own.make() is None
    assert len(warnings) == 1
    own.leave(group)


def test_what_a_killed_supervisor_left_is_removed(around: MemoryCgroup) -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    stale = around.folder / f"supervised-worker.{process.pid}.0"
    others = [around.folder / f"supervised-worker.{os.getpid()}.0", around.folder / "others"]
    for folder in (stale, *others):
        folder.mkdir()
    OwnCgroups(True, pytest.fail).settle_in(around)
    assert [folder.exists() for folder in (stale, *others)] == [False, True, True]


def test_a_process_that_is_left_is_moved_back() -> None:
    """What a worker has started and its group's end did not end."""
    with limited_cgroup(64 << 20) as folder:
        group = MemoryCgroup(folder, folder, V1 if (folder / V1.limit).exists() else V2)
        if group.place_for_children() is None:
            pytest.skip("version 2 has no group in this one")
        own = OwnCgroups(True, pytest.fail)
        own.settle_in(group)
        made = own.make()
        assert made is not None
        command = 'echo 0 > "$0/cgroup.procs"; echo; exec sleep 60'
        daemon = subprocess.Popen(["sh", "-c", command, str(made.folder)], stdout=subprocess.PIPE)
        assert daemon.stdout is not None
        daemon.stdout.readline()
        assert made.members() == [daemon.pid]
        own.close(wait_s=0.0)
        assert not made.folder.exists()
        assert not is_gone(daemon.pid)
        daemon.kill()
        daemon.communicate()
