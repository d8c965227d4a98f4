"""The supervisor dies: its workers end with it; another takes its place, or the pool ends and says why."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path

import multiprocess.spawn
import psutil
import pytest

from supervisor.channel import Channel
from supervisor.child import WorkerContext
from supervisor.loop import Supervisor
from supervisor.page import DONE, State
from supervisor.policy import RestartPolicy
from supervisor.pool import WorkerPool
from supervisor.report import SUPERVISOR, ExitReport, WorkerDiedError
from supervisor.verdict import ExitReason
from tests.forks import in_child
from tests.processes import is_gone, kill_and_await_death, living_descendants, open_descriptors, wait_until
from tests.supervisor import toys
from tests.supervisor.toys import EAGER, START_METHODS, await_reports, end_worker, serve, supervisor_pid

pytestmark = pytest.mark.slow

SET_CHILD_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER
SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG
FRESH = pytest.mark.parametrize("start_method", ["forkserver", "spawn"])


def echo(pool: WorkerPool, worker: int = 0) -> bytes:
    pool.workers[worker].pipe.send(b"hello")
    return pool.receive(worker).data


def ends(pool: WorkerPool) -> list[tuple[int, ExitReason]]:
    return [(report.worker, report.reason) for report in pool.reports]


def leave_no_descriptor(pid: int) -> None:
    """Let process ``pid`` open nothing more."""
    taken = {int(name) for name in os.listdir(f"/proc/{pid}/fd")}
    lowest_free = min(set(range(len(taken) + 1)) - taken)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (lowest_free, hard))


# ---- another follows -----------------------------------------------------------------------------


@FRESH
def test_a_killed_supervisor_is_followed_by_another(start_method: str) -> None:
    with WorkerPool(2, start_method=start_method, policy=EAGER) as pool:
        pool.start(serve)
        end_worker(pool, 1, b"exit 3")
        pool.check()
        before = dict(pool.workers)
        before[0].pipe.send(b"sleep")
        assert wait_until(lambda: before[0].page.state is State.SAMPLE, timeout_s=5.0)
        supervisor, *workers = toys.pids(pool)
        kill_and_await_death(supervisor)
        pool.check()
        assert all(map(is_gone, [supervisor, *workers]))
        assert [echo(pool, worker) for worker in range(2)] == [b"HELLO"] * 2
        assert [pool.workers[worker].restarts for worker in range(2)] == [1, 2]
        end_worker(pool, 0, b"exit 0")
        pool.check()
    first, *orphans, own, last = pool.reports[:5]
    assert [report.reason for report in pool.reports[5:]] == [ExitReason.CLOSED] * 2
    assert (first.exit_code, last.exit_code) == (3, 0)
    assert {report.pid for report in orphans} == set(workers)
    assert (own.worker, own.pid, own.signal) == (SUPERVISOR, supervisor, signal.SIGKILL)


def test_the_report_of_a_worker_that_died_with_it_tells_what_is_known_and_no_more() -> None:
    with WorkerPool(1, start_method="forkserver", policy=EAGER) as pool:
        pool.start(serve)
        worker = pool.workers[0]
        worker.pipe.send(b"sleep")
        assert wait_until(lambda: worker.page.state is State.SAMPLE, timeout_s=5.0)
        os.kill(toys.supervisor_pid(pool), signal.SIGKILL)
        await_reports(pool, 2)
        report = pool.reports[0]
    assert (report.reason, report.confidence) == (ExitReason.KILLED, "unknown")
    assert (report.exit_code, report.signal, report.peak_rss_bytes) == (None, None, 0)
    assert report.state is State.SAMPLE
    assert report.uptime_s > 0
    assert str(report).splitlines()[0] == f"worker 0 (pid {report.pid}) ended, and its exit status is lost."
    assert "peak memory" not in str(report)


def test_what_its_workers_had_sent_is_received() -> None:
    with WorkerPool(1, start_method="forkserver", policy=EAGER) as pool:
        pool.start(sends_and_counts)
        worker = pool.workers[0]
        for _ in range(3):
            worker.pipe.send(b"hello")
        assert wait_until(lambda: worker.page.done == 3, timeout_s=5.0)
        os.kill(toys.supervisor_pid(pool), signal.SIGKILL)
        await_reports(pool, 2)
        assert [pool.receive(0).data for _ in range(3)] == [b"HELLO"] * 3
        pool.check()
        assert echo(pool) == b"HELLO"


def sends_and_counts(pipe: Channel, context: WorkerContext) -> None:
    while (message := pipe.receive()) is not None:
        pipe.send(message.data.upper())
        context.page.words[DONE] += 1


def test_a_supervisor_that_dies_between_two_runs_is_followed_by_another() -> None:
    with WorkerPool(2, start_method="forkserver", policy=EAGER) as pool:
        pool.start(serve)
        supervisor = toys.supervisor_pid(pool)
        pool.stop()
        await_reports(pool, 2)
        kill_and_await_death(supervisor)
        pool.start(serve)
        assert echo(pool) == b"HELLO"
    assert (SUPERVISOR, ExitReason.KILLED) in ends(pool)


@pytest.mark.parametrize("start_method", ["fork", "forkserver", "spawn"])
def test_a_supervisor_that_dies_while_it_stops_its_workers_holds_up_nothing(start_method: str) -> None:
    with WorkerPool(2, start_method=start_method, policy=EAGER, close_s=10.0) as pool:
        pool.start(toys.stubborn)
        supervisor, *workers = toys.pids(pool)
        os.kill(supervisor, signal.SIGSTOP)
        pool._close_pipes()  # as stop() begins
        os.kill(supervisor, signal.SIGKILL)
        start_s = time.monotonic()
        pool.stop()
        pool.start(serve)
        assert time.monotonic() - start_s < 5.0
        assert all(map(is_gone, [supervisor, *workers]))
        assert echo(pool) == b"HELLO"
        assert sorted(ends(pool)) == [
            (SUPERVISOR, ExitReason.KILLED),
            (0, ExitReason.CLOSED),
            (1, ExitReason.CLOSED),
        ]


@FRESH
@pytest.mark.parametrize("when", ["interpreter", "setup"])
def test_a_supervisor_that_is_killed_in_start_up_is_followed_by_another(
    start_method: str, when: str, tmp_path: Path
) -> None:
    """It is killed by a worker that starts up, or by a process that sees it come."""

    def set_up(context: WorkerContext) -> None:
        if not (tmp_path / "killed").exists():
            (tmp_path / "killed").touch()
            supervisor = psutil.Process(os.getppid())
            wait_until(
                lambda: supervisor.status() == psutil.STATUS_SLEEPING, timeout_s=5.0
            )  # it has told of us
            supervisor.kill()
            time.sleep(60)

    def use() -> list[int]:
        killer = None if when == "setup" else kill_first_child_of(os.getpid())
        with WorkerPool(1, start_method=start_method, policy=EAGER) as pool:
            pool.start(serve, set_up if when == "setup" else None)
            assert echo(pool) == b"HELLO"
            if killer is not None:
                os.waitpid(killer, 0)
            return [report.worker for report in pool.reports]

    assert in_child(use) == ([0, SUPERVISOR] if when == "setup" else [SUPERVISOR])


def kill_first_child_of(pid: int) -> int:
    """Return the pid of a process that kills the next child of ``pid`` as soon as it is there."""
    killer = os.fork()
    if killer == 0:
        while not (found := [child for child in psutil.Process(pid).children() if child.pid != os.getpid()]):
            pass
        found[0].kill()
        os._exit(0)
    return killer


def test_a_supervisor_that_is_stopped_for_a_while_changes_nothing() -> None:
    with WorkerPool(1, start_method="forkserver", policy=EAGER) as pool:
        pool.start(serve)
        supervisor, worker = toys.pids(pool)
        os.kill(supervisor, signal.SIGSTOP)
        assert echo(pool) == b"HELLO"
        pool.wait(0.3)
        os.kill(supervisor, signal.SIGCONT)
        pool.check()
        assert toys.pids(pool) == [supervisor, worker]
        assert pool.reports == []


def test_twenty_supervisors_leave_nothing() -> None:
    def use() -> tuple[list[int], list[str], list[str]]:
        with WorkerPool(2, start_method="forkserver", policy=EAGER) as pool:
            pool.start(serve)
            ever = set(toys.pids(pool))
            before = sorted(open_descriptors().values())
            for _ in range(20):
                os.kill(toys.supervisor_pid(pool), signal.SIGKILL)
                await_reports(pool, len(pool.reports) + 3)
                pool.check()
                ever |= set(toys.pids(pool))
            after = sorted(open_descriptors().values())
            living = [pid for pid in ever - set(toys.pids(pool)) if not is_gone(pid)]
        return living, kinds(before), kinds(after)

    living, before, after = in_child(use)
    assert living == []
    assert before == after


def kinds(descriptors: list[str]) -> list[str]:
    return [name.partition("[")[0] for name in descriptors if not name.startswith("/")]


# ---- none follows --------------------------------------------------------------------------------


@pytest.mark.parametrize("start_method", ["fork", "forkserver"])
def test_where_none_follows_there_is_a_clear_error_and_the_next_start_works(start_method: str) -> None:
    policy = EAGER if start_method == "fork" else None
    with WorkerPool(2, start_method=start_method, policy=policy) as pool:
        for _ in range(2):
            pool.start(serve)
            pool.stop()
        pool.start(serve)
        pool.workers[0].pipe.send(b"sleep")
        supervisor, *workers = toys.pids(pool)
        start_s = time.monotonic()
        os.kill(supervisor, signal.SIGKILL)
        with pytest.raises(WorkerDiedError, match="supervisor process died") as caught:
            pool.receive(0)
        assert time.monotonic() - start_s < 1.0
        assert (caught.value.report.pid, caught.value.report.signal) == (supervisor, signal.SIGKILL)
        assert all(map(is_gone, workers))
        pool.start(serve)
        assert echo(pool) == b"HELLO"


def test_an_exhausted_policy_is_raised_with_the_story() -> None:
    with WorkerPool(1, start_method="forkserver", policy=RestartPolicy(max_restarts=1)) as pool:
        pool.start(serve)
        for _ in range(2):
            os.kill(toys.supervisor_pid(pool), signal.SIGKILL)
            await_reports(pool, len(pool.reports) + 2)
            if not pool.is_broken:
                pool.check()
        with pytest.raises(WorkerDiedError, match=r"death number 2 within 60 s .*max_restarts=1") as caught:
            pool.receive(0)
    assert [report.worker for report in caught.value.reports] == [0, SUPERVISOR, 0, SUPERVISOR]


@pytest.mark.parametrize("executable", ["/nowhere/python", "/bin/false"])
def test_one_that_cannot_be_started_is_a_clear_error_at_once(
    executable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with WorkerPool(1, start_method="forkserver", policy=EAGER) as pool:
        pool.start(serve)
        monkeypatch.setattr(multiprocess.spawn, "_python_exe", os.fsencode(executable))
        os.kill(toys.supervisor_pid(pool), signal.SIGKILL)
        start_s = time.monotonic()
        with pytest.raises(WorkerDiedError, match=r"could not be replaced: .*nowhere|ended by itself in its"):
            pool.receive(0)
        assert time.monotonic() - start_s < 1.0
        monkeypatch.undo()
        pool.start(serve)
        assert echo(pool) == b"HELLO"


def test_too_few_descriptors_for_another_is_a_clear_error() -> None:
    def use() -> str:
        with WorkerPool(1, start_method="forkserver", policy=EAGER) as pool:
            pool.start(serve)
            os.kill(toys.supervisor_pid(pool), signal.SIGKILL)
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            lowest_free = os.dup(0)
            os.close(lowest_free)
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free + 1, hard))
            with pytest.raises(WorkerDiedError, match=r"could not be replaced: .*Too many") as caught:
                pool.receive(0)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            return str(caught.value)

    assert "supervisor process died" in in_child(use)


# ---- orphans -------------------------------------------------------------------------------------


def survives_its_parent(pipe: Channel, context: WorkerContext) -> None:
    ctypes.CDLL(None).prctl(SET_PARENT_DEATH_SIGNAL, 0, 0, 0, 0)
    toys.stubborn(pipe, context)


def stops_itself(pipe: Channel, context: WorkerContext) -> None:
    ctypes.CDLL(None).prctl(SET_PARENT_DEATH_SIGNAL, 0, 0, 0, 0)
    pipe.send(b"stopping")
    os.kill(os.getpid(), signal.SIGSTOP)


@pytest.mark.parametrize("behave", [survives_its_parent, stops_itself])
@pytest.mark.parametrize("policy", [EAGER, None])
def test_workers_that_would_survive_it_are_ended(
    behave: Callable[[Channel, WorkerContext], None], policy: RestartPolicy | None
) -> None:
    with WorkerPool(2, start_method="forkserver", policy=policy) as pool:
        pool.start(behave)
        for worker in range(2):
            pool.receive(worker)
        supervisor, *workers = toys.pids(pool)
        if behave is stops_itself:
            assert wait_until(
                lambda: all(psutil.Process(pid).status() == psutil.STATUS_STOPPED for pid in workers), 5.0
            )
        os.kill(supervisor, signal.SIGKILL)
        await_reports(pool, 3)
        assert all(map(is_gone, workers))


def test_without_pidfds_their_deaths_are_certain_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with WorkerPool(1, start_method="forkserver", policy=EAGER) as pool:
        pool.start(survives_its_parent)
        pool.receive(0)
        worker = pool.workers[0]
        worker._pidfds.clear()
        os.kill(toys.supervisor_pid(pool), signal.SIGKILL)
        await_reports(pool, 2)
        assert is_gone(worker.pid)


def test_orphans_that_become_our_children_leave_no_zombies() -> None:
    """As in a container, where the consumer is process 1."""

    def use() -> list[str]:
        ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        with WorkerPool(2, start_method="forkserver", policy=EAGER) as pool:
            pool.start(serve)
            os.kill(toys.supervisor_pid(pool), signal.SIGKILL)
            await_reports(pool, 3)
            pool.check()
            return [child.status() for child in psutil.Process().children()]

    assert psutil.STATUS_ZOMBIE not in in_child(use)


def test_workers_that_cannot_be_ended_keep_their_work_and_end_the_pool(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    deaths: list[ExitReport] = []
    with WorkerPool(1, start_method="forkserver", policy=EAGER) as pool:
        pool.start(serve)
        worker = pool.workers[0]
        monkeypatch.setattr("supervisor.revival.ORPHANS_S", 0.1)
        monkeypatch.setattr(worker, "is_gone", lambda: False)
        monkeypatch.setattr(pool, "on_death", lambda _, report: deaths.append(report))
        os.kill(toys.supervisor_pid(pool), signal.SIGKILL)
        with pytest.raises(WorkerDiedError, match="did not end by SIGKILL"):
            pool.receive(0)
    assert deaths == []
    assert living_descendants() == []


@pytest.mark.parametrize("start_method", START_METHODS)
def test_one_without_descriptors_explains_a_death_and_says_why_it_cannot_replace(start_method: str) -> None:
    with WorkerPool(2, start_method=start_method, policy=EAGER) as pool:
        pool.start(serve)
        leave_no_descriptor(supervisor_pid(pool))
        kill_and_await_death(pool.workers[0].pid)
        with pytest.raises(WorkerDiedError, match=r"could not be replaced: .*Too many open files") as caught:
            pool.receive(0)
        assert caught.value.report.signal == signal.SIGKILL


def test_the_exception_that_ends_one_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(supervisor: Supervisor) -> None:
        if supervisor._check_wanted:
            raise LookupError("what no one foresaw")

    monkeypatch.setattr(Supervisor, "_answer_check", fail)
    with WorkerPool(1, start_method="fork") as pool:
        pool.start(serve)
        with pytest.raises(WorkerDiedError) as caught:
            pool.check()
    assert isinstance(caught.value.__cause__, LookupError)
    assert caught.value.report.reason is ExitReason.EXCEPTION
    assert "in fail" in caught.value.report.traceback
    assert "what no one foresaw" in str(caught.value)


def test_the_exception_that_ends_one_in_its_start_up_is_raised_as_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(supervisor: Supervisor) -> None:
        raise LookupError("what no one foresaw")

    monkeypatch.setattr(Supervisor, "_handle_commands", fail)
    with WorkerPool(1, start_method="fork") as pool, pytest.raises(LookupError) as caught:
        pool.start(serve)
    assert "in the supervisor" in str(caught.value.__cause__)
