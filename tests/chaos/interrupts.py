"""Exceptions out of a signal handler: at random moments, and at every place where one can strike.

``python -m tests.chaos.interrupts`` prints how many interrupts struck inside ``next``, and where;
every batch came once, whole and in order.
"""

from __future__ import annotations

import inspect
import logging
import os
import random
import signal
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, islice, product
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

import dataloader
import supervisor
from dataloader import DataLoader
from dataloader.pieces import SAMPLES_PER_PIECE
from dataloader.worker_iterator import WorkerIterator
from supervisor.channel import close_all
from tests.chaos.killings import supervisor_pid
from tests.chaos.storm import POLICY, Killer, kill_if_alive
from tests.in_pieces import always_in_pieces
from tests.processes import belongings
from tests.toy_pool import operations, runs_handlers_after

BATCHES = 300  # in an epoch
HELD = 4  # batches that are kept for a while, to see that nobody writes into them

NEXT = WorkerIterator.__next__.__code__
OURS = tuple(str(Path(package.__path__[0])) for package in (dataloader, supervisor))


class Interrupt(Exception):
    """What the handler raises. An Exception: told from an error by its traceback, not by its type."""


@dataclass(frozen=True)
class Kind:
    """How the batches of a test travel.

    Parameters:
        batch_size: samples in a batch; 22,000 indices do not fit into a message, nor does the task then.
        numbers: how many numbers a sample holds.
        in_pieces: make each batch in two pieces.
    """

    batch_size: int
    numbers: int
    in_pieces: bool = False


INLINE = Kind(batch_size=4, numbers=4)
IN_SLOTS = Kind(batch_size=4, numbers=3000)
IN_PIECES = Kind(batch_size=2 * SAMPLES_PER_PIECE, numbers=8200, in_pieces=True)  # and into one slot
LARGE_TASKS = Kind(batch_size=22_000, numbers=1)


class Numbers:
    """Sample i holds nothing but the number i."""

    def __init__(self, length: int, numbers: int) -> None:
        self.length = length
        self.numbers = numbers

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return float(index) if self.numbers == 1 else np.full(self.numbers, float(index))


def loader_of(kind: Kind, batches: int, start_method: str) -> DataLoader:
    """Return a loader of ``Numbers`` whose workers may die as often as they like."""
    return DataLoader(
        Numbers(batches * kind.batch_size, kind.numbers),
        batch_size=kind.batch_size,
        num_workers=2,
        multiprocessing_context=start_method,
        persistent_workers=True,
        restart=POLICY,
    )


class Taken:
    """What came out of an epoch of ``Numbers``: checked when it comes, and again a few batches later."""

    def __init__(self) -> None:
        self.arrived: deque[NDArray[np.float64]] = deque()  # filled by C code, which no handler splits
        self._held: deque[NDArray[np.float64]] = deque()
        self.count = 0

    def check(self) -> None:
        """Check what has arrived."""
        while self.arrived:
            _require(self.arrived[0], self.count, "as it came")
            self._held.append(self.arrived.popleft())
            self.count += 1
            if len(self._held) > HELD:
                self._check_oldest("later")

    def end(self, batches: int) -> None:
        """Check the rest, and that there were ``batches``."""
        self.check()
        while self._held:
            self._check_oldest("at the end")
        assert self.count == batches, f"{self.count} batches of {batches}"

    def _check_oldest(self, when: str) -> None:
        _require(self._held[0], self.count - len(self._held), when)
        self._held.popleft()


def _require(batch: NDArray[np.float64], number: int, when: str) -> None:
    size = len(batch)
    expected = np.arange(number * size, (number + 1) * size, dtype=np.float64)
    if not (batch.reshape(size, -1) == expected[:, None]).all():
        raise AssertionError(f"batch {number}, {when}, holds {batch.tolist()}")


# ---- at random moments ---------------------------------------------------------------------------


class Striker(Protocol):
    """Something that interrupts whoever takes batches."""

    error: type[BaseException]

    def arm(self) -> None:
        """Be ready to strike, from now on, once."""

    def disarm(self) -> None:
        """Strike no more until armed again. Who has struck is disarmed."""


@dataclass
class Landed:
    """Where interrupts struck: how many, how many of them inside ``next``, and in which functions."""

    total: int = 0
    inside: int = 0
    places: Counter[str] = field(default_factory=Counter)

    def note(self, frame: FrameType | None) -> None:
        self.total += 1
        name = "" if frame is None else frame.f_code.co_name
        while frame is not None and frame.f_code is not NEXT:
            frame = frame.f_back
        if frame is not None:
            self.inside += 1
            self.places[name] += 1


class AtRandom:
    """Raises ``error`` at seeded random moments while ``next`` runs, by a timer of the kernel's.

    The timer is set anew for each call. Calls take microseconds or milliseconds, so the delays are of every
    order of magnitude between.
    """

    SHORTEST_S, LONGEST_S = 3e-6, 3e-3

    def __init__(self, error: type[BaseException], seed: int) -> None:
        self.error = error
        self.landed = Landed()
        self._armed = False
        self._random = random.Random(seed)

    @contextmanager
    def installed(self) -> Iterator[None]:
        before = signal.signal(signal.SIGALRM, self._raise)
        try:
            yield
        finally:
            self.disarm()
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def _raise(self, number: int, frame: FrameType | None) -> None:
        if self._armed:  # one may still be on its way when its call is over
            self._armed = False
            self.landed.note(frame)
            raise self.error

    def arm(self) -> None:
        delay_s = self.SHORTEST_S * (self.LONGEST_S / self.SHORTEST_S) ** self._random.random()
        self._armed = True
        signal.setitimer(signal.ITIMER_REAL, delay_s)

    def disarm(self) -> None:
        self._armed = False


# ---- at every place ------------------------------------------------------------------------------


class Everywhere:
    """Raises ``Interrupt`` at every place of our code that is reached, ``visits`` times each.

    A place is where the interpreter may run a signal handler: where a function begins, after each call, and
    where a loop begins anew. Each call of ``next`` is struck at the first place that has not had its share.
    """

    def __init__(self, visits: int) -> None:
        self.error: type[BaseException] = Interrupt
        self.strikes: Counter[tuple[CodeType, int]] = Counter()
        self._visits = visits
        self._before: dict[FrameType, str] = {}

    @contextmanager
    def installed(self) -> Iterator[None]:
        before = signal.signal(signal.SIGUSR1, self._trace)  # what it raises is then a handler's
        try:
            yield
        finally:
            self.disarm()
            signal.signal(signal.SIGUSR1, before)

    def arm(self) -> None:
        self._before.clear()
        sys.settrace(self._trace)

    def disarm(self) -> None:
        sys.settrace(None)
        self._before.clear()

    def _trace(self, frame: Any, event: Any, argument: object = None) -> Callable[..., Any] | None:
        if event == "call":
            if not frame.f_code.co_filename.startswith(OURS):
                return None
            frame.f_trace_lines, frame.f_trace_opcodes = False, True
            if not frame.f_code.co_flags & inspect.CO_GENERATOR:  # which is also called when it is dropped
                self._strike(frame)
        elif event == "opcode":
            if runs_handlers_after(self._before.get(frame, "")):
                self._strike(frame)
            self._before[frame] = operations(frame.f_code)[frame.f_lasti]
        elif event == "exception":
            self._before[frame] = ""  # no handler runs after a call that raised
        return self._trace

    def _strike(self, frame: FrameType) -> None:
        place = (frame.f_code, frame.f_lasti)
        if self.strikes[place] < self._visits:
            self.strikes[place] += 1
            self._before.clear()  # it would keep frames alive, and with them whatever they know
            raise self.error


# ---- taking batches meanwhile --------------------------------------------------------------------


def take_by_next(iterator: Iterator[Any], arrived: deque[Any], striker: Striker) -> bool:
    """Take one batch, if no interrupt comes; return whether there may be more.

    ``extend`` stores what ``next`` returned within one C call. What strikes between the end of ``next`` and
    an assignment of its value would lose a batch, and it would be the caller who lost it.
    """
    count = len(arrived)
    try:
        striker.arm()
        arrived.extend(islice(iterator, 1))
        striker.disarm()
    except striker.error:
        return True
    return len(arrived) > count


def take_by_for(iterator: Iterator[Any], arrived: deque[Any], striker: Striker) -> bool:
    """Take batches until an interrupt comes; return whether there may be more.

    No handler runs between the end of ``__next__`` and the call in the first line of the loop.
    """
    try:
        striker.arm()
        for batch in iterator:
            arrived.append(batch)
            striker.arm()
        striker.disarm()
    except striker.error:
        return True
    return False


Take = Callable[[Iterator[Any], "deque[Any]", Striker], bool]


def interrupted_epoch(loader: DataLoader, striker: Striker, take: Take, note: Callable[[int], None]) -> None:
    """Iterate through an epoch of ``Numbers``, going on after each interrupt, and check every batch.

    ``note`` is told how many batches have come, before each attempt.
    """
    taken = Taken()
    iterator = iter(loader)
    going = True
    while going:
        note(taken.count)
        going = take(iterator, taken.arrived, striker)
        taken.check()
        received = loader.state_dict()["_num_yielded"]
        assert received == taken.count, f"the state counts {received} batches of {taken.count}"
    taken.end(len(loader))


def interrupt_at_random(
    loader: DataLoader, striker: AtRandom, inside: int, take: Take = take_by_next, kills_per_epoch: int = 0
) -> int:
    """Run whole epochs until so many interrupts have struck inside ``next``; return how many were killed."""
    epochs = killed = 0
    with striker.installed():
        while striker.landed.inside < inside:
            with Killer(loader, kills_per_epoch, len(loader), seed=epochs) as killer:
                interrupted_epoch(loader, striker, take, killer.note)
            epochs, killed = epochs + 1, killed + len(killer.killed)
    return killed


def interrupt_everywhere(
    loader: DataLoader, striker: Everywhere, epochs: int, kills_per_epoch: int = 0
) -> None:
    """Run epochs, interrupted at every place that is reached."""
    with striker.installed():
        for epoch in range(epochs):
            with Killer(loader, kills_per_epoch, len(loader), seed=epoch) as killer:
                interrupted_epoch(loader, striker, take_by_next, killer.note)


def interrupt_revivals(loader: DataLoader, striker: Everywhere, epochs: int) -> None:
    """Run epochs in each of which the supervisor is killed, interrupted at every place that is reached."""

    for _ in range(epochs):
        alive = [supervisor_pid(loader)]

        def kill_once(count: int, alive: list[int] = alive) -> None:
            while count and alive:
                os.kill(alive.pop(), signal.SIGKILL)

        with striker.installed():
            interrupted_epoch(loader, striker, take_by_next, kill_once)


# ---- leaving after an interrupt ------------------------------------------------------------------


class Stranger:
    """A thread that opens and closes files all the time, and notes when somebody else closes one of its own.

    Who closes a descriptor twice closes, the second time, whatever has got its number in between.
    """

    def __init__(self) -> None:
        self.robbed: list[int] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Stranger:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        zero = os.stat("/dev/zero").st_rdev
        while not self._over.is_set():
            descriptors = [os.open("/dev/zero", os.O_RDONLY) for _ in range(8)]
            self._over.wait(0.0003)
            self.robbed += [fd for fd in descriptors if _device(fd) != zero]
            close_all(fd for fd in descriptors if fd not in self.robbed)


def _device(fd: int) -> int | None:
    try:
        return os.fstat(fd).st_rdev
    except OSError:
        return None


def leave_after_interrupts(kind: Kind, striker: Everywhere, leave: Leave, rounds: int) -> None:
    """Start a loader, take batches until it was interrupted a few times, and leave it so; ``rounds`` times.

    Every other time a worker is killed first.
    """
    with Stranger() as stranger, striker.installed():
        for number in range(rounds):
            leave(*_interrupted_loader(kind, striker, strikes=number % 4 + 1, kill=bool(number % 2)))
            assert stranger.robbed == []


def _interrupted_loader(
    kind: Kind, striker: Everywhere, strikes: int, kill: bool
) -> tuple[DataLoader, Iterator[Any]]:
    loader = loader_of(kind, 20, "fork")
    iterator = iter(loader)
    taken = Taken()
    enough = sum(striker.strikes.values()) + strikes
    if kill:
        kill_if_alive(loader.workers()[0].pid)
    while take_by_next(iterator, taken.arrived, striker) and sum(striker.strikes.values()) < enough:
        taken.check()
    return loader, iterator


Leave = Callable[[DataLoader, Iterator[Any]], None]


def close(loader: DataLoader, iterator: Iterator[Any]) -> None:
    """Close it in order."""
    loader.close()


def begin_anew(loader: DataLoader, iterator: Iterator[Any]) -> None:
    """Take a whole epoch from it, then close it."""
    del iterator
    with loader:
        taken = Taken()
        for batch in loader:
            taken.arrived.append(batch)
            taken.check()
        taken.end(len(loader))


# ---- figures -------------------------------------------------------------------------------------


def figures(
    kind: Kind, start_method: str, error: type[BaseException], take: Take, kills_per_epoch: int
) -> Iterator[str]:
    """Interrupt at random moments; give the figures, a line each."""
    before = belongings()
    striker = AtRandom(error, seed=3)
    start_s = time.monotonic()
    with always_in_pieces(kind.in_pieces), loader_of(kind, BATCHES, start_method) as loader:
        killed = interrupt_at_random(loader, striker, 1000, take, kills_per_epoch)
    duration_s = time.monotonic() - start_s
    landed = striker.landed
    way = f"{start_method}, {kind}, {error.__name__}, {take.__name__}"
    yield f"{way}, {killed} workers killed: {duration_s:.1f} s"
    yield f"  {landed.total} interrupts, {landed.inside} inside next, in {len(landed.places)} functions:"
    yield "  " + ", ".join(f"{name} {count}" for name, count in landed.places.most_common(8))
    left = tuple(now - then for now, then in zip(belongings(), before, strict=True))
    yield f"  every batch once, whole, in order; left over (descriptors, mappings, threads) {left}"


def figures_of_everywhere(kind: Kind, start_method: str, kills_per_epoch: int) -> Iterator[str]:
    """Interrupt at every place; give the figures, a line each."""
    before = belongings()
    striker = Everywhere(visits=3)
    with always_in_pieces(kind.in_pieces), loader_of(kind, BATCHES, start_method) as loader:
        interrupt_everywhere(loader, striker, epochs=5, kills_per_epoch=kills_per_epoch)
    struck = sum(striker.strikes.values())
    yield f"{start_method}, {kind}: struck {struck} times, at {len(striker.strikes)} places of our code"
    left = tuple(now - then for now, then in zip(belongings(), before, strict=True))
    yield f"  every batch once, whole, in order; left over (descriptors, mappings, threads) {left}"


def main() -> None:
    """Print the figures."""
    logging.getLogger("supervisor").setLevel(logging.ERROR)
    lines: list[Iterator[str]] = []
    for start_method, kind, kills in product(("fork", "forkserver"), (INLINE, IN_SLOTS, IN_PIECES), (0, 20)):
        for error, take in product((Interrupt, KeyboardInterrupt), (take_by_next, take_by_for)):
            lines.append(figures(kind, start_method, error, take, kills))
        lines.append(figures_of_everywhere(kind, start_method, kills))
    for line in chain.from_iterable(lines):
        print(line, flush=True)


if __name__ == "__main__":
    main()
