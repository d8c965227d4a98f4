"""One worker as the supervisor sees it, with processes that are no pool's."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from supervisor import exceptions
from supervisor.page import DONE, ITEM, TASK, Page, PageFile, State
from supervisor.verdict import ExitReason
from supervisor.worker import MAX_STACK_BYTES, Remains, Worker
from tests.forks import fork
from tests.limits import descriptors_without_garbage
from tests.processes import is_gone, wait_until

SLACK_BYTES = 4 << 20  # the kernel counts pages in batches, and the peak in others


@pytest.fixture
def page() -> Iterator[Page]:
    file = PageFile.create(1)
    yield file.page(0)
    file.close()


def await_exit(worker: Worker) -> None:
    assert wait_until(worker.has_exited, timeout_s=5.0)


@contextmanager
def made_worker(page: Page, run: Callable[[Remains], object]) -> Iterator[Worker]:
    """Give a worker that leads its group and calls ``run``; it is killed at the end, if it is not reaped."""
    remains = Remains.create()
    ready_fd, write_fd = os.pipe()
    pid = fork()
    if pid == 0:
        os.setpgid(0, 0)
        os.write(write_fd, b"x")
        run(remains)
        os._exit(0)
    os.read(ready_fd, 1)
    os.close(ready_fd)
    os.close(write_fd)
    worker = Worker(3, pid, 1, page, remains)
    try:
        yield worker
    finally:
        if not is_gone(pid):
            worker.end(ExitReason.HUNG, "the test is over")
        if worker.status is None:
            worker.reap(asked=True)


def wait_for_a_signal(_: Remains) -> None:
    signal.pause()


def test_an_exited_worker_stays_until_it_is_reaped(page: Page) -> None:
    with made_worker(page, lambda _: os._exit(3)) as worker:
        await_exit(worker)
        os.kill(worker.pid, 0)  # its pid is still its own
        report, exception = worker.reap(asked=False)
        assert (report.worker, report.pid, report.exit_code) == (3, worker.pid, 3)
        assert (report.reason, exception) == (ExitReason.EXITED, None)
        with pytest.raises(ProcessLookupError):
            os.kill(worker.pid, 0)


def test_a_living_worker_has_not_exited(page: Page) -> None:
    with made_worker(page, wait_for_a_signal) as worker:
        assert not worker.has_exited()


def test_a_worker_that_we_ended_has_our_reason(page: Page) -> None:
    with made_worker(page, wait_for_a_signal) as worker:
        worker.end(ExitReason.HUNG, "it took 10 s")
        await_exit(worker)
        report, _ = worker.reap(asked=False)
        assert (report.reason, report.confidence) == (ExitReason.HUNG, "proven")
        assert report.evidence == ["the supervisor ended it", "it took 10 s"]


def test_an_end_that_came_first_is_not_ours(page: Page) -> None:
    with made_worker(page, lambda _: os._exit(3)) as worker:
        await_exit(worker)
        worker.end(ExitReason.HUNG, "it took 10 s")
        report, _ = worker.reap(asked=False)
        assert (report.reason, report.exit_code) == (ExitReason.EXITED, 3)


def test_what_it_left_is_in_the_report(page: Page) -> None:
    packed = exceptions.pack(KeyError("colour"), "in worker 3")

    def leave(remains: Remains) -> None:
        page.words[TASK], page.words[ITEM] = 17, 4
        page.enter(State.SAMPLE)
        os.pwrite(remains.stack, b"a stack", 0)
        os.pwrite(remains.words, packed, 0)
        os._exit(1)

    with made_worker(page, leave) as worker:
        await_exit(worker)
        report, exception = worker.reap(asked=False)
    assert exception == packed
    assert report.reason is ExitReason.EXCEPTION
    assert report.traceback == exceptions.text_of(packed)
    assert (report.state, report.task, report.item) == (State.SAMPLE, 17, 4)


def test_a_stack_is_the_traceback_of_a_crash_and_bounded(page: Page) -> None:
    def leave(remains: Remains) -> None:
        os.pwrite(remains.stack, b"Fatal Python error: \xff" + b"x" * 100_000, 0)
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGSEGV)

    with made_worker(page, leave) as worker:
        await_exit(worker)
        report, _ = worker.reap(asked=False)
    assert (report.reason, report.confidence) == (ExitReason.CRASHED, "proven")
    assert report.traceback.startswith("Fatal Python error: \ufffdxxx")
    assert len(report.traceback) == MAX_STACK_BYTES


@pytest.mark.parametrize("state", State)
def test_a_task_is_named_only_where_one_was_in_hand(page: Page, state: State) -> None:
    def leave(_: Remains) -> None:
        page.words[TASK], page.words[ITEM] = 17, 4
        page.enter(state)
        os._exit(1)

    with made_worker(page, leave) as worker:
        await_exit(worker)
        report, _ = worker.reap(asked=False)
    at_work = state in (State.SAMPLE, State.COLLATE, State.SENDING)
    assert report.task == (17 if at_work else None)
    assert report.item == (4 if state is State.SAMPLE else None)


def test_progress_is_asked_since_the_last_time(page: Page) -> None:
    with made_worker(page, wait_for_a_signal) as worker:
        assert not worker.has_progressed()
        page.words[DONE] += 2
        assert worker.has_progressed()
        assert not worker.has_progressed()


def test_a_signal_reaches_what_it_started(page: Page) -> None:
    pid_fd, write_fd = os.pipe()

    def start(_: Remains) -> None:
        child = os.fork()
        if child == 0:
            signal.pause()
        os.write(write_fd, str(child).encode())
        signal.pause()

    with made_worker(page, start) as worker:
        child = int(os.read(pid_fd, 20))
        worker.signal_group(signal.SIGTERM)
        assert wait_until(lambda: is_gone(child), timeout_s=5.0)
        await_exit(worker)
        report, _ = worker.reap(asked=True)
        assert (report.reason, report.signal) == (ExitReason.CLOSED, signal.SIGTERM)
    os.close(pid_fd)
    os.close(write_fd)


def test_what_it_started_ends_when_it_is_reaped(page: Page) -> None:
    pid_fd, write_fd = os.pipe()

    def start(_: Remains) -> None:
        child = os.fork()
        if child == 0:
            signal.pause()
        os.write(write_fd, str(child).encode())
        os._exit(0)

    with made_worker(page, start) as worker:
        child = int(os.read(pid_fd, 20))
        await_exit(worker)
        assert not is_gone(child)
        worker.reap(asked=False)
        assert wait_until(lambda: is_gone(child), timeout_s=5.0)
    os.close(pid_fd)
    os.close(write_fd)


def test_memory_is_read_before_the_end_and_peaks_after_it(page: Page) -> None:
    with made_worker(page, wait_for_a_signal) as worker:
        now = time.monotonic()
        worker.read_memory(now)
        worker.end(ExitReason.MEMORY_LIMIT, "it had 3 GiB")
        await_exit(worker)
        report, _ = worker.reap(asked=False)
    ((before_s, rss_bytes),) = report.readings
    assert 0 <= before_s < 10.0
    assert rss_bytes > 1 << 20
    assert report.peak_rss_bytes > rss_bytes - SLACK_BYTES


def test_a_reaped_worker_leaves_no_descriptor(page: Page) -> None:
    before = descriptors_without_garbage()
    with made_worker(page, lambda _: os._exit(0)) as worker:
        assert len(worker.descriptors()) == 3
        await_exit(worker)
        worker.reap(asked=False)
        assert descriptors_without_garbage() == before


def test_without_pidfds_it_is_all_the_same(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("supervisor.worker.open_pidfd", lambda pid: None)
    with made_worker(page, lambda _: os._exit(3)) as worker:
        assert len(worker.descriptors()) == 2
        await_exit(worker)
        assert worker.reap(asked=False)[0].exit_code == 3
