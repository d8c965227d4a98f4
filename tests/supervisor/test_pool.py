"""Pool, supervisor and workers together: every end is noticed, explained and followed by policy."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from supervisor.channel import Channel
from supervisor.child import OOM_SCORE_RAISE, WorkerContext
from supervisor.exceptions import WorkerTraceback
from supervisor.page import State
from supervisor.payload import PayloadError
from supervisor.policy import RestartPolicy
from supervisor.pool import WorkerPool
from supervisor.report import ExitReason, WorkerDiedError
from tests.processes import is_gone, kill_and_await_death, living_descendants, open_descriptors, wait_until

START_METHODS = ["fork", "forkserver", "spawn"]
EAGER = RestartPolicy(max_restarts=1000, backoff=0.0)


def crash() -> None:
    ctypes.string_at(0)


def raise_error() -> None:
    raise ValueError("two", "args")


ENDS: dict[bytes, Callable[[], object]] = {
    b"kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    b"crash": crash,
    b"abort": os.abort,
    b"exit 0": lambda: os._exit(0),
    b"exit 3": lambda: os._exit(3),
    b"sys.exit": lambda: sys.exit(4),
    b"raise": raise_error,
}


def serve(pipe: Channel, context: WorkerContext) -> None:
    """Echo in capitals, or end as asked."""
    while (message := pipe.receive()) is not None:
        context.page.enter(State.SAMPLE)
        if message.data in ENDS:
            ENDS[message.data]()
        pipe.send(message.data.upper())
        context.page.enter(State.IDLE)


def await_reports(pool: WorkerPool, count: int, timeout_s: float = 5.0) -> None:
    end_s = time.monotonic() + timeout_s
    while len(pool.reports) < count:
        assert time.monotonic() < end_s, f"{len(pool.reports)} of {count} reports came"
        pool.wait(0.1)


@pytest.fixture(params=START_METHODS)
def start_method(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(2, start_method="fork", policy=EAGER) as pool:
        pool.start(serve)
        yield pool


def test_workers_answer_and_are_replaced(start_method: str) -> None:
    with WorkerPool(2, start_method=start_method, policy=EAGER) as pool:
        pool.start(serve)
        first = pool.workers[1].pid
        pool.workers[1].pipe.send(b"kill")
        await_reports(pool, 1)
        pool.check()
        assert pool.workers[1].pid != first
        assert pool.workers[1].restarts == 1
        pool.workers[1].pipe.send(b"hello")
        assert pool.receive(1).data == b"HELLO"
        assert pool.reports[0].replaced_s is not None
        pids = [worker.pid for worker in pool.workers.values()]
    assert wait_until(lambda: all(is_gone(pid) for pid in pids), timeout_s=1.0)
    assert [report.reason for report in pool.reports[1:]] == [ExitReason.CLOSED] * 2


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
def test_every_end_is_named(
    pool: WorkerPool, end: bytes, reason: ExitReason, code: int | None, number: int | None
) -> None:
    pid = pool.workers[0].pid
    pool.workers[0].pipe.send(end)
    await_reports(pool, 1)
    report = pool.reports[0]
    assert (report.worker, report.pid, report.reason) == (0, pid, reason)
    assert (report.exit_code, report.signal) == (code, number)
    assert report.state is State.SAMPLE
    assert report.peak_rss_bytes > 1 << 20


def test_a_crash_leaves_its_python_stack(pool: WorkerPool) -> None:
    pool.workers[0].pipe.send(b"crash")
    await_reports(pool, 1)
    assert "in crash" in pool.reports[0].traceback
    assert pool.reports[0].confidence == "proven"


def test_an_uncaught_exception_leaves_its_traceback(pool: WorkerPool) -> None:
    pool.workers[0].pipe.send(b"raise")
    await_reports(pool, 1)
    assert "ValueError: ('two', 'args')" in pool.reports[0].traceback


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
        pool.workers[0].pipe.send(b"again")
        assert pool.receive(0).data == b"AGAIN"


def test_a_crash_loop_ends() -> None:
    policy = RestartPolicy(max_restarts=2, backoff=0.0)
    with WorkerPool(1, start_method="fork", policy=policy) as pool:
        pool.start(serve)
        for count in range(1, 4):
            pool.workers[0].pipe.send(b"exit 3")
            await_reports(pool, count)
            if count < 3:
                pool.check()
        with pytest.raises(WorkerDiedError, match="death number 3 within 60 s") as caught:
            pool.check()
        assert [report.exit_code for report in caught.value.reports] == [3, 3, 3]


def failing_setup(context: WorkerContext) -> None:
    raise KeyError("no such\ndataset")


def dying_setup(context: WorkerContext) -> None:
    os.abort()


def test_a_startup_error_is_raised_as_itself(start_method: str) -> None:
    with WorkerPool(2, start_method=start_method) as pool:
        with pytest.raises(KeyError) as caught:
            pool.start(serve, failing_setup)
        assert caught.value.args == ("no such\ndataset",)
        assert isinstance(caught.value.__cause__, WorkerTraceback)
        assert "in failing_setup" in str(caught.value.__cause__)


def test_a_death_in_the_first_startup_is_raised_at_once(start_method: str) -> None:
    with (
        WorkerPool(2, start_method=start_method) as pool,
        pytest.raises(WorkerDiedError, match="before any worker was ready"),
    ):
        pool.start(serve, dying_setup)


def test_replacements_that_fail_to_start_three_times_in_a_row_end_it(tmp_path: Path) -> None:
    flag = tmp_path / "broken"

    def setup(context: WorkerContext) -> None:
        if flag.exists():
            os._exit(7)

    with WorkerPool(1, start_method="fork", policy=EAGER) as pool:
        pool.start(serve, setup)
        flag.touch()
        pool.workers[0].pipe.send(b"kill")
        with pytest.raises(WorkerDiedError, match="3 replacements in a row"):
            pool.receive(0)


def test_what_cannot_be_pickled_is_an_error_before_anything_starts() -> None:
    lock = threading.Lock()

    def setup(context: WorkerContext) -> None:
        lock.acquire()

    with WorkerPool(1) as pool, pytest.raises(PayloadError, match="lock"):
        pool.start(serve, setup)
    assert not living_descendants()


def test_a_worker_that_died_unseen_is_replaced_by_check(pool: WorkerPool) -> None:
    pid = pool.workers[0].pid
    kill_and_await_death(pid)
    pool.check()
    assert pool.workers[0].pid != pid


def stubborn(pipe: Channel, context: WorkerContext) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    pipe.send(b"deaf")
    while True:
        time.sleep(60)


def test_an_ordered_stop_ends_a_worker_that_ignores_it() -> None:
    with WorkerPool(3, start_method="fork", close_s=0.1, terminate_s=0.1) as pool:
        pool.start(stubborn)
        for worker in range(3):
            assert pool.receive(worker).data == b"deaf"
        start_s = time.monotonic()
    assert time.monotonic() - start_s < 1.0
    assert {report.signal for report in pool.reports} == {signal.SIGKILL}
    assert {report.reason for report in pool.reports} == {ExitReason.CLOSED}


def starts_a_subprocess(pipe: Channel, context: WorkerContext) -> None:
    child = subprocess.Popen(["sleep", "60"], close_fds=False)
    pipe.send(str(child.pid).encode())
    pipe.receive()
    os.kill(os.getpid(), signal.SIGKILL)


def test_what_a_worker_started_ends_with_it() -> None:
    with WorkerPool(1, start_method="fork", policy=EAGER) as pool:
        pool.start(starts_a_subprocess)
        child = int(pool.receive(0).data)
        pool.workers[0].pipe.send(b"die")
        await_reports(pool, 1)
        assert wait_until(lambda: is_gone(child), timeout_s=1.0)


def test_a_grandchild_that_holds_the_pipe_delays_nothing(tmp_path: Path) -> None:
    note = tmp_path / "pid"

    def leaves_a_grandchild(pipe: Channel, context: WorkerContext) -> None:
        grandchild = os.fork()
        if grandchild == 0:
            os.setsid()  # out of reach of its group's end
            time.sleep(60)
            os._exit(0)
        note.write_text(str(grandchild))
        os.kill(os.getpid(), signal.SIGKILL)

    with WorkerPool(1, start_method="fork", policy=RestartPolicy(max_restarts=0)) as pool:
        pool.start(leaves_a_grandchild)
        start_s = time.monotonic()
        await_reports(pool, 1, timeout_s=1.0)
        assert time.monotonic() - start_s < 1.0
    grandchild = int(note.read_text())
    assert not is_gone(grandchild), "it was to hold the pipe all the while"
    os.kill(grandchild, signal.SIGKILL)


def closes_its_pipe(pipe: Channel, context: WorkerContext) -> None:
    pipe.close()
    time.sleep(60)


def test_a_worker_whose_pipe_ended_though_it_lives_is_ended() -> None:
    policy = RestartPolicy(max_restarts=0)
    with WorkerPool(1, start_method="fork", policy=policy) as pool:
        pool.start(closes_its_pipe)
        await_reports(pool, 1, timeout_s=3.0)
        assert "its pipe had ended though it was alive" in pool.reports[0].evidence


def test_a_dropped_pool_leaves_no_process(start_method: str) -> None:
    pool = WorkerPool(2, start_method=start_method)
    pool.start(serve)
    assert len(living_descendants()) == 3
    del pool
    assert wait_until(lambda: not living_descendants(), timeout_s=2.0)


def test_a_forked_consumer_cannot_use_and_does_not_disturb_the_pool(pool: WorkerPool) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            pool.check()
        except RuntimeError as error:
            os._exit(0 if "forked" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    pool.workers[0].pipe.send(b"still here")
    assert pool.receive(0).data == b"STILL HERE"
    assert not pool.reports


def test_fifty_replacements_leave_no_descriptor(pool: WorkerPool) -> None:
    gc.collect()  # what earlier tests left in cycles
    before = len(open_descriptors())
    for count in range(1, 51):
        pool.workers[0].pipe.send(b"kill")
        await_reports(pool, count)
        pool.check()
    assert len(open_descriptors()) == before


def tells_its_oom_score(pipe: Channel, context: WorkerContext) -> None:
    with open("/proc/self/oom_score_adj", "rb") as file:
        pipe.send(file.read().strip())
    pipe.receive()


def test_the_kernel_would_pick_a_worker_before_the_consumer() -> None:
    with open("/proc/self/oom_score_adj") as file:
        ours = int(file.read())
    with WorkerPool(1, start_method="fork") as pool:
        pool.start(tells_its_oom_score)
        assert int(pool.receive(0).data) == min(1000, ours + OOM_SCORE_RAISE)


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


SCRIPT = """
import time
from dataloader import DataLoader

class Slow:
    def __len__(self):
        return 100
    def __getitem__(self, index):
        time.sleep(60 if index > 3 else 0)
        return index

for batch in DataLoader(Slow(), num_workers=2, multiprocessing_context={start_method!r}):
    print("batch", flush=True)
"""


def test_ctrl_c_ends_everything_at_once_with_one_traceback(start_method: str) -> None:
    script = SCRIPT.format(start_method=start_method)
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "batch\n"
        ours = living_descendants(process.pid)
        start_s = time.monotonic()
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        process.wait(timeout=5)
        assert time.monotonic() - start_s < 1.0
        assert wait_until(lambda: all(is_gone(pid) for pid in ours), timeout_s=1.0)
        errors = process.stderr.read()
    assert errors.count("Traceback") == 1
    assert errors.rstrip().endswith("KeyboardInterrupt")
