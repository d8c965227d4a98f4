"""The worker process in reserve: when there is one, who gets it, and that it never outlives its use."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor import loop, reserve
from supervisor.child import WorkerContext
from supervisor.policy import RestartPolicy
from supervisor.pool import WorkerPool
from tests.processes import is_gone, kill_and_await_death, wait_until
from tests.supervisor.toys import (
    EAGER,
    await_replacement,
    await_spare,
    end_worker,
    pids,
    serve,
    spares,
    supervisor_pid,
)

FORKED = pytest.mark.parametrize("start_method", ["fork", "forkserver"])


@pytest.fixture
def forked() -> Iterator[WorkerPool]:
    with WorkerPool(2, start_method="fork", policy=EAGER) as pool:
        yield pool


@FORKED
def test_the_first_death_brings_a_spare_and_the_second_uses_it(start_method: str) -> None:
    with WorkerPool(2, start_method=start_method, policy=EAGER) as pool:
        pool.start(serve)
        assert not spares(pool)
        end_worker(pool, 0, b"kill")
        spare = await_spare(pool)
        end_worker(pool, 1, b"kill")
        assert await_replacement(pool, 1) == spare
        pool.workers[1].pipe.send(b"hello")
        assert pool.receive(1).data == b"HELLO"
        assert pool.workers[1].restarts == 1
        everybody = [*pids(pool), await_spare(pool)]
    assert all(map(is_gone, everybody))


def test_a_worker_out_of_reserve_is_explained_like_any_other(forked: WorkerPool) -> None:
    forked.start(serve)
    end_worker(forked, 0, b"kill")
    await_spare(forked)
    for ending in (b"kill", b"raise"):
        end_worker(forked, 1, ending)
        await_replacement(forked, 1)
    *_, killed, raised = forked.reports
    assert (killed.worker, killed.signal) == (1, signal.SIGKILL)
    assert "in worker 1" in raised.traceback
    assert "ValueError: ('two', 'args')" in raised.traceback


def test_a_spare_that_has_died_is_not_missed(forked: WorkerPool) -> None:
    forked.start(serve)
    end_worker(forked, 0, b"kill")
    spare = await_spare(forked)
    kill_and_await_death(spare)
    end_worker(forked, 1, b"exit 3")
    assert await_replacement(forked, 1) != spare
    assert len(forked.reports) == 2


def test_nobody_waits_in_reserve_for_ever(forked: WorkerPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reserve, "RESERVE_S", 0.5)
    forked.start(serve)
    end_worker(forked, 0, b"kill")
    spare = await_spare(forked)
    assert wait_until(lambda: is_gone(spare), timeout_s=5.0)
    assert not spares(forked)


def test_an_order_to_stop_ends_the_spare_and_other_workers_can_start() -> None:
    with WorkerPool(1, policy=EAGER) as pool:
        pool.start(serve)
        end_worker(pool, 0, b"kill")
        spare = await_spare(pool)
        pool.stop()
        pool.start(serve)
        assert is_gone(spare)
        assert not spares(pool)


def test_a_spare_dies_with_its_supervisor(forked: WorkerPool) -> None:
    forked.start(serve)
    end_worker(forked, 0, b"kill")
    spare = await_spare(forked)
    os.kill(supervisor_pid(forked), signal.SIGKILL)
    assert wait_until(lambda: is_gone(spare), timeout_s=1.0)


@pytest.mark.parametrize(
    ("start_method", "policy"), [("spawn", EAGER), ("fork", None)], ids=["fresh interpreters", "no restart"]
)
def test_there_is_none_where_it_would_cost_much_or_help_nobody(
    start_method: str, policy: RestartPolicy | None
) -> None:
    with WorkerPool(2, start_method=start_method, policy=policy) as pool:
        pool.start(serve)
        end_worker(pool, 1, b"kill")
        if policy is not None:
            await_replacement(pool, 1)
        assert not wait_until(lambda: spares(pool), timeout_s=0.5)


class Notes:
    """Notes in a file who was set up and who was warmed up, by pid."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def note(self, what: str) -> None:
        with self.file.open("a") as file:
            file.write(f"{what} {os.getpid()}\n")

    def set_up(self, context: WorkerContext) -> None:
        self.note(f"set up {context.worker}")

    def warm_up(self) -> None:
        self.note("warmed")

    def read(self) -> list[str]:
        return self.file.read_text().splitlines() if self.file.exists() else []


@FORKED
def test_only_a_spare_is_warmed_up_and_it_is_set_up_as_the_worker_that_it_becomes(
    tmp_path: Path, start_method: str
) -> None:
    notes = Notes(tmp_path / "notes")
    with WorkerPool(2, start_method=start_method, policy=EAGER) as pool:
        pool.start(serve, notes.set_up, notes.warm_up)
        end_worker(pool, 0, b"kill")
        spare = await_spare(pool)
        assert wait_until(lambda: f"warmed {spare}" in notes.read(), timeout_s=5.0)
        assert [line for line in notes.read() if line.startswith("warmed")] == [f"warmed {spare}"]
        end_worker(pool, 1, b"kill")
        await_replacement(pool, 1)
        assert f"set up 1 {spare}" in notes.read()


class Heavy:
    """A job whose pickle is large."""

    def __init__(self, notes: Notes) -> None:
        self.notes = notes
        self.words = "x" * (loop.CHEAP_BYTES + 1)

    def warm_up(self) -> None:
        self.notes.note("warmed")


def test_a_spare_does_not_load_what_is_large(tmp_path: Path) -> None:
    notes = Notes(tmp_path / "notes")
    with WorkerPool(1, policy=EAGER) as pool:
        pool.start(serve, None, Heavy(notes).warm_up)
        end_worker(pool, 0, b"kill")
        spare = await_spare(pool)
        end_worker(pool, 0, b"kill")
        assert await_replacement(pool, 0) == spare
    assert not notes.read()


class FailsWhenSpare:
    """A job that only the first two who load it can load."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __setstate__(self, state: dict[str, Path]) -> None:
        self.__dict__.update(state)
        (self.folder / str(os.getpid())).touch()
        if len(list(self.folder.iterdir())) == 3:
            raise OSError("the third time it fails")

    def set_up(self, context: WorkerContext) -> None: ...


def test_a_spare_that_cannot_load_its_job_is_nobodys_death(tmp_path: Path) -> None:
    with WorkerPool(1, policy=EAGER) as pool:
        pool.start(serve, FailsWhenSpare(tmp_path).set_up)
        end_worker(pool, 0, b"kill")
        await_replacement(pool, 0)
        assert wait_until(lambda: len(list(tmp_path.iterdir())) == 3, timeout_s=5.0)
        assert wait_until(lambda: not spares(pool), timeout_s=5.0)
        end_worker(pool, 0, b"kill")
        await_replacement(pool, 0)
        assert len(pool.reports) == 2
