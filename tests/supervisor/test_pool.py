"""The pool as its user sees it: every end is noticed, explained and followed by policy."""

from __future__ import annotations

import logging
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.channel import MessageLost
from supervisor.child import WorkerContext
from supervisor.exceptions import WorkerTraceback
from supervisor.handle import SupervisorHandle
from supervisor.page import State
from supervisor.payload import PayloadError
from supervisor.policy import RestartPolicy
from supervisor.pool import WorkerPool
from supervisor.pool_worker import PoolWorker
from supervisor.report import ExitReport, WorkerDiedError
from supervisor.verdict import ExitReason
from tests.forks import fork, in_child
from tests.limits import descriptors_without_garbage
from tests.processes import is_gone, kill_and_await_death, living_descendants, open_descriptors, wait_until
from tests.supervisor import toys
from tests.supervisor.toys import EAGER, START_METHODS, await_reports, end_worker, serve


@pytest.fixture(scope="module", params=START_METHODS)
def shared_pool(request: pytest.FixtureRequest) -> Iterator[WorkerPool]:
    """One pool for each start method, for tests that end workers: the next test finds them replaced."""
    with WorkerPool(2, start_method=request.param, policy=EAGER) as pool:
        pool.start(serve)
        yield pool


def echo(pool: WorkerPool, worker: int = 0) -> bytes:
    pool.workers[worker].pipe.send(b"hello")
    return pool.receive(worker).data


# ---- ends ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("end", "reason", "code", "number"),
    [
        (b"kill", ExitReason.KILLED, None, signal.SIGKILL),
        (b"crash", ExitReason.CRASHED, None, signal.SIGSEGV),
        (b"abort", ExitReason.CRASHED, None, signal.SIGABRT),
        (b"exit 0", ExitReason.EXITED, 0, None),
        (b"exit 3", ExitReason.EXITED, 3, None),
        (b"sys.exit", ExitReason.EXITED, 4, None),
        (b"raise", ExitReason.EXCEPTION, 1, None),
    ],
)
def test_every_end_is_named_and_the_dead_are_replaced(
    shared_pool: WorkerPool, end: bytes, reason: ExitReason, code: int | None, number: int | None
) -> None:
    pool = shared_pool
    pool.check()
    first = pool.workers[1]
    end_worker(pool, 1, end)
    report = pool.reports[-1]
    assert (report.worker, report.pid, report.reason) == (1, first.pid, reason)
    assert (report.exit_code, report.signal) == (code, number)
    assert report.state is State.SAMPLE
    assert report.peak_rss_bytes > 1 << 20
    assert report.uptime_s > 0
    pool.check()
    assert pool.workers[1].pid != first.pid
    assert pool.workers[1].restarts == first.restarts + 1
    assert echo(pool, 1) == b"HELLO"
    assert report.replaced_s is not None


def test_a_crash_leaves_its_python_stack(shared_pool: WorkerPool) -> None:
    shared_pool.check()
    end_worker(shared_pool, 0, b"crash")
    report = shared_pool.reports[-1]
    assert "in crash" in report.traceback
    assert report.confidence == "proven"


def test_an_uncaught_exception_leaves_its_traceback(shared_pool: WorkerPool) -> None:
    shared_pool.check()
    end_worker(shared_pool, 0, b"raise")
    traceback = shared_pool.reports[-1].traceback
    assert "ValueError: ('two', 'args')" in traceback
    assert "in raise_error" in traceback


def test_memory_readings_are_in_the_report() -> None:
    with WorkerPool(1, start_method="fork", policy=EAGER, reading_interval_s=0.01) as pool:
        pool.start(serve)

        def dies_with_readings() -> bool:
            pool.check()
            end_s = time.monotonic() + 0.1
            while time.monotonic() < end_s:
                echo(pool)
            end_worker(pool, 0, b"kill")
            return len(pool.reports[-1].readings) > 1

        assert wait_until(dies_with_readings, timeout_s=10.0)
        readings = pool.reports[-1].readings
    assert all(rss_bytes > 1 << 20 for _, rss_bytes in readings)
    ages_s = [before_s for before_s, _ in readings]
    assert ages_s == sorted(ages_s, reverse=True)
    assert ages_s[-1] >= 0


# ---- policy --------------------------------------------------------------------------------------


def test_without_a_policy_the_first_death_is_raised_with_its_cause() -> None:
    with WorkerPool(1, start_method="fork", policy=None) as pool:
        pool.start(serve)
        pool.workers[0].pipe.send(b"raise")
        with pytest.raises(WorkerDiedError, match="restart=None") as caught:
            pool.receive(0)
        assert caught.value.report.reason is ExitReason.EXCEPTION
        assert isinstance(caught.value.__cause__, ValueError)
        assert caught.value.__cause__.args == ("two", "args")
        pool.stop()
        pool.start(serve)
        assert echo(pool) == b"HELLO"


def test_each_death_and_each_replacement_is_one_record(
    pool: WorkerPool, caplog: pytest.LogCaptureFixture
) -> None:
    pid = pool.workers[0].pid
    end_worker(pool, 0, b"exit 3")
    pool.check()
    death, replacement = caplog.records
    assert (death.name, death.levelname) == ("supervisor", "WARNING")
    assert death.message == str(replace(pool.reports[0], replaced_s=None))
    assert (replacement.name, replacement.levelname) == ("supervisor", "WARNING")
    assert replacement.message.startswith(f"worker 0 (pid {pid}) was replaced in ")
    assert replacement.message.endswith(f" ms: its successor has pid {pool.workers[0].pid}")


def test_a_replacement_that_was_intended_is_told_at_a_lower_level(
    pool: WorkerPool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def describe(worker: PoolWorker, report: ExitReport) -> None:
        report.reason = ExitReason.MEMORY_LIMIT

    caplog.set_level(logging.INFO, "supervisor")
    monkeypatch.setattr(pool, "describe", describe)
    end_worker(pool, 0, b"exit 3")
    pool.check()
    assert [record.levelname for record in caplog.records] == ["INFO", "INFO"]


def test_a_crash_loop_ends() -> None:
    policy = RestartPolicy(max_restarts=2, backoff=0.0)
    with WorkerPool(1, start_method="fork", policy=policy) as pool:
        pool.start(serve)
        for count in range(1, 4):
            end_worker(pool, 0, b"exit 3")
            if count < 3:
                pool.check()
        with pytest.raises(WorkerDiedError, match="death number 3 within 60 s") as caught:
            pool.check()
        assert [report.exit_code for report in caught.value.reports] == [3, 3, 3]


def test_the_back_off_is_kept() -> None:
    policy = RestartPolicy(max_restarts=10, backoff=0.3)
    with WorkerPool(1, start_method="fork", policy=policy) as pool:
        pool.start(serve)
        end_worker(pool, 0, b"kill")
        pool.check()
        end_worker(pool, 0, b"kill")
        pool.check()
        assert pool.reports[1].replaced_s is not None
        assert pool.reports[1].replaced_s >= 0.3


def test_completed_tasks_reset_the_back_off() -> None:
    policy = RestartPolicy(max_restarts=10, backoff=60.0)
    with WorkerPool(2, start_method="fork", policy=policy) as pool:
        pool.start(toys.counts_its_tasks)
        for _ in range(3):
            assert echo(pool, 0) == b"HELLO"
            end_worker(pool, 1, b"kill")
            pool.check()
        assert len(pool.reports) == 3


# ---- start-up ------------------------------------------------------------------------------------


def test_a_startup_error_is_raised_as_itself(start_method: str) -> None:
    with WorkerPool(2, start_method=start_method) as pool:
        with pytest.raises(KeyError) as caught:
            pool.start(serve, toys.failing_setup)
        assert caught.value.args == ("no such\ndataset",)
        assert isinstance(caught.value.__cause__, WorkerTraceback)
        assert "in failing_setup" in str(caught.value.__cause__)
        assert "in worker" in str(caught.value.__cause__)


def test_a_startup_error_of_any_length_is_raised() -> None:
    with (
        WorkerPool(1, start_method="fork") as pool,
        pytest.raises(RuntimeError, match="ValueError in a worker: \u6f22") as caught,
    ):
        pool.start(serve, toys.wordy_setup)
    assert "in wordy_setup" in str(caught.value.__cause__)


def test_a_death_in_the_first_startup_is_raised_at_once(start_method: str) -> None:
    with (
        WorkerPool(2, start_method=start_method) as pool,
        pytest.raises(WorkerDiedError, match="before any worker was ready") as caught,
    ):
        pool.start(serve, toys.dying_setup)
    assert caught.value.report.reason is ExitReason.CRASHED
    assert "in dying_setup" in caught.value.report.traceback


def test_a_pool_whose_start_up_failed_can_start_again() -> None:
    with WorkerPool(2, start_method="fork") as pool:
        with pytest.raises(KeyError):
            pool.start(serve, toys.failing_setup)
        pool.stop()
        pool.start(serve)
        assert echo(pool) == b"HELLO"


@pytest.mark.parametrize("how", ["exits", "raises"])
def test_replacements_that_fail_to_start_three_times_in_a_row_end_it(how: str, tmp_path: Path) -> None:
    flag = tmp_path / "broken"

    def setup(context: WorkerContext) -> None:
        if flag.exists():
            if how == "exits":
                os._exit(7)
            raise ValueError("no longer there")

    with WorkerPool(1, start_method="fork", policy=EAGER) as pool:
        pool.start(serve, setup)
        flag.touch()
        pool.workers[0].pipe.send(b"kill")
        expected = WorkerDiedError if how == "exits" else ValueError
        with pytest.raises(expected) as caught:
            pool.receive(0)
        assert len(pool.reports) == 4
        if isinstance(caught.value, WorkerDiedError):
            assert "3 replacements in a row" in str(caught.value)
            assert [report.exit_code for report in caught.value.reports] == [None, 7, 7, 7]


MAIN = """
import sys
from supervisor.pool import WorkerPool
from supervisor.pool_worker import PoolWorker

class DatasetError(Exception):
    def __init__(self, path, line):
        super().__init__(path, line)
        self.path = path

def setup(context):
    raise DatasetError("a.jpg", 3)

with WorkerPool(1, start_method=sys.argv[1]) as pool:
    try:
        pool.start(lambda pipe, context: None, setup)
    except DatasetError as error:
        print(error.path, error.args)
"""


def test_an_exception_class_of_main_can_be_caught(start_method: str) -> None:
    command = [sys.executable, "-c", MAIN, start_method]
    outcome = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert outcome.stdout == "a.jpg ('a.jpg', 3)\n", outcome.stderr


@pytest.mark.parametrize("free", [8, 40])
@pytest.mark.parametrize("start_method", ["fork", "forkserver"])
def test_too_few_descriptors_for_so_many_workers_is_an_error_and_nothing_is_left(
    start_method: str, free: int
) -> None:
    def use() -> bool:
        _leave_descriptors(free)
        with (
            WorkerPool(60, start_method=start_method) as pool,
            pytest.raises(OSError, match=r"Too many open files|ulimit -n"),
        ):
            pool.start(serve)
        return wait_until(lambda: not living_descendants(), timeout_s=5.0)

    assert in_child(use)


def test_what_cannot_be_pickled_is_an_error_before_anything_starts() -> None:
    lock = threading.Lock()

    def setup(context: WorkerContext) -> None:
        lock.acquire()

    before = living_descendants()
    with WorkerPool(1) as pool, pytest.raises(PayloadError, match="lock"):
        pool.start(serve, setup)
    assert living_descendants() == before


def test_a_running_pool_cannot_be_started(pool: WorkerPool) -> None:
    with pytest.raises(RuntimeError, match=r"call stop\(\) first"):
        pool.start(serve)


def test_a_pool_that_was_never_started_says_so() -> None:
    with WorkerPool(1) as pool:
        for use in (pool.check, lambda: pool.wait(0.0), lambda: pool.receive(0)):
            with pytest.raises(RuntimeError, match=r"call start\(\) first"):
                use()


@pytest.mark.parametrize("start_method", ["fork", "forkserver"])
def test_a_pool_starts_anew_after_a_stop(start_method: str) -> None:
    with WorkerPool(2, start_method=start_method) as pool:
        supervisors = set()
        for _ in range(3):
            pool.start(serve)
            supervisors.add(toys.supervisor_pid(pool))
            assert [echo(pool, worker) for worker in range(2)] == [b"HELLO"] * 2
            pool.stop()
        assert len(supervisors) == (3 if start_method == "fork" else 1)
    assert [report.reason for report in pool.reports] == [ExitReason.CLOSED] * 6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_workers": 0}, "num_workers=0"),
        ({"num_workers": 1, "start_method": "thread"}, "start_method='thread'"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        WorkerPool(**arguments)  # type: ignore[arg-type]


# ---- deaths that nobody was looking at -----------------------------------------------------------


def test_workers_that_died_unseen_are_replaced_by_check(pool: WorkerPool) -> None:
    before = [worker.pid for worker in pool.workers.values()]
    for pid in before:
        kill_and_await_death(pid)
    pool.check()
    assert not {worker.pid for worker in pool.workers.values()} & {*before}
    assert [echo(pool, worker) for worker in range(2)] == [b"HELLO"] * 2


def test_a_death_unseen_is_raised_by_check_where_there_is_no_policy() -> None:
    with WorkerPool(2, start_method="fork", policy=None) as pool:
        pool.start(serve)
        kill_and_await_death(pool.workers[1].pid)
        with pytest.raises(WorkerDiedError, match="restart=None") as caught:
            pool.check()
        assert caught.value.report.worker == 1


def test_what_a_worker_sent_before_its_death_is_received() -> None:
    with WorkerPool(1, start_method="fork", policy=EAGER) as pool:
        pool.start(toys.says_goodbye)
        for count in range(1, 6):
            pool.workers[0].pipe.send(b"hello")
            await_reports(pool, count)  # the answer and the death come together
            assert pool.receive(0).data == b"HELLO"
            pool.check()


def test_what_the_last_worker_sent_comes_before_the_error() -> None:
    with WorkerPool(1, start_method="fork", policy=None) as pool:
        pool.start(toys.says_goodbye)
        pool.workers[0].pipe.send(b"hello")
        await_reports(pool, 1)
        assert pool.receive(0).data == b"HELLO"
        with pytest.raises(WorkerDiedError):
            pool.receive(0)


# ---- resources -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("start_method", ["fork", "forkserver"])
def test_fifty_replacements_leave_no_descriptor(start_method: str) -> None:
    with WorkerPool(2, start_method=start_method, policy=EAGER) as pool:
        pool.start(serve)
        end_worker(pool, 0, b"kill")
        pool.check()
        supervisor = toys.supervisor_pid(pool)
        before = len(descriptors_without_garbage()), _lasting_descriptors(supervisor)
        for count in range(2, 52):
            pool.workers[0].pipe.send(b"kill")
            await_reports(pool, count)
            pool.check()
        assert (len(open_descriptors()), _lasting_descriptors(supervisor)) == before


def _lasting_descriptors(pid: int) -> int:
    """Return how many descriptors a process has that it does not open for a moment only, to read a file."""
    return min(len(open_descriptors(pid)) for _ in range(20))


@pytest.mark.slow
@pytest.mark.parametrize("start_method", ["fork", "forkserver"])
def test_closed_pools_leave_no_descriptor_and_no_process(start_method: str) -> None:
    def use() -> None:
        with WorkerPool(2, start_method=start_method) as pool:
            pool.start(toys.sends_a_descriptor)
            while not all(worker.pipe.inbox for worker in pool.workers.values()):
                pool.wait(1.0)  # what came with a message that nobody takes is closed too

    use()
    before = descriptors_without_garbage(), living_descendants()
    for _ in range(3):
        use()
    assert (open_descriptors(), living_descendants()) == before


def test_a_lost_descriptor_of_a_replacement_is_a_clear_error() -> None:
    """The consumer has none left when the replacement's pipe arrives."""
    policy = RestartPolicy(backoff=0.5)
    with WorkerPool(1, start_method="fork", policy=policy) as pool:
        pool.start(serve)
        end_worker(pool, 0, b"kill")
        pool.check()
        end_worker(pool, 0, b"kill")
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (_lowest_free_descriptor(), hard))
        try:
            for _ in range(2):  # the second time says the same, and closes nothing that is another's by then
                with pytest.raises(MessageLost, match="ulimit -n"):
                    pool.check()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        bystander = os.open(os.devnull, os.O_RDONLY)
        with pytest.raises(MessageLost):
            pool.check()
        os.close(bystander)
        pool.stop()
        pool.start(serve)
        assert echo(pool) == b"HELLO"


def _leave_descriptors(count: int) -> None:
    """Let this process open so many more: there may be gaps between those that it has open."""
    taken = {*open_descriptors()}
    free = [fd for fd in range(len(taken) + count + 1) if fd not in taken]
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[count], hard))


def _lowest_free_descriptor() -> int:
    fd = os.open(os.devnull, os.O_RDONLY)
    os.close(fd)
    return fd


@pytest.mark.parametrize("start_method", START_METHODS)
def test_a_dropped_pool_leaves_no_process(start_method: str) -> None:
    before = {*living_descendants()}
    pool = WorkerPool(2, start_method=start_method)
    pool.start(serve)
    assert len({*living_descendants()} - before) == 3
    del pool
    assert wait_until(lambda: not {*living_descendants()} - before, timeout_s=2.0)


def test_a_dropped_lifeline_stops_the_workers(pool: WorkerPool) -> None:
    pool.lifeline = None
    await_reports(pool, 2)
    assert [report.reason for report in pool.reports] == [ExitReason.CLOSED] * 2


# ---- forks of the consumer -----------------------------------------------------------------------


def test_a_forked_consumer_cannot_use_the_pool(pool: WorkerPool) -> None:
    def use() -> list[str]:
        errors = []
        for name in ("check", "start", "wait", "receive"):
            arguments = {"check": (), "start": (serve,), "wait": (0.0,), "receive": (0,)}[name]
            try:
                getattr(pool, name)(*arguments)
            except RuntimeError as error:
                errors.append(str(error))
        pool.stop()
        pool.close()
        return errors

    errors = in_child(use)
    assert len(errors) == 4
    assert all("from which this process was forked: make a new one here" in error for error in errors)
    assert echo(pool) == b"HELLO"
    assert not pool.reports


def test_a_forked_consumer_holds_no_pipe_of_the_pools(pool: WorkerPool) -> None:
    assert pool.lifeline is not None
    assert pool._supervisor is not None
    channels = [pool._supervisor.control, *(worker.pipe for worker in pool.workers.values())]
    numbers = [pool.lifeline.fileno(), *(channel.fileno() for channel in channels)]
    pipes = {os.readlink(f"/proc/self/fd/{number}") for number in numbers}
    assert len(pipes) == 4
    assert not pipes & {*in_child(open_descriptors).values()}


def test_a_forked_consumer_can_have_a_pool_of_its_own(pool: WorkerPool) -> None:
    def use() -> bytes:
        with WorkerPool(1, start_method="fork") as own:
            own.start(serve)
            return echo(own)

    assert in_child(use) == b"HELLO"
    assert echo(pool) == b"HELLO"


def test_a_forked_child_that_lives_on_does_not_keep_the_workers() -> None:
    """Neither from seeing the end of their pipes nor, through the lifeline, the drop of their user."""
    with WorkerPool(2, start_method="fork") as pool:
        pool.start(serve)
        child = fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        try:
            pool.lifeline = None
            await_reports(pool, 2, timeout_s=5.0)
            pool.stop()
            pool.start(serve)
        finally:
            pool.close()
            assert not is_gone(child)
            kill_and_await_death(child)
            os.waitpid(child, 0)
    assert [report.exit_code for report in pool.reports[2:]] == [0, 0], "they saw the end of their pipes"


def test_a_forked_child_may_own_what_has_the_lifelines_number(pool: WorkerPool) -> None:
    """The lifeline was dropped before the fork, and another file is there now."""
    assert pool.lifeline is not None
    number = pool.lifeline.fileno()
    pool.lifeline = None
    fd = os.open("/dev/zero", os.O_RDONLY)
    os.dup2(fd, number)
    assert in_child(lambda: os.read(number, 1)) == b"\0"
    for owned in {fd, number}:
        os.close(owned)


@pytest.mark.parametrize("end", [WorkerPool.stop, WorkerPool.close])
def test_a_stop_that_was_interrupted_while_it_waited_can_be_repeated(
    end: Callable[[WorkerPool], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = iter([KeyboardInterrupt()])
    wait_for_end = SupervisorHandle.wait_for_end

    def interrupted_once(handle: SupervisorHandle, timeout_s: float) -> int:
        for error in waits:
            raise error
        return wait_for_end(handle, timeout_s)

    monkeypatch.setattr(SupervisorHandle, "wait_for_end", interrupted_once)
    with WorkerPool(1, start_method="fork") as pool:
        pool.start(serve)
        with pytest.raises(KeyboardInterrupt):
            end(pool)
        end(pool)
        assert [report.reason for report in pool.reports] == [ExitReason.CLOSED]
        pool.start(serve)
        assert echo(pool) == b"HELLO"
