"""Quotas of control groups, version 1 and 2, read from folders that look like theirs."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.cgroup import cpu_quota


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.fixture
def own(tmp_path: Path) -> Path:
    file = tmp_path / "own"
    write(file, "5:memory:/m\n4:cpu,cpuacct:/jobs/mine\n0::/jobs/mine\n")
    return file


@pytest.mark.parametrize(
    ("quotas", "cores"),
    [
        ({}, None),
        ({"jobs/mine": "max 100000"}, None),
        ({"jobs/mine": "150000 100000"}, 1.5),
        ({"jobs/mine": "400000 100000", "jobs": "200000 100000"}, 2.0),
        ({"jobs/mine": "max 100000", "": "50000 100000"}, 0.5),
        ({"elsewhere": "100000 100000"}, None),
    ],
    ids=str,
)
def test_the_least_quota_on_the_way_to_the_root_counts(
    tmp_path: Path, own: Path, quotas: dict[str, str], cores: float | None
) -> None:
    for folder, text in quotas.items():
        write(tmp_path / "cgroup" / folder / "cpu.max", text + "\n")
    assert cpu_quota(tmp_path / "cgroup", own) == cores


@pytest.mark.parametrize(("quota", "cores"), [("-1", None), ("250000", 2.5)])
def test_version_1_has_quota_and_period_in_files_of_their_own(
    tmp_path: Path, own: Path, quota: str, cores: float | None
) -> None:
    folder = tmp_path / "cgroup" / "cpu" / "jobs" / "mine"
    write(folder / "cpu.cfs_quota_us", quota + "\n")
    write(folder / "cpu.cfs_period_us", "100000\n")
    assert cpu_quota(tmp_path / "cgroup", own) == cores


def test_a_containers_own_root_counts_where_the_path_is_the_hosts(tmp_path: Path, own: Path) -> None:
    write(tmp_path / "cgroup" / "cpu.max", "300000 100000\n")
    assert cpu_quota(tmp_path / "cgroup", own) == 3.0


def test_without_control_groups_there_is_no_quota(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path / "none", tmp_path / "nothing") is None


def test_what_this_machine_says_can_be_read() -> None:
    quota = cpu_quota()
    assert quota is None or quota > 0
