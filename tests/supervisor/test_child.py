"""What a worker process is like, around the user's function."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from supervisor import child
from supervisor.child import OOM_SCORE_RAISE, WorkerContext
from supervisor.pool import WorkerPool
from supervisor.verdict import ExitReason
from tests.forks import in_child
from tests.processes import open_descriptors
from tests.supervisor.toys import START_METHODS, answer, ask, oom_score, supervisor_pid


@pytest.fixture(scope="module", params=START_METHODS)
def pool(request: pytest.FixtureRequest) -> Iterator[WorkerPool]:
    """Workers that answer questions about themselves; one that cannot is not replaced."""
    with WorkerPool(2, start_method=request.param, policy=None) as pool:
        pool.start(answer)
        yield pool


def test_a_worker_knows_who_it_is(pool: WorkerPool) -> None:
    assert [ask(pool, "ids", worker) for worker in range(2)] == [[0, 2], [1, 2]]


def test_a_worker_leads_a_group_of_its_own(pool: WorkerPool) -> None:
    for worker in pool.workers.values():
        assert ask(pool, "pid and group", worker.worker) == [worker.pid, worker.pid]


def test_a_worker_dies_with_its_supervisor(pool: WorkerPool) -> None:
    assert ask(pool, "parent death signal") == signal.SIGKILL


def test_a_worker_has_no_handlers_of_the_supervisors(pool: WorkerPool) -> None:
    assert ask(pool, "signals") == [True, True]


def test_a_worker_reads_nothing_from_the_terminal(pool: WorkerPool) -> None:
    assert ask(pool, "stdin") == ""


def test_the_kernel_would_pick_a_worker_before_the_consumer(pool: WorkerPool) -> None:
    assert ask(pool, "oom score") == min(1000, oom_score("self") + OOM_SCORE_RAISE)
    assert oom_score(supervisor_pid(pool)) == oom_score("self")


def test_a_worker_has_one_pipe_and_nothing_of_its_sibling(pool: WorkerPool) -> None:
    ours = [*open_descriptors().values()]
    for worker in range(2):
        names = [name for name in ask(pool, "descriptors", worker) if name not in ours]
        assert sum(name.startswith("socket:") for name in names) == 1
        assert sum(name.startswith("anon_inode:[pidfd]") for name in names) == 0
        assert sum("worker-stack" in name for name in names) == 1
        assert sum("worker-words" in name for name in names) == 1


def test_random_modules_are_there_before_the_first_task(pool: WorkerPool) -> None:
    if pool._settings.start_method == "forkserver":
        assert ask(pool, "modules") == ["numpy.random"]


def test_a_worker_can_start_processes(pool: WorkerPool) -> None:
    assert ask(pool, "run a process") == 0


def test_a_worker_of_a_daemonic_process_can_start_processes() -> None:
    context = multiprocessing.get_context("fork")
    near, far = context.Pipe()

    def use() -> None:
        with WorkerPool(1, start_method="fork", policy=None) as pool:
            pool.start(answer)
            far.send(ask(pool, "run a process"))

    def in_daemon() -> object:
        process = context.Process(target=use, daemon=True)
        process.start()
        process.join()
        return near.recv() if near.poll() else f"it exited with {process.exitcode}"

    assert in_child(in_daemon) == 0


def test_workers_of_one_pool_hold_nothing_of_another(pool: WorkerPool) -> None:
    with WorkerPool(1, start_method="fork", policy=None) as other:
        other.start(answer)
        theirs = {name for name in ask(other, "descriptors") if name.startswith("socket:")}
    ours = {
        os.readlink(f"/proc/self/fd/{channel.fileno()}")
        for channel in [*(worker.pipe for worker in pool.workers.values())]
    }
    assert len(theirs) == 1
    assert not theirs & ours


# ---- ends ----------------------------------------------------------------------------------------

SCRIPT = """
import atexit, sys
from supervisor.pool import WorkerPool

def serve(pipe, context):
    atexit.register(lambda: print("exit handlers ran", file=sys.stderr))
    print("from the worker")  # stays in the buffer until the end
    while pipe.receive() is not None:
        {end}

pool = WorkerPool(1, start_method={start_method!r}, policy=None)
print("from the consumer", end=" ")
pool.start(serve)
if {code}:
    pool.workers[0].pipe.send(b"end")
    while not pool.reports:
        pool.wait(1.0)
pool.close()
print(pool.reports[0].exit_code)
"""


@pytest.mark.parametrize("start_method", ["fork", "forkserver"])
@pytest.mark.parametrize(
    ("end", "code"),
    [("pass", 0), ("sys.exit(300)", 44), ("sys.exit('why')", 1), ("1 / 0", 1)],
)
def test_a_worker_writes_out_what_it_printed(end: str, code: int, start_method: str) -> None:
    script = SCRIPT.format(end=end, code=code, start_method=start_method)
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    outcome = subprocess.run(
        [sys.executable, "-c", script], env=buffered, capture_output=True, text=True, timeout=60
    )
    assert outcome.stdout.count("from the worker\n") == 1
    assert outcome.stdout.count("from the consumer ") == 1, "what was to be written is not inherited"
    assert outcome.stdout.endswith(f"{code}\n")
    assert "exit handlers ran" not in outcome.stderr
    assert ("why" in outcome.stderr) == ("why" in end)


def test_an_exception_at_the_very_end_is_no_exit_with_code_0(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ValueError("at the very end")

    monkeypatch.setattr(child, "_wind_up", fail)
    with WorkerPool(1, start_method="fork") as pool:
        pool.start(answer)
    (report,) = pool.reports
    assert (report.reason, report.exit_code) == (ExitReason.EXCEPTION, 1)
    assert "at the very end" in report.traceback


def test_a_context_is_plain_data() -> None:
    assert set(WorkerContext.__dataclass_fields__) == {"worker", "num_workers", "page"}
