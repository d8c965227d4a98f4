"""Workers that hang are ended, with their stack, and their work is tried again; slow consumers are none."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataloader import DataLoader, ExitReason, RestartPolicy, WorkerDiedError
from supervisor import hang
from supervisor.page import State
from tests.datasets import first_time
from tests.processes import is_gone, wait_until

pytestmark = pytest.mark.slow

TIMEOUT_S = 0.5
GRACE_S = 2.0  # within which a hung worker has ended, after the time-out
POLICY = RestartPolicy(backoff=0.0)


class Hangs:
    """Numbers; whoever loads sample 5 for the first time hangs."""

    def __init__(self, flag: Path, hang: Callable[[], object], length: int = 16) -> None:
        self.flag = flag
        self.hang = hang
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        if index == 5 and first_time(self.flag):
            self.hang()
        return index


def sleep() -> None:
    time.sleep(1000)


def wait_for_lock() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def spin() -> None:
    while True:
        pass


def hold_the_gil_in_c() -> None:
    mutex = ctypes.create_string_buffer(64)
    ctypes.PyDLL(None).pthread_mutex_lock(mutex)
    ctypes.PyDLL(None).pthread_mutex_lock(mutex)


def stop_oneself() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def ignore_sigterm() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(1000)


def leave_the_pipe_to_a_grandchild() -> None:
    subprocess.Popen(["sleep", "1000"], close_fds=False, start_new_session=True)
    time.sleep(1000)


HANGS = [sleep, wait_for_lock, spin, hold_the_gil_in_c, stop_oneself, ignore_sigterm]


def load(dataset: Any, **arguments: Any) -> tuple[list[list[int]], DataLoader]:
    given: dict[str, Any] = {
        "batch_size": 4,
        "num_workers": 2,
        "restart": POLICY,
        "timeout": TIMEOUT_S,
        **arguments,
    }
    loader = DataLoader(dataset, **given)
    with loader:
        return [batch.tolist() for batch in loader], loader


@pytest.mark.parametrize("hang", HANGS)
def test_a_hung_worker_is_ended_and_its_work_done_again(hang: Callable[[], object], tmp_path: Path) -> None:
    batches, loader = load(Hangs(tmp_path / "flag", hang), multiprocessing_context="fork")
    assert batches == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]
    (report,) = [report for report in loader.reports if report.is_death]
    assert (report.reason, report.confidence) == (ExitReason.HUNG, "proven")
    assert (report.batch, report.sample, report.signal) == (1, 5, signal.SIGKILL)
    assert hang.__name__ in report.traceback or (hang is stop_oneself and "it was stopped" in str(report))
    assert TIMEOUT_S <= report.uptime_s < TIMEOUT_S + GRACE_S
    assert f"timeout={TIMEOUT_S}" in str(report)


@pytest.mark.parametrize("start_method", ["forkserver", "spawn"])
def test_with_fresh_interpreters_too(start_method: str, tmp_path: Path) -> None:
    batches, loader = load(Hangs(tmp_path / "flag", sleep), multiprocessing_context=start_method)
    assert len(batches) == 4
    (report,) = [report for report in loader.reports if report.is_death]
    assert report.reason is ExitReason.HUNG
    assert "sleep" in report.traceback


def test_a_grandchild_that_keeps_the_pipe_open_delays_nothing(tmp_path: Path) -> None:
    start_s = time.monotonic()
    dataset = Hangs(tmp_path / "flag", leave_the_pipe_to_a_grandchild)
    batches, _ = load(dataset, multiprocessing_context="fork")
    assert len(batches) == 4
    assert time.monotonic() - start_s < TIMEOUT_S + GRACE_S + 1.0
    subprocess.run(["pkill", "-f", "^sleep 1000$"], check=False)


def hang_in_collate(samples: list[int]) -> list[int]:
    if samples[0] == 4:
        time.sleep(1000)
    return samples


def test_when_attempts_run_out_the_error_says_that_it_timed_out(tmp_path: Path) -> None:
    loader = DataLoader(
        range(16),
        batch_size=4,
        num_workers=1,
        collate_fn=hang_in_collate,
        timeout=0.3,
        multiprocessing_context="fork",
        restart=RestartPolicy(backoff=0.0, max_attempts=2),
    )
    with loader:
        iterator = iter(loader)
        assert next(iterator) == [0, 1, 2, 3]
        with pytest.raises(
            WorkerDiedError, match=r"DataLoader timed out after 0\.3 seconds\. Batch 1 has"
        ) as raised:
            next(iterator)
        assert list(iterator) == [[8, 9, 10, 11], [12, 13, 14, 15]]
    assert [report.reason for report in raised.value.reports] == [ExitReason.HUNG] * 2


def test_a_worker_that_is_stopped_before_it_takes_its_task_is_ended() -> None:
    loader = DataLoader(
        range(400),
        num_workers=1,
        timeout=TIMEOUT_S,
        multiprocessing_context="fork",
        restart=POLICY,
        persistent_workers=True,
    )
    with loader:
        assert len(list(loader)) == 400
        (worker,) = loader.workers()
        os.kill(worker.pid, signal.SIGSTOP)
        assert len(list(loader)) == 400
    (report,) = [report for report in loader.reports if report.is_death]
    assert (report.pid, report.reason) == (worker.pid, ExitReason.HUNG)


def test_a_worker_that_is_stopped_without_a_task_is_left_alone() -> None:
    loader = DataLoader(
        range(8), num_workers=1, timeout=0.3, multiprocessing_context="fork", persistent_workers=True
    )
    with loader:
        list(loader)
        (worker,) = loader.workers()
        assert wait_until(lambda: loader.workers()[0].state is State.IDLE, timeout_s=5.0)
        os.kill(worker.pid, signal.SIGSTOP)
        assert not wait_until(lambda: is_gone(worker.pid), timeout_s=1.0)
        os.kill(worker.pid, signal.SIGCONT)
        assert len(list(loader)) == 8
        assert [status.pid for status in loader.workers()] == [worker.pid]


def large(samples: list[int]) -> Any:
    return np.full(100_000, samples[0])


def test_a_slow_consumer_is_no_hang() -> None:
    """Each worker waits, its tasks done, or in a send: results of 40 KB fill the pipe."""
    loader = DataLoader(
        range(64),
        num_workers=1,
        prefetch_factor=32,
        collate_fn=lambda samples: [bytes(40_000), samples[0]],
        timeout=0.3,
        multiprocessing_context="fork",
    )
    with loader:
        iterator = iter(loader)
        numbers = [next(iterator)[1]]
        time.sleep(1.2)  # four times as long as a batch may take
        numbers += [batch[1] for batch in iterator]
        assert numbers == list(range(64))
        assert not [report for report in loader.reports if report.is_death]


def test_a_supervisor_that_was_stopped_takes_nobody_for_hung() -> None:
    def slow(samples: list[int]) -> int:
        time.sleep(0.1)
        return samples[0]

    loader = DataLoader(
        range(40), num_workers=1, collate_fn=slow, timeout=1.2, multiprocessing_context="fork"
    )
    with loader:
        iterator = iter(loader)
        numbers = [next(iterator)]
        (pool, _) = loader._live.pools[0]
        assert pool._supervisor is not None
        os.kill(pool._supervisor.pid, signal.SIGSTOP)
        time.sleep(2.0)
        os.kill(pool._supervisor.pid, signal.SIGCONT)
        numbers += list(iterator)
        assert numbers == list(range(40))
        assert not [report for report in loader.reports if report.is_death]


def test_a_batch_within_its_time_is_left_alone_however_often_it_comes_close() -> None:
    def slow(samples: list[int]) -> int:
        time.sleep(0.4)
        return samples[0]

    loader = DataLoader(range(5), collate_fn=slow, num_workers=1, timeout=0.8, multiprocessing_context="fork")
    with loader:
        assert list(loader) == list(range(5))
        assert not [report for report in loader.reports if report.is_death]


# ---- without a time-out --------------------------------------------------------------------------


def test_a_slow_task_is_told_of_once_with_its_stack_and_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(hang, "SLOW_S", 0.5)  # a supervisor under fork inherits it

    def dawdle() -> None:
        time.sleep(2.0)

    with caplog.at_level(logging.WARNING, logger="supervisor"):
        batches, loader = load(Hangs(tmp_path / "flag", dawdle), timeout=0, multiprocessing_context="fork")
    assert len(batches) == 4
    assert not [report for report in loader.reports if report.is_death]
    (record,) = caplog.records
    text = record.getMessage()
    assert "has been at batch 1, sample 5 for " in text
    assert "is left alone" in text
    assert "dawdle" in text


@pytest.mark.parametrize("timeout", [0, 60.0])
def test_a_replacement_that_starts_up_for_long_is_told_of(
    timeout: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(hang, "SLOW_S", 0.5)

    def dawdle_the_second_time(worker: int) -> None:
        if not first_time(tmp_path / "init"):
            time.sleep(1.5)

    with caplog.at_level(logging.WARNING, logger="supervisor"):
        batches, loader = load(
            Hangs(tmp_path / "flag", os.abort),
            num_workers=1,
            timeout=timeout,
            worker_init_fn=dawdle_the_second_time,
            multiprocessing_context="fork",
        )
    assert len(batches) == 4
    assert len([report for report in loader.reports if report.is_death]) == 1
    (text,) = [text for record in caplog.records if "left alone" in (text := record.getMessage())]
    assert "has been at its start-up for " in text
    assert "dawdle_the_second_time" in text


def test_a_stack_that_was_asked_for_does_not_pass_for_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A report has the stack of its own end, not of a slow task before it."""
    monkeypatch.setattr(hang, "SLOW_S", 0.3)

    def dawdle_and_crash() -> None:
        time.sleep(1.2)
        os.abort()

    batches, loader = load(
        Hangs(tmp_path / "flag", dawdle_and_crash), timeout=0, multiprocessing_context="fork"
    )
    assert len(batches) == 4
    (report,) = [report for report in loader.reports if report.is_death]
    assert (report.reason, report.confidence) == (ExitReason.CRASHED, "proven")
    assert report.traceback.startswith("Fatal Python error: Aborted")


def test_a_consumer_that_was_stopped_takes_nobody_for_hung() -> None:
    """Ctrl-Z, then fg."""
    script = """if True:
        import os, time
        from dataloader import DataLoader
        def slow(samples):
            time.sleep(0.05)
            return samples[0]
        arguments = dict(timeout=0.5, multiprocessing_context='fork')
        loader = DataLoader(range(40), num_workers=2, collate_fn=slow, **arguments)
        with loader:
            iterator = iter(loader)
            numbers = [next(iterator)]
            print("begun", flush=True)
            numbers += list(iterator)
            assert numbers == list(range(40)), numbers
            assert not [report for report in loader.reports if report.is_death], loader.reports
    """
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGSTOP)
    time.sleep(1.5)
    process.send_signal(signal.SIGCONT)
    assert process.wait(timeout=30) == 0
    process.stdout.close()
