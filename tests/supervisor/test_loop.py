"""What the supervisor does about workers, the consumer and the end of either."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil
import pytest

from supervisor.policy import RestartPolicy
from supervisor.pool import WorkerPool
from supervisor.report import WorkerDiedError
from supervisor.verdict import ExitReason
from tests.forks import in_child
from tests.processes import is_gone, kill_and_await_death, living_descendants, wait_until
from tests.supervisor import toys
from tests.supervisor.toys import EAGER, START_METHODS, await_reports, end_worker, serve

NO_RESTART = RestartPolicy(max_restarts=0)


def seconds_for(action: Callable[[], object]) -> float:
    start_s = time.monotonic()
    action()
    return time.monotonic() - start_s


# ---- an ordered stop -----------------------------------------------------------------------------


def test_workers_that_see_the_end_of_their_pipe_end_by_themselves(start_method: str) -> None:
    with WorkerPool(2, start_method=start_method, close_s=10.0) as pool:
        pool.start(serve)
        ours = toys.pids(pool)
        assert seconds_for(pool.close) < 5.0
        assert all(is_gone(pid) for pid in ours)
    assert [report.reason for report in pool.reports] == [ExitReason.CLOSED] * 2
    assert [report.exit_code for report in pool.reports] == [0, 0]


def test_workers_that_ignore_it_end_by_sigkill_all_at_once(start_method: str) -> None:
    with WorkerPool(3, start_method=start_method, close_s=0.2, terminate_s=0.2) as pool:
        pool.start(toys.stubborn)
        for worker in range(3):
            assert pool.receive(worker).data == b"deaf"
        assert 0.4 <= seconds_for(pool.close) < 1.0
    assert {report.signal for report in pool.reports} == {signal.SIGKILL}
    assert {report.reason for report in pool.reports} == {ExitReason.CLOSED}


def test_busy_workers_end_by_sigterm() -> None:
    with WorkerPool(2, start_method="fork", close_s=0.2, terminate_s=10.0) as pool:
        pool.start(serve)
        for worker in pool.workers.values():
            worker.pipe.send(b"sleep")
        assert 0.2 <= seconds_for(pool.close) < 5.0
    assert [report.signal for report in pool.reports] == [signal.SIGTERM] * 2
    assert [report.reason for report in pool.reports] == [ExitReason.CLOSED] * 2


def test_a_worker_that_moved_to_another_group_is_ended_too() -> None:
    with WorkerPool(1, start_method="fork", close_s=0.1, terminate_s=0.1) as pool:
        pool.start(toys.changes_its_group)
        assert pool.receive(0).data == b"moved"
        assert seconds_for(pool.close) < 1.0
    assert [report.signal for report in pool.reports] == [signal.SIGKILL]


@pytest.mark.slow
def test_a_stopped_supervisor_does_not_hold_up_the_end() -> None:
    with WorkerPool(2, start_method="fork", close_s=0.1, terminate_s=0.1) as pool:
        pool.start(serve)
        ours = toys.pids(pool)
        os.kill(ours[0], signal.SIGSTOP)
        assert seconds_for(pool.close) < 3.0
        assert wait_until(lambda: all(is_gone(pid) for pid in ours), timeout_s=1.0)


def test_workers_of_one_run_are_gone_before_the_next_begins() -> None:
    with WorkerPool(1, start_method="forkserver", close_s=0.1, terminate_s=0.1) as pool:
        for _ in range(3):
            pool.start(toys.stubborn)
            assert pool.receive(0).data == b"deaf"
            assert len(living_descendants(toys.supervisor_pid(pool))) == 1
            pool.stop()


# ---- what belongs to a worker --------------------------------------------------------------------


@pytest.mark.parametrize("end", [b"kill", b"exit 0", b"raise"])
def test_what_a_worker_started_ends_with_it(end: bytes) -> None:
    with WorkerPool(1, start_method="fork", policy=EAGER) as pool:
        pool.start(toys.starts_a_subprocess)
        child = int(pool.receive(0).data)
        assert not is_gone(child)
        end_worker(pool, 0, end)
        assert wait_until(lambda: is_gone(child), timeout_s=1.0)


def test_what_a_worker_started_ends_with_a_stop() -> None:
    with WorkerPool(1, start_method="fork") as pool:
        pool.start(toys.starts_a_subprocess)
        child = int(pool.receive(0).data)
    assert wait_until(lambda: is_gone(child), timeout_s=1.0)


def test_a_grandchild_that_holds_the_pipe_delays_nothing(start_method: str) -> None:
    with WorkerPool(1, start_method=start_method, policy=EAGER) as pool:
        pool.start(toys.leaves_a_grandchild)
        pool.workers[0].pipe.send(b"go")
        grandchild = int(pool.receive(0).data)
        await_reports(pool, 1, timeout_s=1.0)
        pool.check()
        assert not is_gone(grandchild), "it was to hold the pipe all the while"
        kill_and_await_death(grandchild)


def test_a_worker_whose_pipe_ended_though_it_lives_is_ended(start_method: str) -> None:
    with WorkerPool(1, start_method=start_method, policy=NO_RESTART) as pool:
        pool.start(serve)
        pid = pool.workers[0].pid
        pool.workers[0].pipe.send(b"close")
        await_reports(pool, 1, timeout_s=5.0)
        report = pool.reports[0]
        assert (report.pid, report.signal) == (pid, signal.SIGKILL)
        assert (report.reason, report.confidence) == (ExitReason.KILLED, "proven")
        assert "its pipe had ended though it was alive" in report.evidence


# ---- the consumer's surroundings -----------------------------------------------------------------


@pytest.mark.parametrize("start_method", ["fork", "forkserver"])
def test_a_consumer_that_ignores_its_childrens_ends_still_hears_of_workers(start_method: str) -> None:
    """SIGCHLD is inherited as ignored, and then the kernel reaps: no status, no pid that is surely ours."""

    def use() -> int | None:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        with WorkerPool(1, start_method=start_method, policy=EAGER) as pool:
            pool.start(serve)
            end_worker(pool, 0, b"exit 3")
            pool.check()
            return pool.reports[0].exit_code

    assert in_child(use) == 3


def test_a_consumer_that_waits_for_any_child_disturbs_nothing() -> None:
    def use() -> bool:
        with WorkerPool(1, start_method="fork") as pool:
            pool.start(serve)
            supervisor = toys.supervisor_pid(pool)
            os.kill(supervisor, signal.SIGKILL)
            assert os.waitpid(-1, 0)[0] == supervisor  # its status is lost to the pool
            with pytest.raises(WorkerDiedError, match="supervisor process died"):
                pool.receive(0)
            pool.start(serve)
            end_worker(pool, 0, b"exit 3")
            return pool.reports[-1].exit_code == 3

    assert in_child(use)


@pytest.mark.parametrize("signals", [{signal.SIGTERM}, {signal.SIGCHLD, signal.SIGINT}])
def test_signals_that_the_consumer_blocks_hold_up_nothing(signals: set[signal.Signals]) -> None:
    def use() -> float:
        signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        with WorkerPool(1, start_method="fork", policy=EAGER) as pool:
            pool.start(serve)
            end_worker(pool, 0, b"kill")
            pool.check()
            pool.workers[0].pipe.send(b"sleep")
            return seconds_for(pool.close)

    assert in_child(use) < 2.0


@pytest.mark.slow
@pytest.mark.parametrize("start_method", ["fork", "forkserver"])
def test_an_idle_supervisor_is_idle(start_method: str) -> None:
    with WorkerPool(2, start_method=start_method, policy=EAGER) as pool:
        pool.start(serve)
        end_worker(pool, 0, b"kill")
        pool.check()
        supervisor = psutil.Process(toys.supervisor_pid(pool))
        before = sum(supervisor.cpu_times()[:2])
        pool.wait(1.0)
        assert sum(supervisor.cpu_times()[:2]) - before < 0.3


# ---- the end of the consumer ---------------------------------------------------------------------

CONSUMER = """
import sys, time
from supervisor.pool import WorkerPool
from tests.supervisor import toys

start_method, serve, message = sys.argv[1:]
with WorkerPool(2, start_method=start_method) as pool:
    pool.start(getattr(toys, serve))
    for worker in pool.workers.values():
        if serve != "serve":
            pool.receive(worker.worker)
        if message:
            worker.pipe.send(message.encode())
    print("ready", flush=True)
    pool.receive(0)
"""


@contextmanager
def consumer(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", CONSUMER, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("serve_name", "message", "processes"),
    [("serve", "", 3), ("serve", "sleep", 3), ("stubborn", "", 3), ("starts_a_subprocess", "sleep", 5)],
    ids=["idle", "busy", "stubborn", "with subprocesses"],
)
def test_nothing_outlives_a_killed_consumer(serve_name: str, message: str, processes: int) -> None:
    with consumer("fork", serve_name, message) as process:
        ours = living_descendants(process.pid)
        assert len(ours) == processes
        process.kill()
        assert wait_until(lambda: all(is_gone(pid) for pid in ours), timeout_s=1.0)


@pytest.mark.parametrize("start_method", ["forkserver", "spawn"])
def test_nothing_outlives_a_killed_consumer_of_fresh_interpreters(start_method: str) -> None:
    with consumer(start_method, "stubborn", "") as process:
        ours = living_descendants(process.pid)
        assert len(ours) == 3
        process.kill()
        assert wait_until(lambda: all(is_gone(pid) for pid in ours), timeout_s=1.0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_nothing_outlives_a_consumer_that_a_signal_ends(number: signal.Signals) -> None:
    with consumer("fork", "serve", "sleep") as process:
        ours = living_descendants(process.pid)
        process.send_signal(number)
        assert process.wait(5.0) == -number
        assert wait_until(lambda: all(is_gone(pid) for pid in ours), timeout_s=1.0)


# ---- Ctrl-C --------------------------------------------------------------------------------------

TERMINAL = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
SLOW_STARTER = """
import sys
from supervisor.pool import WorkerPool
from tests.supervisor import toys

with WorkerPool(1, start_method=sys.argv[1]) as pool:
    pool.start(toys.serve, toys.slow_setup)
"""


WITHOUT_COLORS = {**os.environ, "PYTHON_COLORS": "0"}


@contextmanager
def consumer_on_a_terminal(script: str, start_method: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Give a consumer that is ready, and the other end of the terminal that it controls."""
    master, slave = os.openpty()
    command = [sys.executable, "-c", TERMINAL + script, start_method, "serve", "sleep"]
    with subprocess.Popen(
        command, stdin=slave, stdout=slave, stderr=slave, start_new_session=True, env=WITHOUT_COLORS
    ) as process:
        os.close(slave)
        try:
            shown = b""
            while not shown.endswith(b"\n"):
                shown += os.read(master, 100)
            assert shown == b"ready\r\n"
            yield process, master
        finally:
            process.kill()
            os.close(master)


@pytest.mark.parametrize("script", [CONSUMER, SLOW_STARTER], ids=["at work", "in start-up"])
@pytest.mark.parametrize("start_method", START_METHODS)
def test_ctrl_c_on_a_terminal_ends_everything_with_one_traceback(start_method: str, script: str) -> None:
    with consumer_on_a_terminal(script, start_method) as (process, terminal):
        ours = living_descendants(process.pid)
        assert len(ours) >= 2
        start_s = time.monotonic()
        os.write(terminal, b"\x03")
        shown = read_to_the_end(terminal)
        assert process.wait(5.0) == -signal.SIGINT
        assert time.monotonic() - start_s < 1.0
        assert wait_until(lambda: all(is_gone(pid) for pid in ours), timeout_s=1.0)
    assert shown.count("Traceback") == 1
    assert shown.count("KeyboardInterrupt") == 1
    assert shown.rstrip().endswith("KeyboardInterrupt")


def read_to_the_end(terminal: int) -> str:
    """Return what is written to a terminal until nobody has it open any more."""
    shown = b""
    try:
        while data := os.read(terminal, 4096):
            shown += data
    except OSError:  # so a terminal says that it has no more users
        pass
    return shown.decode()
