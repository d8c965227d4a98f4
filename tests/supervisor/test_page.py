"""What a worker writes into the page is read by others, and after its death."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from supervisor.page import CANCELLED, DONE, ITEM, RECORD_BYTES, TASK, PageFile, State
from tests.forks import fork

WORKERS = 3


@pytest.fixture
def file() -> Iterator[PageFile]:
    file = PageFile.create(WORKERS)
    yield file
    file.close()


def test_a_new_record_is_empty(file: PageFile) -> None:
    page = file.page(2)
    assert (page.state, page.task, page.item, page.done, page.ready_s) == (State.STARTING, -1, -1, 0, 0.0)


def test_records_are_apart(file: PageFile) -> None:
    for worker in range(WORKERS):
        page = file.page(worker)
        for field in range(RECORD_BYTES // 8):
            page.words[field] = 1000 * worker + field
    for worker in range(WORKERS):
        words = file.page(worker).words.tolist()
        assert words == [1000 * worker + field for field in range(RECORD_BYTES // 8)]


@pytest.mark.parametrize("state", State)
def test_a_state_is_entered_with_its_time(file: PageFile, state: State) -> None:
    before_s = time.monotonic()
    file.page(1).enter(state)
    assert file.page(1).state is state
    assert before_s <= file.page(1).since_s <= time.monotonic()


def test_ready_is_a_time_and_means_idle(file: PageFile) -> None:
    before_s = time.monotonic()
    page = file.page(0)
    page.ready(unshared_bytes=4096)
    assert (page.state, page.unshared_bytes) == (State.IDLE, 4096)
    assert before_s <= page.ready_s <= time.monotonic()


def test_a_new_worker_finds_nothing_of_the_last_but_what_is_cancelled(file: PageFile) -> None:
    page = file.page(1)
    page.ready()
    page.words[TASK], page.words[ITEM], page.words[DONE], page.words[CANCELLED] = 5, 6, 7, 8
    page.reset()
    assert (page.state, page.task, page.item, page.done, page.ready_s) == (State.STARTING, -1, -1, 0, 0.0)
    assert page.words[CANCELLED] == 8


def test_what_a_killed_process_wrote_is_read_by_another_mapping(file: PageFile) -> None:
    other = PageFile(os.dup(file.fd))
    pid = fork()
    if pid == 0:
        page = file.page(1)
        page.words[TASK], page.words[ITEM] = 41, 3
        page.enter(State.SAMPLE)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    page = other.page(1)
    other.close()
    assert (page.state, page.task, page.item) == (State.SAMPLE, 41, 3)


def test_pages_in_use_outlive_the_descriptor() -> None:
    file = PageFile.create(1)
    page = file.page(0)
    file.close()
    page.enter(State.COLLATE)
    assert page.state is State.COLLATE
