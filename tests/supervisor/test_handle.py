"""The supervisor process as the consumer holds it."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from supervisor.channel import Channel, close_all, opened
from supervisor.handle import SupervisorHandle
from supervisor.messages import Check, Command, Event, Ready, Settings, Start, Started, Stop, Stopped, decode
from supervisor.page import PageFile
from supervisor.payload import Payload
from supervisor.policy import RestartPolicy
from supervisor.verdict import LOST
from tests.forks import fork, in_child
from tests.limits import descriptors_without_garbage
from tests.processes import is_gone, wait_until
from tests.supervisor.toys import serve


def settings(start_method: str) -> Settings:
    return Settings(os.getpid(), start_method, RestartPolicy(), 0.25, 0.25, 0.25)


@contextmanager
def handle_of(run: Callable[[Channel], object]) -> Iterator[SupervisorHandle]:
    """Give the handle of a process that is no supervisor: it calls ``run`` with its end of the pipe."""
    ours, theirs = Channel.pair()
    pid = fork()
    if pid == 0:
        ours.close()
        run(theirs)
        os._exit(0)
    theirs.close()
    handle = SupervisorHandle(pid, ours)
    try:
        yield handle
    finally:
        if not is_gone(pid):
            os.kill(pid, signal.SIGKILL)
        handle.wait_for_end(5.0)


def wait_for_the_end(pipe: Channel) -> None:
    while pipe.receive() is not None:
        pass


def commands(channel: Channel) -> list[tuple[int, Command | Event]]:
    """Take what has arrived; close the descriptors that came along."""
    taken, descriptors = arrived(channel)
    close_all(descriptors)
    return taken


def arrived(channel: Channel) -> tuple[list[tuple[int, Command | Event]], list[int]]:
    """Take what has arrived, and the descriptors that came along."""
    channel.drain()
    taken, kept = [], []
    while channel.inbox:
        data, descriptors = opened(channel.inbox.popleft())
        taken.append(decode(data))
        kept += descriptors
    return taken, kept


# ---- with a real supervisor ----------------------------------------------------------------------


@pytest.mark.parametrize("start_method", ["fork", "forkserver"])
def test_a_supervisor_serves_and_ends_when_its_pipe_closes(start_method: str) -> None:
    pages = PageFile.create(2)
    payload = None
    if start_method == "fork":
        handle = SupervisorHandle.fork(settings("fork"), pages.fd, (None, serve))
    else:
        handle = SupervisorHandle.spawn(settings("forkserver"), pages.fd)
        payload = Payload.pack((None, serve))
    lifeline = handle.start_workers(1, 2, payload)
    events: list[Command | Event] = []
    pipes: list[int] = []  # kept open: a worker whose pipe ends need not say that it is ready

    def are_ready() -> bool:
        taken, descriptors = arrived(handle.control)
        events.extend(event for _, event in taken)
        pipes.extend(descriptors)
        return sum(isinstance(event, Ready) for event in events) == 2

    assert wait_until(are_ready, timeout_s=20.0)
    started = [event for event in events if isinstance(event, Started)]
    assert [event.worker for event in started] == [0, 1]
    assert not lifeline.closed
    assert handle.part(5.0) == 0
    assert all(is_gone(event.pid) for event in started)
    close_all(pipes)
    pages.close()


@pytest.mark.parametrize("wait_s", [0.0, 60.0], ids=["of nobody", "of live workers"])
def test_the_end_of_the_lifeline_is_said_with_the_runs_number(wait_s: float) -> None:
    pages = PageFile.create(1)
    handle = SupervisorHandle.fork(settings("fork"), pages.fd, (None, serve))
    lifeline = handle.start_workers(5, 1 if wait_s else 0, None)
    events: list[Command | Event] = []
    pipes: list[int] = []

    def has_come(kind: type[Event]) -> bool:
        taken, descriptors = arrived(handle.control)
        events.extend(event for _, event in taken)
        pipes.extend(descriptors)
        return any(isinstance(event, kind) for event in events)

    if wait_s:
        assert wait_until(lambda: has_come(Ready), timeout_s=5.0)
    lifeline.close()
    assert wait_until(lambda: has_come(Stopped), timeout_s=5.0)
    assert events[-1] == Stopped(5)
    handle.part(5.0)
    close_all(pipes)
    pages.close()


# ---- partings ------------------------------------------------------------------------------------


def test_parting_gives_the_status() -> None:
    def run(pipe: Channel) -> None:
        wait_for_the_end(pipe)
        os._exit(3)

    with handle_of(run) as handle:
        assert os.waitstatus_to_exitcode(handle.part(5.0)) == 3
        assert handle.wait_for_end(0.0) == 3 << 8, "the status can be asked for again"


def test_who_is_late_is_killed() -> None:
    with handle_of(lambda pipe: time.sleep(60)) as handle:
        start_s = time.monotonic()
        assert handle.part(0.2) == signal.SIGKILL
        assert 0.2 <= time.monotonic() - start_s < 2.0


def test_a_status_that_somebody_else_took_is_no_hindrance() -> None:
    with handle_of(wait_for_the_end) as handle:
        handle.control.close()
        os.waitpid(handle.pid, 0)
        assert handle.wait_for_end(5.0) == LOST


# ---- what waits to be sent -----------------------------------------------------------------------


def test_commands_wait_for_room_and_keep_their_order() -> None:
    with handle_of(lambda pipe: time.sleep(60)) as handle:
        near, far = Channel.pair()
        handle.control = near
        while near.try_send(bytes(10_000)):
            pass
        handle.send(Check())
        handle.send(Stop())
        assert handle.has_unsent
        far.drain()
        far.inbox.clear()
        handle.flush()
        assert not handle.has_unsent
        assert commands(far) == [(1, Check()), (2, Stop())]


def test_a_start_that_waits_for_room_brings_its_descriptors_later() -> None:
    with handle_of(lambda pipe: time.sleep(60)) as handle:
        near, far = Channel.pair()
        handle.control = near
        while near.try_send(bytes(10_000)):
            pass
        lifeline = handle.start_workers(1, 2, None)
        assert handle.has_unsent
        far.drain()
        far.inbox.clear()
        handle.flush()
        far.drain()
        data, (received,) = opened(far.inbox.popleft())
        assert decode(data) == (1, Start(1, 2, None, None))
        lifeline.close()
        assert select.select([received], [], [], 5.0)[0] == [received], "it is the lifeline's other end"
        os.close(received)


def test_what_waits_for_one_that_has_gone_is_dropped() -> None:
    with handle_of(lambda pipe: None) as handle:
        near, far = Channel.pair()
        handle.control = near
        far.close()
        handle.send(Check())
        assert not handle.has_unsent
        assert handle.control.ended


# ---- payload and lifeline ------------------------------------------------------------------------


def test_an_equal_payload_is_sent_once() -> None:
    with handle_of(lambda pipe: time.sleep(60)) as handle:
        near, far = Channel.pair()
        handle.control = near
        before = descriptors_without_garbage()
        for run, value in enumerate(["a", "a", "b"], 1):
            handle.start_workers(run, 1, Payload.pack(value)).close()
        sent = [command.payload for _, command in commands(far) if isinstance(command, Start)]
        assert [payload is None for payload in sent] == [False, True, False]
        kept = len(descriptors_without_garbage()) - len(before)
        assert kept == 3, "what another supervisor would need: payload, surroundings and lifeline"


def test_a_forked_child_keeps_neither_pipe_nor_lifeline() -> None:
    with handle_of(wait_for_the_end) as handle:
        lifeline = handle.start_workers(1, 1, None)

        def forget() -> tuple[int, str]:
            handle.forget_in_child()
            return handle.control.fileno(), os.readlink(f"/proc/self/fd/{lifeline.fileno()}")

        assert in_child(forget) == (-1, "/dev/null")
        assert not handle.control.ended
        assert os.readlink(f"/proc/self/fd/{lifeline.fileno()}").startswith("pipe:")
