"""The consumer's side of supervised workers: start them, talk to them, hear of their deaths.

    WorkerPool --- control pipe --- supervisor process     (see loop)
        |                               |
        +--- PoolWorker.pipe --- worker processes          (see child)

``wait`` is the one place that waits. What arrives is kept in the ``inbox`` of each pipe and taken from there
after it has been dealt with, never before: every step can be repeated, so that an exception out of a signal
handler, at any instruction, loses nothing. A worker's death is told by the supervisor, who reaped it; an
end-of-file only makes us look. When the supervisor dies, another starts the same workers (see revival).

The pool is not thread-safe, but for ``close``: it makes the thread that holds the pool's ``turn`` leave
``wait``, by NotRunning, and closes nothing before that thread has given up its turn. A process forked from
this one closes its copies of our pipes at once.
"""

from __future__ import annotations

import atexit
import logging
import os
import select
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from types import TracebackType

from supervisor import exceptions
from supervisor import handle as supervisor_handle
from supervisor.breakage import Breakage
from supervisor.channel import Channel, Message, MessageLost, Raw, opened
from supervisor.child import Serve, Setup
from supervisor.ends import Ends
from supervisor.handle import SupervisorHandle
from supervisor.linux import fill_standard_descriptors, own, require_linux
from supervisor.messages import (
    Broken,
    Check,
    Checked,
    Died,
    End,
    Failed,
    GaveUp,
    Judge,
    Ready,
    Settings,
    Slow,
    Started,
    Stop,
    Stopped,
    Warned,
    decode,
)
from supervisor.page import SENT, PageFile
from supervisor.payload import Payload
from supervisor.policy import RestartPolicy
from supervisor.pool_worker import PoolWorker
from supervisor.report import ExitReport, WorkerDiedError, supervisor_report
from supervisor.revival import Demise, Succession, end_orphans, orphan_report
from supervisor.verdict import ExitReason
from supervisor.waiting import Bell, NotRunning, PipePoller
from supervisor.worker_pipes import EOF_WITHOUT_DEATH_S, WorkerPipes

START_METHODS = ("forkserver", "fork", "spawn")
STARTUP_WARNING_S = 30.0
PARTING_S = 1.0

logger = logging.getLogger("supervisor")


class WorkerPool:
    """Worker processes under a supervisor.

    Parameters:
        num_workers: how many workers, at least 1; their ids are 0 to num_workers - 1.
        start_method: "forkserver" (a fresh supervisor, workers forked from it), "fork" (all forked from this
            process, nothing pickled) or "spawn" (fresh interpreters).
        policy: a RestartPolicy: how often the dead are replaced; None: never.
        reading_interval_s: seconds between two looks of the supervisor at its workers.
        timeout_s: seconds that a worker may be at one task, as its page says; then it is ended. None: any.
        memory_limit_bytes: memory of its own that a worker may have; above it, it is told on its page to
            leave before its next task, and far above it ended. None: any.
        close_s: seconds a worker has to end once its pipe is closed.
        terminate_s: seconds it then has after SIGTERM, before SIGKILL.
        kind: what messages call a worker.
        judges: a subclass says of each death in the middle of a task, by ``judge``, whether it counts.

    Attributes:
        workers: the living PoolWorker of each id; none of a dead one until its replacement has started.
        retired: the ids of those that are not replaced, by ``RestartPolicy(shrink_on_oom=True)``; a later
            ``start`` starts as many fewer.
        lifeline: when this object is dropped, the workers are stopped: whoever uses them may take it over.
        turn: a lock, to be held by who uses the pool where another thread may call ``close``.

    Raises:
        ValueError: an argument is out of range.
        RuntimeError: this is not Linux.

    >>> def shout(pipe, context):
    ...     while (message := pipe.receive()) is not None:
    ...         pipe.send(message.data.upper())
    >>> with WorkerPool(num_workers=2) as pool:
    ...     pool.start(shout)
    ...     pool.workers[0].pipe.send(b"hello")
    ...     pool.receive(0).data
    b'HELLO'
    """

    def __init__(
        self,
        num_workers: int,
        *,
        start_method: str = "forkserver",
        policy: RestartPolicy | None = RestartPolicy(),  # noqa: B008 (it is frozen)
        reading_interval_s: float = 0.25,
        timeout_s: float | None = None,
        memory_limit_bytes: int | None = None,
        close_s: float = 0.25,
        terminate_s: float = 0.25,
        kind: str = "Worker",
        judges: bool = False,
    ) -> None:
        require_linux("a pool of workers")
        if num_workers < 1:
            raise ValueError(f"num_workers={num_workers!r}: a pool has at least 1 worker")
        if start_method not in START_METHODS:
            raise ValueError(f"start_method={start_method!r}: give one of {', '.join(START_METHODS)}")
        self.num_workers = num_workers
        self.workers: dict[int, PoolWorker] = {}
        self.retired: set[int] = set()
        self.lifeline: select.epoll | None = None
        self.turn = threading.RLock()
        self._user: int | None = None  # the thread that started the workers or checked them last
        self._kind = kind
        self._settings = Settings(
            consumer_pid=os.getpid(),
            start_method=start_method,
            policy=policy,
            reading_interval_s=reading_interval_s,
            close_s=close_s,
            terminate_s=terminate_s,
            timeout_s=timeout_s,
            memory_limit_bytes=memory_limit_bytes,
            judges=judges,
        )
        fill_standard_descriptors()  # a consumer may run without
        self._pages = PageFile.create(num_workers)
        self._pages_owner = own(self._pages.fd)
        self._bell = Bell()
        self._supervisor: SupervisorHandle | None = None
        self._by_pid: dict[int, PoolWorker] = {}  # until their death is told
        self._pipes = WorkerPipes()
        self._poller: PipePoller | None = None  # None: to be made anew
        self._ends = Ends()
        self._breakage = Breakage()
        self._last_event = 0
        self._succession = Succession(start_method, policy)
        self._revival_due_s: float | None = None  # the supervisor is dead and buried
        self._restarts_before: dict[int, int] = {}  # by worker: under supervisors that have died
        self._was_ready = False  # any worker of this run
        self._checked = False
        self._stopping = False
        self._run = 0
        self._started_workers = num_workers
        self._stopped = True  # all that belong to this run
        self._supervisor_exception: bytes | None = None  # what ended it
        self._inherited = False
        _live.add(self)

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def reports(self) -> list[ExitReport]:
        """The ExitReport of every end so far, oldest first; ordered stops included."""
        return self._ends.reports

    # ---- starting --------------------------------------------------------------------------------

    def start(self, serve: Serve, setup: Setup | None = None) -> None:
        """Start all workers and wait until they are ready.

        Parameters:
            serve: called in each worker with its pipe and WorkerContext; returns when the pipe ends.
            setup: called first, with the WorkerContext; what it raises is a start-up error.

        Raises:
            PayloadError: they cannot be pickled, and the start method needs that.
            WorkerDiedError: a worker died in its start-up.
            RuntimeError: the workers are running, or belong to the process that this one was forked from.
            Exception: what a worker raised in its start-up, its traceback there as the cause.
        """
        self._require_ours()
        if self.workers:
            raise RuntimeError("the workers are running: call stop() first")
        self._user = threading.get_ident()
        if self._settings.start_method == "fork":
            self._start_by_fork(serve, setup)
        else:
            self._start_by_payload(Payload.pack((setup, serve)))
        self._await_ready()

    def check(self) -> None:
        """Learn that every worker is alive and ready, waiting for replacements.

        Raises WorkerDiedError where a dead worker is not replaced.
        """
        self._require_ours()
        self._user = threading.get_ident()
        self._checked = False
        self._require_supervisor().send(Check())
        while not self._checked:
            self.wait(None)
            self.raise_if_broken()
        self.raise_if_broken()
        self._await_ready()

    def _start_by_fork(self, serve: Serve, setup: Setup | None) -> None:
        self._part_from_supervisor()
        self._begin(SupervisorHandle.fork(self._settings, self._pages.fd, (setup, serve)), None)

    def _start_by_payload(self, payload: Payload) -> None:
        if self._supervisor is not None and not self._supervisor.control.ended:
            self._await_stopped()
        if self._supervisor is None or self._supervisor.control.ended:  # it may have died meanwhile
            self._part_from_supervisor()
            self._begin(SupervisorHandle.spawn(self._settings, self._pages.fd), payload)
        else:
            self._begin(self._supervisor, payload)

    def _begin(self, supervisor: SupervisorHandle, payload: Payload | None) -> None:
        if supervisor is not self._supervisor:
            self._supervisor, self._last_event, self._poller = supervisor, 0, None
            self._supervisor_exception = None
        self._breakage = Breakage()
        self._ends.begin()
        self._succession = Succession(self._settings.start_method, self._settings.policy)
        self._revival_due_s = None
        self._restarts_before, self._was_ready = {}, False
        self._stopping = self._stopped = False
        lost, self.retired = len(self.retired), set()
        self._started_workers -= lost
        self.lifeline = supervisor.start_workers(self._run + 1, self._started_workers, payload)
        self._run += 1

    def _await_ready(self) -> None:
        warn_s = time.monotonic() + STARTUP_WARNING_S
        while late := [worker for worker in range(self._started_workers) if not self._is_ready(worker)]:
            self.wait(1.0)
            self.raise_if_broken()
            if time.monotonic() >= warn_s:
                warn_s = float("inf")
                logger.warning("workers %s are still starting up after %g s", late, STARTUP_WARNING_S)

    def _is_ready(self, worker: int) -> bool:
        return worker in self.retired or (worker in self.workers and self.workers[worker].ready)

    # ---- waiting ---------------------------------------------------------------------------------

    def wait(self, timeout_s: float | None) -> None:
        """Wait until something arrives, but no longer than ``timeout_s`` seconds; None: without end.

        Messages are then in ``workers[...].pipe.inbox``, and deaths and replacements are dealt with. It may
        return early, with nothing new. Raises RuntimeError where the pool is not running.
        """
        supervisor = self._require_supervisor()
        if self._revival_due_s is not None:
            self._await_revival(supervisor, self._revival_due_s, timeout_s)
            return
        supervisor.flush()
        if supervisor.control.inbox:
            self._hear(supervisor)  # an interrupt came between taking events in and dealing with them
            return
        arrived = self._current_poller().wait(self._bounded(timeout_s))
        for worker in arrived:
            if worker is not None and not worker.pipe.drain():
                self._note_end_of_file(worker)
        if None in arrived:
            self._hear(supervisor)  # last, for it closes the pipes of the dead
        if self._pipes.have_ended:
            self._look_after_ended()

    def hear(self) -> None:
        """Take in what was told since somebody last waited, and wait for nothing.

        Deaths are then in ``reports``, and successors in ``workers``. Only for the thread that started the
        workers, or checked them last: deaths are logged, and a signal handler's exception out of logging may
        have left it locked to all threads but the main one.
        """
        is_user = threading.get_ident() == self._user
        if self._inherited or not is_user or not self.turn.acquire(blocking=False):
            return
        try:
            supervisor = self._supervisor
            if supervisor is not None and not supervisor.is_parting and self._revival_due_s is None:
                self._hear(supervisor)  # workers are waited for, and their pipes read then
        finally:
            self.turn.release()

    def receive(self, worker: int) -> Message:
        """Wait for the next message of worker ``worker``, or of its replacement.

        What a worker had sent before its death comes first.

        Raises:
            WorkerDiedError: it has died and is not replaced, also where the others go on without.
            MessageLost: its message did not arrive whole, for want of descriptors.
            RuntimeError: the pool is not running.
        """
        while True:
            for inbox in self._inboxes(worker):
                if inbox:
                    return opened(inbox.popleft())
            self.raise_if_broken()
            if worker in self.retired:
                why = "It was not replaced: shrink_on_oom=True."
                deaths = [report for report in self._ends.of_worker(worker) if report.is_death]
                raise WorkerDiedError(deaths, why, self._kind)
            self.wait(None)

    def _inboxes(self, worker: int) -> Iterator[deque[Raw]]:
        """Give what dead workers of this id have left, then the inbox of the living one."""
        yield from self._pipes.unread(worker)
        if worker in self.workers:
            yield self.workers[worker].pipe.inbox

    def poll_for_room(self, worker: PoolWorker, wanted: bool) -> None:
        """Let the next ``wait`` also end when ``worker``'s pipe has room, or no longer."""
        self._current_poller().want_room(worker, wanted)

    def _current_poller(self) -> PipePoller:
        if self._poller is None:
            self._poller = PipePoller(self._require_supervisor().control, self.workers.values(), self._bell)
        return self._poller

    def _bounded(self, timeout_s: float | None) -> float | None:
        """Return a time out that lets nothing be forgotten: unsent commands, pipes that have ended."""
        if not self._pipes.have_ended and not self._require_supervisor().has_unsent:
            return timeout_s
        return EOF_WITHOUT_DEATH_S if timeout_s is None else min(timeout_s, EOF_WITHOUT_DEATH_S)

    def _note_end_of_file(self, worker: PoolWorker) -> None:
        self._pipes.note_end(worker)
        self._poller = None

    def _look_after_ended(self) -> None:
        """End a worker whose pipe has ended though it lives on: nobody can reach it any more."""
        for pid in self._pipes.overdue():
            worker = self._by_pid.get(pid)
            if worker is not None and not worker.is_surely_dead():
                because = "its pipe had ended though it was alive"
                self._require_supervisor().send(End(pid, ExitReason.KILLED, because))
            self._pipes.forget_end(pid)

    # ---- events ----------------------------------------------------------------------------------

    def _hear(self, supervisor: SupervisorHandle) -> None:
        alive = supervisor.control.drain()
        inbox = supervisor.control.inbox
        while inbox:
            self._hear_event(inbox[0])
            inbox.popleft()
        if not alive:
            self._bury_supervisor(supervisor)

    def _hear_event(self, raw: Raw) -> None:
        try:
            data, descriptors = opened(raw)
        except MessageLost as error:
            self._breakage.failure = exceptions.pack(error)  # it may have brought a worker's pipe
            return
        number, event = decode(data)
        if isinstance(event, Broken):
            self._supervisor_exception = event.exception
        elif number > self._last_event:
            self._handle(event, descriptors)
            self._last_event = number

    def _handle(self, event: object, descriptors: list[int]) -> None:
        """Deal with one event. May be called again for the same one, after an interrupt."""
        match event:
            case Started():
                self._add_worker(event, descriptors)
            case Ready(worker, pid, replaced_s) if worker in self.workers and self.workers[worker].pid == pid:
                self.workers[worker].ready = self._was_ready = True
                if replaced_s is not None:
                    self._ends.note_replaced(worker, pid, replaced_s)
            case Slow():
                self._warn_of(event)
            case Died(report, exception, gave_up, retired):
                self._bury(report, exception)
                if retired:
                    self._retire(report)
                if gave_up is not None:
                    self._breakage.gave_up = gave_up
            case GaveUp(why):
                self._breakage.gave_up = why
            case Warned(text):
                logger.warning("%s", text)
            case Failed(exception):
                self._breakage.failure = exception
            case Checked():
                self._checked = True
            case Stopped(run) if run >= self._run:  # the end of the last lifeline may stop the last run again
                self._stopped = True

    def _warn_of(self, slow: Slow) -> None:
        at = self.describe_task(slow) or ("its start-up" if slow.task is None else f"task {slow.task}")
        logger.warning(
            "worker %d (pid %d) has been at %s for %.1f s, and is left alone. It is here:\n%s",
            slow.worker,
            slow.pid,
            at,
            slow.spent_s,
            slow.stack,
        )

    def _add_worker(self, started: Started, descriptors: list[int]) -> None:
        pipe_fd, *pidfds = descriptors
        worker = self._by_pid.get(started.pid)
        if worker is None:
            pipe = Channel(self._pipes.adopt(pipe_fd))
            before = self._restarts_before.get(started.worker, 0)
            worker = PoolWorker(started, pipe, self._pages.page(started.worker), before)
            worker.page.words[SENT] = -1  # its predecessor's, if we sent that while it was dying
            self.workers[started.worker] = self._by_pid[started.pid] = worker
        for fd in pidfds:
            worker.keep_pidfd(fd)
        self._poller = None
        if self._stopping:
            self._close_pipes()  # it was started before the supervisor heard of the stop

    def _bury(self, report: ExitReport, exception: bytes | None = None, *, blame: bool = True) -> None:
        """Deal with a worker's death. ``blame``: what it was working on may have ended it."""
        worker = self._by_pid.get(report.pid)
        if worker is None:
            return
        if exception is not None:
            self._breakage.note_exception(exception, in_start_up=not worker.ready)
        if self.workers.get(worker.worker) is worker:
            self._read_to_the_end(worker)
            self.describe(worker, report)
            self._ends.publish(report)
            self.on_death(worker, report if blame else replace(report, task=None, item=None))
            self._pipes.keep_unread(worker)
            del self.workers[worker.worker]
        self._ends.publish(report)
        self._poller = None
        self._pipes.close(worker)
        self._pipes.forget_end(report.pid)
        del self._by_pid[report.pid]
        worker.close()

    def _read_to_the_end(self, worker: PoolWorker) -> None:
        """Take in what a dead worker had sent. Not until the end: a grandchild may hold the other end."""
        worker.pipe.drain()

    def _retire(self, report: ExitReport) -> None:
        if report.worker in self.retired:
            return
        self.retired.add(report.worker)
        left = self._started_workers - len(self.retired)
        text = "worker %d is not replaced after an OOM kill (shrink_on_oom=True): %d of %d workers go on"
        logger.warning(text, report.worker, left, self._started_workers)

    def describe(self, worker: PoolWorker, report: ExitReport) -> None:
        """For subclasses: fill in a report, before it is published, and change nothing else."""

    def describe_task(self, slow: Slow) -> str:
        """For subclasses: say what a worker is at, for people."""
        return ""

    @property
    def judges(self) -> bool:
        return self._settings.judges

    def judge(self, report: ExitReport, *, counts: bool) -> None:
        """Say whether a death in the middle of a task counts. Saying it again changes nothing."""
        if self._supervisor is not None:
            self._supervisor.send(Judge(report.pid, counts))

    def on_death(self, worker: PoolWorker, report: ExitReport) -> None:
        """For subclasses: take note of a death. All that the worker had sent is in its inbox.

        Must bear being called again for the same death.
        """

    # ---- failures --------------------------------------------------------------------------------

    @property
    def is_broken(self) -> bool:
        """Whether the dead are no longer replaced, or the supervisor failed."""
        return self._breakage.exists

    def raise_if_broken(self) -> None:
        """Raise what ended the pool, if something did: WorkerDiedError, or a start-up's own exception."""
        error = self._breakage.error(self._ends.deaths(), self._kind)
        if error is not None:
            raise error

    # ---- the supervisor's death ------------------------------------------------------------------

    def _bury_supervisor(self, supervisor: SupervisorHandle) -> None:
        status = supervisor.wait_for_end(PARTING_S)
        orphans = list(self._by_pid.values())
        progressed = any(worker.page.done for worker in orphans)
        demise = Demise(time.monotonic(), status, was_up=self._last_event > 0, progressed=progressed)
        self._succession.note(supervisor.pid, demise)
        immortals = end_orphans(orphans)
        for worker in orphans:
            if worker not in immortals:
                self._restarts_before[worker.worker] = worker.restarts + 1
                self._bury(orphan_report(worker, asked=self._stopping), blame=False)
        self._breakage.last = self._supervisor_exception or self._breakage.last
        if not demise.was_up:
            self._breakage.failure = self._supervisor_exception  # a start-up's own exception
        traceback = exceptions.text_of(self._supervisor_exception) if self._supervisor_exception else ""
        self._ends.publish(supervisor_report(supervisor.pid, status, traceback))
        self._follow_supervisor(immortals)

    def _follow_supervisor(self, immortals: list[PoolWorker]) -> None:
        """Let another supervisor follow the dead one, now or later, or end the pool."""
        verdict = self._succession.verdict()
        if immortals:
            verdict = f"Of its workers {[worker.pid for worker in immortals]} did not end by SIGKILL."
        if self._stopping:
            self._forget_supervisor()
        elif isinstance(verdict, str):
            self._end_with_supervisor(verdict)
        else:
            self._revival_due_s = verdict

    def _end_with_supervisor(self, why: str) -> None:
        self._breakage.gave_up = f"The supervisor process died, and its workers with it. {why}"
        self._forget_supervisor()

    def _await_revival(self, supervisor: SupervisorHandle, due_s: float, timeout_s: float | None) -> None:
        left_s = max(0.0, due_s - time.monotonic())
        self._bell.listen(left_s if timeout_s is None else min(left_s, timeout_s))
        if time.monotonic() < due_s:
            return
        try:
            successor = supervisor.succeed(self._settings, self._pages.fd, resumes=self._was_ready)
        except OSError as error:
            self._end_with_supervisor(f"It could not be replaced: {error}.")
            return
        self._supervisor, self._last_event, self._poller, self._revival_due_s = successor, 0, None, None
        self._supervisor_exception = None
        self._checked = True  # a Check may have been lost; no death is left to be dealt with

    # ---- stopping --------------------------------------------------------------------------------

    def stop(self) -> None:
        """Stop the workers; a later ``start`` starts others. Does not wait for their end under forkserver."""
        if self._inherited or self._supervisor is None:
            return
        self._close_pipes()
        if not self._supervisor.is_parting:
            self._supervisor.send(Stop())
        if self._settings.start_method == "fork":
            self._part_from_supervisor()

    def close(self) -> None:
        """Stop the workers and the supervisor, and wait for their end. Can be called again, by any thread."""
        if self._inherited:
            return
        self._bell.ring()
        with self.turn:
            self._bell.silence()
            self.stop()
            self._part_from_supervisor()

    def _part_from_supervisor(self) -> None:
        supervisor = self._supervisor
        if supervisor is None:
            return
        self._close_pipes()
        if not supervisor.is_parting:
            supervisor.send(Stop())
            self._await_stopped()
        if self._supervisor is None:
            return  # it died instead
        supervisor.part(PARTING_S)
        self._forget_supervisor()

    def _forget_supervisor(self) -> None:
        self._close_pipes()
        self._supervisor = self._revival_due_s = None
        self._stopped = True
        self._by_pid.clear()
        self._pipes.clear()

    def _await_stopped(self) -> None:
        supervisor = self._require_supervisor()
        end_s = time.monotonic() + self._settings.close_s + self._settings.terminate_s + PARTING_S
        while not self._stopped and not supervisor.control.ended and time.monotonic() < end_s:
            self.wait(0.1)
        if supervisor.control.ended and self._supervisor is supervisor:
            self._hear(supervisor)  # it died: nobody has waited since a command of ours found that out

    def _close_pipes(self) -> None:
        """Close the pipes of all workers: they then end, and their reports will come."""
        self._stopping = True
        self._poller = self._revival_due_s = None
        for worker in list(self.workers.values()):
            self._pipes.close(worker)
        self.workers.clear()
        self._pipes.drop_unread()

    # ---- after a fork ----------------------------------------------------------------------------

    def _require_ours(self) -> None:
        if self._inherited:
            raise RuntimeError(
                f"this {self._kind.lower()} pool belongs to process {self._settings.consumer_pid}, from "
                "which this process was forked: make a new one here"
            )

    def _require_supervisor(self) -> SupervisorHandle:
        self._require_ours()
        if self._supervisor is None:
            raise NotRunning("the pool is not running: call start() first")
        return self._supervisor

    def _forget_in_child(self) -> None:
        self._inherited = True
        self.turn = threading.RLock()  # the old one may be held by a thread that is not here
        for worker in self._by_pid.values():
            worker.close()
        if self._supervisor is not None:
            self._supervisor.forget_in_child()


_live: weakref.WeakSet[WorkerPool] = weakref.WeakSet()


def _forget_all_in_child() -> None:
    supervisor_handle.forget_inherited()
    for pool in list(_live):
        pool._forget_in_child()


def _close_all() -> None:
    """Close what no daemon thread is using; one that is ends with this process, and its pool does then.

    The turns are kept: no thread is to find its pool closed, and complain, while the interpreter ends.
    """
    for pool in list(_live):
        if pool.turn.acquire(blocking=False):
            pool.close()


os.register_at_fork(after_in_child=_forget_all_in_child)
atexit.register(_close_all)
