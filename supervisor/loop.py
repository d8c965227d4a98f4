"""The supervisor process: one thread that owns the workers.

            commands                         fork, SIGTERM, SIGKILL
    consumer ------> control pipe ---> loop ------------------------> workers
             <------                    ^                                |
              events                    +---- pidfds, "ready" eventfd ---+

Invariants:
  - It is the workers' parent and the only one who waits for them: wait statuses are real.
  - It never blocks: it waits in one place (`_wait`), and what it has to say waits in an outbox.
  - No batch passes through it, and of the user's code it runs only imports.
  - What workers write to standard error does pass through it, and makes it wait no more than the rest (see
    relay).
  - It holds no end of a worker's pipe once the consumer has been sent it.
  - When the consumer is gone, everything is killed at once. When the control pipe or the lifeline is closed,
    the workers are stopped in order.

Where there are no pidfds, SIGCHLD wakes the loop, and the consumer's end is seen as a change of parent.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import select
import signal
import time
from collections import deque

from supervisor import child, exceptions, launch
from supervisor.channel import Channel, close_all, opened
from supervisor.inspection import Inspector
from supervisor.linux import die_with_parent, fill_standard_descriptors, open_pidfd
from supervisor.memory import rss_bytes
from supervisor.messages import (
    Broken,
    Check,
    Checked,
    Died,
    End,
    Event,
    Failed,
    GaveUp,
    Judge,
    Ready,
    Settings,
    Start,
    Started,
    Stop,
    Stopped,
    Warned,
    decode,
    encode,
)
from supervisor.oom import OomWatch, what_would_help
from supervisor.own_cgroups import ORPHANED_S, OwnCgroups
from supervisor.page import PageFile
from supervisor.payload import Payload
from supervisor.relay import Relay
from supervisor.replacements import Replacements
from supervisor.stopping import OrderedStop
from supervisor.surroundings import Surroundings
from supervisor.verdict import ExitReason, MemoryFacts
from supervisor.worker import Remains, Worker

FLUSH_S = 0.5  # for what workers wrote last, where it is read slowly


def supervise_fresh(control_fd: int, pages_fd: int, settings: Settings) -> None:
    """Be a supervisor, in a fresh interpreter."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for fd in (control_fd, pages_fd):
        os.set_inheritable(fd, False)
    supervise(Channel.from_descriptor(control_fd), pages_fd, settings)


def supervise(control: Channel, pages_fd: int, settings: Settings, job: child.Job | None = None) -> None:
    """Be a supervisor. What ends it before its time, the consumer is told first: see Supervisor."""
    try:
        Supervisor(control, pages_fd, settings, job).run()
    except Exception as error:
        packed = exceptions.pack(error, f"in the supervisor (pid {os.getpid()})")
        with contextlib.suppress(OSError):
            control.try_send(encode(0, Broken(packed)), [])
        raise


class Supervisor:
    """The loop and its state.

    Parameters:
        control: the pipe to the consumer.
        pages_fd: memory file of the workers' pages.
        settings: see Settings.
        job: what the workers do, where they inherit it; else each Start brings a payload.
    """

    def __init__(
        self, control: Channel, pages_fd: int, settings: Settings, job: child.Job | None = None
    ) -> None:
        self._control = control
        self._pages = PageFile(pages_fd)
        self._settings = settings
        self._job = job
        self._payload: Payload | None = None
        self._surroundings: Surroundings | None = None
        self._num_workers = 0
        self._run = 0  # number of the last Start that was obeyed
        self._workers: dict[int, Worker] = {}  # by pid
        self._replacements = Replacements(settings)
        self._check_wanted = False
        self._stop: OrderedStop | None = None
        self._lifeline_fd: int | None = None
        self._held_start: tuple[Start, list[int]] | None = None
        self._finished = False
        self._numbers = itertools.count(1)
        self._last_command = 0
        self._outbox: deque[tuple[bytes, list[int]]] = deque()
        self._next_reading_s = 0.0
        fill_standard_descriptors()
        self._relay = Relay()
        self._oom = OomWatch()
        self._inspector = Inspector(settings, self._oom)
        wants_own = settings.policy is not None and settings.policy.own_cgroups
        self._own_cgroups = OwnCgroups(wants_own, lambda text: self._say(Warned(text)))
        self._ready_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # Ignored, as a consumer may have it and we inherit it, it would have the kernel reap our workers.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # a consumer may have it end itself: not us
        self._consumer_fd = _watch(settings.consumer_pid)
        self._sigchld_fds = _sigchld_pipe() if self._consumer_fd is None else ()

    def run(self) -> None:
        """Serve until the consumer is gone or has closed its pipe and all workers are gone."""
        gc.freeze()  # lest the workers' collections copy every page that they share with us
        while not self._finished:
            ready = self._wait()
            if self._consumer_is_gone(ready):
                return self._kill_everything()
            self._relay.pass_on(ready)
            if self._lifeline_fd in ready:
                self._drop_lifeline()
                self._begin_stop()
            self._handle_commands()
            self._note_progress()
            self._reap()
            self._announce_ready()
            self._flush()  # now: a fork takes milliseconds, in which the dead one's work could be in hand
            self._restart_due()
            self._enforce_stop()
            self._answer_check()
            self._flush()
            self._inspect()
        self._own_cgroups.close()
        return self._relay.finish(FLUSH_S)

    # ---- waiting ---------------------------------------------------------------------------------

    def _wait(self) -> set[int]:
        """Wait until there is something to do; return the descriptors that are ready."""
        poll = select.poll()
        if not self._control.ended:
            poll.register(self._control, select.POLLIN | (select.POLLOUT if self._outbox else 0))
        pidfds = [worker.pidfd for worker in self._workers.values()]
        watched = [self._ready_fd, self._consumer_fd, self._lifeline_fd, *self._sigchld_fds[:1]]
        for fd in [*watched, *pidfds]:
            if fd is not None:
                poll.register(fd, select.POLLIN)
        self._relay.register(poll)
        ready = poll.poll(max(0.0, self._next_due_s() - time.monotonic()) * 1000 + 0.5)
        for fd in self._sigchld_fds[:1]:
            with contextlib.suppress(BlockingIOError):
                os.read(fd, 4096)
        return {fd for fd, _ in ready}

    def _next_due_s(self) -> float:
        stop = [] if self._stop is None else [self._stop.next_s]
        return min([self._next_reading_s, *(restart.due_s for restart in self._replacements.waiting), *stop])

    def _consumer_is_gone(self, ready: set[int]) -> bool:
        if self._consumer_fd is not None:
            return self._consumer_fd in ready
        return os.getppid() != self._settings.consumer_pid

    def _kill_everything(self) -> None:
        for worker in self._workers.values():
            worker.signal_group(signal.SIGKILL)
        self._own_cgroups.close(ORPHANED_S)

    # ---- commands --------------------------------------------------------------------------------

    def _handle_commands(self) -> None:
        if self._control.ended or not self._control.drain():
            self._outbox.clear()
            self._begin_stop()
        while self._control.inbox:
            try:
                self._obey(*opened(self._control.inbox.popleft()))
            except Exception as error:
                self._say(Failed(exceptions.pack(error, f"in the supervisor (pid {os.getpid()})")))

    def _obey(self, data: bytes, descriptors: list[int]) -> None:
        number, command = decode(data)
        if number <= self._last_command:
            close_all(descriptors)
            return
        self._last_command = number
        self._handle(command, descriptors)

    def _handle(self, command: object, descriptors: list[int]) -> None:
        match command:
            case Start() if self._stop is not None:
                self._held_start = (command, descriptors)
            case Start():
                self._start(command, descriptors)
            case Check():
                self._check_wanted = True
            case End(pid, reason, because) if pid in self._workers:
                self._workers[pid].end(reason, because)
            case Judge(pid, counts):
                self._say_gave_up(self._replacements.judge(pid, time.monotonic(), counts=counts))
            case Stop():
                self._begin_stop()

    def _start(self, start: Start, descriptors: list[int]) -> None:
        self._drop_lifeline()
        self._lifeline_fd, *brought = descriptors
        if start.surroundings is not None:
            self._take_surroundings(start.surroundings.received([brought.pop(0)]))
        if start.payload is not None:
            self._take_payload(start.payload.received(brought))
        self._run, self._num_workers = start.run, start.workers
        self._replacements = Replacements(self._settings, resumes=start.resumes)
        self._oom.look_around()
        self._own_cgroups.settle_in(self._oom.group)
        for worker in range(start.workers):
            self._make_worker(worker, restarts=0)
        die_with_parent(0)  # from here on we look ourselves: see launch

    def _drop_lifeline(self) -> None:
        fd, self._lifeline_fd = self._lifeline_fd, None
        if fd is not None:
            os.close(fd)

    def _take_surroundings(self, packed: Payload) -> None:
        self._surroundings = packed.load()
        packed.close()
        assert self._surroundings is not None
        self._surroundings.apply()

    def _take_payload(self, payload: Payload) -> None:
        if self._payload is not None:
            self._payload.close()
        self._payload = payload
        if self._settings.start_method == "forkserver":
            payload.import_modules()

    # ---- workers ---------------------------------------------------------------------------------

    def _make_worker(self, worker: int, restarts: int, death_s: float | None = None) -> None:
        ours, theirs = Channel.pair()
        remains = Remains.create()
        page = self._pages.page(worker)
        page.reset()
        handles = child.Handles(theirs.fileno(), self._pages.fd, remains.stack, remains.words, self._ready_fd)
        cgroup = self._own_cgroups.make()
        folder = None if cgroup is None else str(cgroup.folder)
        birth = child.Birth(worker, self._num_workers, os.getpid(), handles, folder)
        source, stderr_fd = self._relay.open()
        pid = self._give_birth(birth, ours, stderr_fd)
        os.close(stderr_fd)
        theirs.close()
        made = self._workers[pid] = Worker(worker, pid, restarts, page, remains)
        made.stderr = source
        made.replaces_death_s, made.cgroup = death_s, cgroup
        self._oom.admit(pid, cgroup)
        pidfd = [] if made.pidfd is None else [os.dup(made.pidfd)]
        self._say(Started(worker, pid, restarts), [ours.socket.detach(), *pidfd])

    def _give_birth(self, birth: child.Birth, ours: Channel, stderr_fd: int) -> int:
        if self._settings.start_method == "spawn":
            assert self._payload is not None
            inherited = [*self._payload.descriptors(), *birth.handles.all()]
            told = (birth, self._payload, self._surroundings)
            return launch.spawn(child.run_fresh, told, inherited, stderr_fd)
        launch.flush_output()
        pid = os.fork()
        if pid == 0:
            child.run_forked(birth, self._load_job, stderr_fd, lambda: self._not_a_workers(ours, stderr_fd))
        return pid

    def _load_job(self) -> child.Job:
        if self._job is not None:
            return self._job
        assert self._payload is not None
        assert self._surroundings is not None
        return child.load_job(self._payload, self._surroundings)

    def _not_a_workers(self, ours: Channel, stderr_fd: int) -> list[int]:
        """All that a worker must not keep open: what is the supervisor's alone, or a sibling's."""
        unsent = [fd for _, descriptors in self._outbox for fd in descriptors]
        siblings = [fd for worker in self._workers.values() for fd in worker.descriptors()]
        watched = [fd for fd in (self._consumer_fd, self._lifeline_fd) if fd is not None]
        relayed = self._relay.descriptors()
        sockets = [self._control.socket.detach(), ours.socket.detach()]
        own = [*self._sigchld_fds, *self._oom.descriptors()]
        return [*sockets, stderr_fd, *watched, *own, *unsent, *siblings, *relayed]

    def _reap(self) -> None:
        ended = [worker for worker in self._workers.values() if worker.has_exited()]
        for worker in ended:
            worker.collect()
        peaks = {worker.pid: worker.peak_bytes for worker in ended}
        killed = [worker.pid for worker in ended if worker.was_killed and self._stop is None]
        facts = self._oom.explain(peaks, killed)
        for worker in ended:
            self._take_leave(worker, facts[worker.pid])

    def _take_leave(self, worker: Worker, memory: MemoryFacts) -> None:
        report, exception = worker.reap(asked=self._stop is not None, memory=memory)
        if worker.stderr is not None:
            report.stderr = self._relay.last_words(worker.stderr)
        if report.reason is ExitReason.OOM_KILLED:
            report.advice = self._advice(memory)
        del self._workers[worker.pid]
        self._own_cgroups.leave(worker.cgroup)
        is_unasked = report.reason is not ExitReason.CLOSED and self._stop is None
        retired = is_unasked and self._replacements.shrinks_after(report, len(self._workers))
        gave_up = None
        if is_unasked and not retired:
            was_ready = bool(worker.page.ready_s)
            now_s = time.monotonic()
            gave_up = self._replacements.decide(report, worker.restarts, now_s, was_ready=was_ready)
        self._say(Died(report, exception, gave_up, retired))

    def _advice(self, memory: MemoryFacts) -> str:
        """Say what would help against OOM kills. What a fork inherits costs nothing more."""
        ours_bytes, consumer_bytes = rss_bytes(os.getpid()), rss_bytes(self._settings.consumer_pid)
        inherited_bytes = 0 if self._settings.start_method == "spawn" else ours_bytes
        other_bytes = consumer_bytes + (0 if self._settings.start_method == "fork" else ours_bytes)
        worker_bytes = max(0, memory.peak_bytes - inherited_bytes)
        workers = len(self._workers) + len(self._replacements.waiting)
        return what_would_help(memory, workers, worker_bytes, other_bytes)

    def _restart_due(self) -> None:
        for restart in self._replacements.take_due(time.monotonic()):
            try:
                self._make_worker(restart.worker, restart.restarts, restart.death_s)
            except OSError as error:
                is_new = self._replacements.give_up()
                self._say_gave_up(f"It could not be replaced: {error}." if is_new else None)
                return

    def _say_gave_up(self, why: str | None) -> None:
        """Say why nobody is replaced from now on, if so."""
        if why is not None:
            self._say(GaveUp(why))

    def _note_progress(self) -> None:
        progressed = [worker.has_progressed() for worker in self._workers.values()]
        if any(progressed):
            self._replacements.note_progress(time.monotonic())

    def _announce_ready(self) -> None:
        try:
            os.eventfd_read(self._ready_fd)
        except BlockingIOError:
            return
        for worker in self._workers.values():
            if worker.page.ready_s and not worker.announced:
                worker.announced = True
                self._inspector.note_ready(worker, time.monotonic())
                self._own_cgroups.check(worker.cgroup)
                self._replacements.note_ready()
                death_s = worker.replaces_death_s
                replaced_s = None if death_s is None else worker.page.ready_s - death_s
                self._say(Ready(worker.worker, worker.pid, replaced_s))

    def _answer_check(self) -> None:
        """Answer once no death is being dealt with; a replacement in start-up counts as dealt with."""
        if self._check_wanted and not self._replacements.waiting:
            self._check_wanted = False
            self._say(Checked())

    def _inspect(self) -> None:
        now = time.monotonic()
        if now < self._next_reading_s:
            return
        self._next_reading_s = now + self._settings.reading_interval_s
        with contextlib.suppress(OSError):  # out of descriptors: the reading before stands
            self._oom.read()
        for slow in self._inspector.inspect(self._workers.values(), now):
            self._say(slow)
        self._own_cgroups.sweep()

    # ---- stopping --------------------------------------------------------------------------------

    def _begin_stop(self) -> None:
        """Stop all workers at once. Their pipes are closed: they have a while to end by themselves."""
        if self._stop is None:
            self._replacements.waiting.clear()
            self._stop = OrderedStop(time.monotonic(), self._settings.close_s, self._settings.terminate_s)

    def _enforce_stop(self) -> None:
        if self._stop is None:
            return
        for number in self._stop.due(time.monotonic()):
            for worker in self._workers.values():
                worker.signal_group(number)
        if not self._workers or self._stop.is_given_up:
            self._end_stop()

    def _end_stop(self) -> None:
        self._stop = None
        self._finished = self._control.ended
        self._say(Stopped(self._run))
        if self._held_start is not None and not self._finished:
            (start, descriptors), self._held_start = self._held_start, None
            self._start(start, descriptors)

    # ---- events ----------------------------------------------------------------------------------

    def _say(self, event: Event, descriptors: list[int] | None = None) -> None:
        """Put an event into the outbox; its descriptors are closed once it is sent."""
        self._outbox.append((encode(next(self._numbers), event), descriptors or []))

    def _flush(self) -> None:
        while self._outbox and not self._control.ended:
            data, descriptors = self._outbox[0]
            try:
                if not self._control.try_send(data, descriptors):
                    return
            except BrokenPipeError:
                return
            self._outbox.popleft()
            close_all(descriptors)


def _watch(consumer_pid: int) -> int | None:
    """Return the consumer's pidfd. If it is gone already, so is our reason to be here."""
    try:
        pidfd = open_pidfd(consumer_pid)
    except ProcessLookupError:
        os._exit(1)
    if os.getppid() != consumer_pid:
        os._exit(1)  # the pid may be another process' by now
    return pidfd


def _sigchld_pipe() -> tuple[int, ...]:
    """Return the two ends of a pipe that SIGCHLD writes to."""
    read_fd, write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
    return read_fd, write_fd
