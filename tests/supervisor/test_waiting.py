"""What the consumer's one wait returns."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.channel import Channel
from supervisor.messages import Started
from supervisor.page import PageFile
from supervisor.pool_worker import PoolWorker
from supervisor.waiting import Bell, NotRunning, PipePoller


class Surroundings:
    """A control pipe and two workers' pipes, and the other ends of all three."""

    def __init__(self) -> None:
        self.control, self.supervisor = Channel.pair()
        file = PageFile.create(2)
        self.workers, self.far_ends = [], []
        for worker in range(2):
            near, far = Channel.pair()
            self.workers.append(PoolWorker(Started(worker, 100 + worker, 0), near, file.page(worker)))
            self.far_ends.append(far)
        file.close()
        self.bell = Bell()

    def poller(self) -> PipePoller:
        return PipePoller(self.control, self.workers, self.bell)


@pytest.fixture
def around() -> Surroundings:
    return Surroundings()


def test_nothing_to_read_is_nobody(around: Surroundings) -> None:
    assert around.poller().wait(0.0) == []


def test_who_has_something_to_read_is_named(around: Surroundings) -> None:
    poller = around.poller()
    around.far_ends[1].send(b"x")
    assert poller.wait(None) == [around.workers[1]]
    around.supervisor.send(b"x")
    around.far_ends[0].send(b"x")
    arrived: list[Any] = poller.wait(None)
    assert len(arrived) == 3
    assert {*arrived} == {None, *around.workers}


def test_an_end_is_told_until_it_is_noted(around: Surroundings) -> None:
    around.far_ends[0].close()
    assert around.poller().wait(None) == [around.workers[0]]
    assert not around.workers[0].pipe.drain()
    assert around.poller().wait(0.0) == []


def test_room_in_a_pipe_is_told_while_it_is_wanted(around: Surroundings) -> None:
    poller, worker = around.poller(), around.workers[0]
    while worker.pipe.try_send(bytes(10_000)):
        pass
    poller.want_room(worker, wanted=True)
    assert poller.wait(0.0) == []
    assert around.far_ends[0].drain()
    assert poller.wait(None) == [worker]
    poller.want_room(worker, wanted=False)
    assert poller.wait(0.0) == []


def test_room_in_a_pipe_that_has_ended_is_not_waited_for(around: Surroundings) -> None:
    around.far_ends[0].close()
    around.workers[0].pipe.drain()
    poller = around.poller()
    poller.want_room(around.workers[0], wanted=True)
    assert poller.wait(0.0) == []


def test_a_bell_ends_every_wait_until_it_is_silenced(around: Surroundings) -> None:
    poller = around.poller()
    around.bell.ring()
    around.bell.ring()
    for _ in range(2):
        with pytest.raises(NotRunning, match="closed by another thread"):
            poller.wait(None)
    around.bell.silence()
    around.bell.silence()
    assert poller.wait(0.0) == []
