"""OOM kills: real ones in a memory cgroup with a limit, and what is made of counters that others move too."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from supervisor import oom
from supervisor.memory_cgroup import V2, MemoryCgroup
from supervisor.oom import OomWatch, is_dying, what_would_help
from supervisor.policy import RestartPolicy
from supervisor.pool import WorkerPool
from supervisor.verdict import MemoryFacts
from tests.cgroups import limited_cgroup, require_kernel_log
from tests.forks import fork
from tests.processes import wait_until
from tests.supervisor.toys import end_worker
from tests.supervisor.toys import serve as echo

pytestmark = pytest.mark.slow

LIMIT_BYTES = 64 << 20
EATER_BYTES = 55 << 20  # at least, at its peak


def play(scene: str, *, hide: bool = False) -> tuple[list[dict[str, Any]], str]:
    """Return the deaths in a scene, in order of worker, and what was logged."""
    with limited_cgroup(LIMIT_BYTES) as folder:
        command = [sys.executable, "-m", "tests.supervisor.oom_scenes", scene, str(folder)]
        done = subprocess.run(
            [*command, *(["hide"] if hide else [])], capture_output=True, text=True, timeout=60
        )
    assert done.returncode == 0, done.stderr
    return sorted(json.loads(done.stdout), key=lambda death: int(death["worker"])), done.stderr


def verdicts(deaths: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(death["reason"], death["confidence"]) for death in deaths]


def test_the_kernel_log_proves_an_oom_kill() -> None:
    require_kernel_log()
    deaths, _ = play("eaten")
    assert verdicts(deaths) == [("oom_killed", "proven")]


def test_a_kill_counted_in_a_shared_group_makes_it_likely_and_the_report_says_what_would_help() -> None:
    deaths, log = play("eaten", hide=True)
    assert verdicts(deaths) == [("oom_killed", "likely")]
    (death,) = deaths
    assert death["peak_rss_bytes"] > EATER_BYTES
    assert (death["cgroup_limit_bytes"], death["signal"]) == (LIMIT_BYTES, 9)
    assert 0 < death["cgroup_used_bytes"] < LIMIT_BYTES
    assert death["host_available_bytes"] > 0
    assert len(death["readings"]) >= 2
    assert "the cgroup's limit is 64 MiB" in death["advice"]
    assert "cgroup's limit 64 MiB" in death["text"]
    assert "advice:     2 such workers need more than" in death["text"]
    assert log.count("oom_killed (likely: ") == 1


@pytest.mark.parametrize("hide", [False, True])
def test_a_kill_from_outside_is_none_for_want_of_memory(hide: bool) -> None:
    deaths, _ = play("killed", hide=hide)
    assert verdicts(deaths) == [("killed", "unknown")]


def test_a_group_of_its_own_proves_it_without_the_log() -> None:
    deaths, log = play("eaten_in_a_group_of_its_own", hide=True)
    assert verdicts(deaths) == [("oom_killed", "proven")]
    assert "get no memory cgroup" not in log


def test_a_strangers_oom_kill_beside_a_kill_from_outside_proves_nothing() -> None:
    deaths, _ = play("beside_a_stranger", hide=True)
    assert verdicts(deaths)[0][1] != "proven"


def test_the_kernel_log_tells_a_stranger_from_ours() -> None:
    require_kernel_log()
    deaths, _ = play("beside_a_stranger")
    assert verdicts(deaths) == [("killed", "unknown")]


@pytest.mark.parametrize("hide", [False, True])
def test_of_two_that_died_together_one_kill_explains_one(hide: bool) -> None:
    if not hide:
        require_kernel_log()
    deaths, _ = play("together", hide=hide)
    assert verdicts(deaths) == [("oom_killed", "likely" if hide else "proven"), ("killed", "unknown")]


def test_the_pool_goes_on_with_one_worker_fewer_where_asked_to() -> None:
    deaths, log = play("shrinking")
    assert [death["reason"] for death in deaths] == ["oom_killed", "oom_killed"]
    assert [death["replaced_s"] is None for death in deaths] == [True, False]
    assert "worker 0 is not replaced after an OOM kill (shrink_on_oom=True): 1 of 2 workers go on" in log


def test_a_loader_goes_on_with_one_worker_fewer_and_loses_nothing() -> None:
    deaths, log = play("load")
    assert [(death["reason"], death["sample"], death["replaced_s"]) for death in deaths] == [
        ("oom_killed", 21, None)
    ]
    assert "is not replaced after an OOM kill" in log


def test_the_groups_of_workers_are_gone_soon_after_the_consumer_is() -> None:
    with limited_cgroup(LIMIT_BYTES) as folder:
        command = [sys.executable, "-m", "tests.supervisor.oom_scenes", "orphaned", str(folder)]
        done = subprocess.run(command, capture_output=True, timeout=60)
        assert done.returncode == -signal.SIGKILL
        assert wait_until(lambda: not list(folder.glob("supervised-worker.*")), timeout_s=5.0)


def test_where_no_cgroups_can_be_made_the_pool_goes_on_without_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(oom, "find", lambda pid: None)
    with WorkerPool(2, start_method="fork", policy=RestartPolicy(own_cgroups=True)) as pool:
        pool.start(echo)
        end_worker(pool, 0, b"exit 3")
        pool.check()
    assert [record.levelname for record in caplog.records if "own_cgroups=True" in record.message] == [
        "WARNING"
    ]


# ---- counters, without the kernel's help ---------------------------------------------------------


class Watched:
    """Workers 1 and 2 (these are their pids) in one group whose counter the test moves; no kernel log."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._counter = folder / "memory.events.local"
        self.count(3)
        (folder / "memory.current").write_text("1000\n")
        (folder / "memory.max").write_text("5000\n")
        group = MemoryCgroup(folder, folder, V2)
        monkeypatch.setattr(oom, "find", lambda pid: group)
        monkeypatch.setattr(oom, "is_dying", self.dying)
        monkeypatch.setattr("supervisor.kernel_log._open", lambda log: None)
        self.dead_but_unreaped: set[int] = set()
        self.watch = OomWatch()
        self.watch.look_around()
        for pid in (1, 2):
            self.watch.admit(pid)

    def count(self, number: int) -> None:
        self._counter.write_text(f"oom 9\noom_kill {number}\noom_group_kill 0\n")

    def dying(self, pid: int) -> bool:
        return pid in self.dead_but_unreaped

    def read(self, *alive: int) -> None:
        self.watch.read()
        for pid in alive:
            self.watch.seen_alive(pid)

    def kills(self, **peaks: int) -> list[int | None]:
        """Let workers be found dead together; return how many kills each may be put down to."""
        ended = {int(name[1:]): peak for name, peak in peaks.items()}
        facts = self.watch.explain(ended, list(ended))
        return [facts[pid].oom_kills for pid in ended]


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(tmp_path, monkeypatch)


def test_no_kill_was_counted(watched: Watched) -> None:
    watched.read(1, 2)
    assert watched.kills(_1=100) == [0]


def test_the_kill_is_counted_before_the_death_is_found(watched: Watched) -> None:
    watched.read(1, 2)
    watched.count(4)
    assert watched.kills(_1=100) == [1]


def test_a_kill_long_ago_explains_no_death_of_today(watched: Watched) -> None:
    watched.count(4)
    for _ in range(2):
        watched.read(1, 2)
    assert watched.kills(_1=100) == [0]


def test_one_that_takes_long_to_be_gone_was_killed_all_the_same(watched: Watched) -> None:
    watched.read(1, 2)
    watched.count(4)
    watched.read(1, 2)  # it still has memory at the first reading after it was sent the signal
    for _ in range(20):
        watched.read(2)
    assert watched.kills(_1=100) == [1]


def test_one_that_has_been_sent_the_signal_is_not_alive_though_it_still_has_memory(watched: Watched) -> None:
    watched.read(1, 2)
    watched.count(4)
    watched.dead_but_unreaped.add(1)
    for _ in range(5):
        watched.read(1, 2)
    assert watched.kills(_1=100) == [1]


def test_one_kill_explains_the_larger_of_two(watched: Watched) -> None:
    watched.read(1, 2)
    watched.count(4)
    assert watched.kills(_1=100, _2=200) == [0, 1]


def test_two_kills_explain_two(watched: Watched) -> None:
    watched.read(1, 2)
    watched.count(5)
    assert watched.kills(_1=100, _2=200) == [1, 2]


def test_a_kill_explains_no_second_death(watched: Watched) -> None:
    watched.read(1, 2)
    watched.count(4)
    assert watched.kills(_1=100) == [1]
    assert watched.kills(_2=200) == [0]


def test_nothing_is_claimed_while_another_is_dying(watched: Watched) -> None:
    watched.read(1, 2)
    watched.count(4)
    watched.dead_but_unreaped.add(2)
    assert watched.kills(_1=100) == [0]
    assert watched.kills(_2=200) == [1]


def test_nothing_is_claimed_for_the_smaller_that_was_found_later(watched: Watched) -> None:
    watched.read(1, 2)
    watched.count(4)
    watched.dead_but_unreaped.add(2)
    assert watched.kills(_1=100) == [0]
    assert watched.kills(_2=50) == [0]


def test_the_use_is_told_as_it_was_when_the_worker_was_last_alive(watched: Watched, tmp_path: Path) -> None:
    watched.read(1, 2)
    (tmp_path / "memory.current").write_text("3\n")
    watched.read(2)  # worker 1 is gone, and its memory with it
    assert watched.watch.explain({1: 100}, [1])[1].used_bytes == 1000


@pytest.mark.parametrize(
    ("members", "alone"),
    [([""], True), (["", "7"], True), (["7"], True), (["7 8"], False), (["7 8", "7"], False)],
)
def test_a_group_of_its_own_proves_nothing_while_it_holds_what_the_worker_started(
    watched: Watched, tmp_path: Path, members: list[str], alone: bool
) -> None:
    watched.watch.admit(7, MemoryCgroup(tmp_path, tmp_path, V2))
    for text in members:
        (tmp_path / "cgroup.procs").write_text(text)
        watched.read(7)
    watched.count(4)
    facts = watched.watch.explain({7: 100}, [7])[7]
    assert (facts.oom_kills, facts.alone) == (1, alone)


def test_without_a_counter_nothing_is_known(watched: Watched, tmp_path: Path) -> None:
    (tmp_path / "memory.events.local").unlink()
    assert watched.kills(_1=100) == [None]


def test_a_zombie_is_dying_and_we_are_not() -> None:
    pid = fork()
    if pid == 0:
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert is_dying(pid)
    os.waitpid(pid, 0)
    assert is_dying(pid)
    assert not is_dying(os.getpid())


# ---- advice --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit_mib", "workers", "worker_mib", "advice"),
    [
        (1000, 4, 300, "use 3 workers, or raise the limit"),
        (1000, 4, 800, "use 1 worker, or raise the limit"),
        (1000, 2, 2000, "let a sample or batch take less, or raise the limit"),
        (None, 4, 3000, "use 1 worker, or use a machine with more"),
        (1000, 2, 100, "something else takes the rest"),
        (1000, 2, 0, "something else takes the rest"),
    ],
)
def test_what_would_help(limit_mib: int | None, workers: int, worker_mib: int, advice: str) -> None:
    limit_bytes = None if limit_mib is None else limit_mib << 20
    facts = MemoryFacts(limit_bytes=limit_bytes, total_bytes=4000 << 20)
    assert advice in what_would_help(facts, workers, worker_mib << 20, 50 << 20)
