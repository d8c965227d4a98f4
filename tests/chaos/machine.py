"""Whatever is done with a loader, in whatever order: each batch once, in order, with the right contents.

A Hypothesis state machine over what users, their programs and the world do with a loader and its workers.
``python -m tests.chaos.machine [EXAMPLES]`` runs it with new random examples, 300 unless told.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import random
import signal
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from numpy.typing import NDArray

from dataloader import DataLoader
from dataloader.pieces import SAMPLES_PER_PIECE
from tests.chaos.interrupts import AtRandom, Interrupt, take_by_next
from tests.chaos.ownership import double_owners
from tests.chaos.storm import POLICY, SIGKILL, SIGSEGV, SIGTERM, kill_if_alive
from tests.forks import in_child
from tests.in_pieces import always_in_pieces
from tests.processes import belongings, living_descendants, wait_until

BATCHES = 12
NUMBERS = {
    2: 5000,
    2 * SAMPLES_PER_PIECE: 8200,
}  # by batch size: one, or a row of it, is no message
MAX_ITERATORS = 2
HELD = 3  # batches that are kept for a while, to see that nobody writes into them
STOPPED_S = 0.02
STEPS = 30

Batch = tuple[NDArray[np.int64], NDArray[np.float64]]


class Noise:
    """Samples that draw at random: whoever makes them anew makes the same."""

    def __init__(self, batch_size: int) -> None:
        self.batch_size = batch_size

    def __len__(self) -> int:
        return BATCHES * self.batch_size

    def __getitem__(self, index: int) -> tuple[int, NDArray[np.float64]]:
        return index, np.full(NUMBERS[self.batch_size], random.random() + np.random.rand())


@cache
def reference(batch_size: int, seed: int, epoch: int) -> list[bytes]:
    """Return the batches of an epoch as bytes."""
    loader = DataLoader(Noise(batch_size), batch_size=batch_size, shuffle=True, seed=seed)
    loader.set_epoch(epoch)
    return [content(batch) for batch in loader]


def content(batch: Batch) -> bytes:
    return b"".join(
        np.ascontiguousarray(part[..., :1] if part.ndim > 1 else part).tobytes() for part in batch
    )


def is_whole(batch: Batch) -> bool:
    """Whether each sample's numbers are all equal: one that two workers wrote would differ in itself."""
    noise = batch[1]
    return bool((noise == noise[:, :1]).all())


@dataclass
class Reader:
    """One live iterator and what is still to come from it."""

    iterator: Iterator[Any]
    to_come: list[bytes]
    in_order: bool
    is_closed: bool = False
    arrived: deque[Batch] = field(default_factory=deque)

    def check(self) -> list[Batch]:
        """Check what has arrived, and return it."""
        checked = []
        while self.arrived:
            batch = self.arrived[0]
            assert is_whole(batch)
            position = 0 if self.in_order else self.to_come.index(content(batch))
            assert content(batch) == self.to_come[position], f"batch {BATCHES - len(self.to_come)} is another"
            del self.to_come[position]
            checked.append(self.arrived.popleft())
        return checked


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    """Collect no garbage meanwhile: Hypothesis has a call-back there, in which an interrupt would be lost."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class LoaderMachine(RuleBasedStateMachine):
    """The rules."""

    def __init__(self) -> None:
        super().__init__()
        gc.collect()
        self.before = belongings()
        self.readers: list[Reader] = []
        self.held: deque[tuple[Batch, bytes]] = deque()
        self.stopped: list[int] = []
        self.epoch = 0

    @initialize(
        seed=st.integers(0, 2),
        start_method=st.sampled_from(["fork"] * 3 + ["forkserver"]),
        num_workers=st.integers(1, 3),
        persistent=st.booleans(),
        in_order=st.booleans(),
        batch_size=st.sampled_from(list(NUMBERS)),
    )
    def make(
        self,
        seed: int,
        start_method: str,
        num_workers: int,
        persistent: bool,
        in_order: bool,
        batch_size: int,
    ) -> None:
        self.start_method = start_method
        self.batch_size = batch_size
        self._make(seed, num_workers, persistent, in_order)

    def _make(self, seed: int, num_workers: int, persistent: bool, in_order: bool) -> None:
        self.loader = DataLoader(
            Noise(self.batch_size),
            batch_size=self.batch_size,
            shuffle=True,
            seed=seed,
            num_workers=num_workers,
            persistent_workers=persistent,
            in_order=in_order,
            multiprocessing_context=self.start_method,
            restart=POLICY,
        )
        self.epoch = 0

    # ---- what a user does ------------------------------------------------------------------------

    @precondition(lambda self: len(self.readers) < MAX_ITERATORS)
    @rule()
    def begin(self) -> None:
        with self._continuing_soon():
            iterator = iter(self.loader)
        to_come = list(reference(self.batch_size, self.loader.seed, self.epoch))
        self.readers.append(Reader(iterator, to_come, self.loader.in_order))
        self.epoch += 1

    @precondition(lambda self: self.readers)
    @rule(which=st.integers(0, MAX_ITERATORS - 1), count=st.integers(1, BATCHES + 1))
    def take(self, which: int, count: int) -> None:
        reader = self.readers[which % len(self.readers)]
        with self._continuing_soon():
            if reader.is_closed:
                self._expect_closed(reader)
                return
            reader.arrived.extend(islice(reader.iterator, count))
        self._check(reader, is_over=len(reader.arrived) < count)

    @precondition(lambda self: self.readers)
    @rule(which=st.integers(0, MAX_ITERATORS - 1), seed=st.integers(0, 1000), count=st.integers(1, 8))
    def take_interrupted(self, which: int, seed: int, count: int) -> None:
        reader = self.readers[which % len(self.readers)]
        if reader.is_closed:
            return
        striker = AtRandom(Interrupt, seed)
        going = True
        with self._continuing_soon(), without_collections(), striker.installed():
            for _ in range(count):
                going = going and take_by_next(reader.iterator, reader.arrived, striker)
        self._check(reader, is_over=not going)

    def _check(self, reader: Reader, is_over: bool) -> None:
        for batch in reader.check():
            self.held.append((batch, content(batch)))
        while len(self.held) > HELD:
            self.held.popleft()
        if is_over:
            assert not reader.to_come, f"{len(reader.to_come)} batches never came"
            self.readers.remove(reader)

    def _expect_closed(self, reader: Reader) -> None:
        """An iterator of a closed loader says so."""
        self.readers.remove(reader)
        with pytest.raises(RuntimeError, match="closed"):
            next(reader.iterator)

    @precondition(lambda self: self.readers)
    @rule(which=st.integers(0, MAX_ITERATORS - 1))
    def leave(self, which: int) -> None:
        self.readers.pop(which % len(self.readers))

    @rule(epoch=st.integers(0, 5))
    def set_epoch(self, epoch: int) -> None:
        self.loader.set_epoch(epoch)
        self.epoch = epoch

    @rule()
    def close(self) -> None:
        self.loader.close()
        for reader in self.readers:
            reader.is_closed = True

    @rule(
        seed=st.integers(0, 2),
        num_workers=st.integers(1, 3),
        persistent=st.booleans(),
        in_order=st.booleans(),
        in_good_order=st.booleans(),
    )
    def make_another(
        self, seed: int, num_workers: int, persistent: bool, in_order: bool, in_good_order: bool
    ) -> None:
        """With another seed, say. The old one is closed, or just dropped with its iterators."""
        if in_good_order:
            self.loader.close()
        self.readers.clear()
        self._make(seed, num_workers, persistent, in_order)

    @precondition(lambda self: self.loader._live.pools)
    @rule()
    def fork_the_consumer(self) -> None:
        assert in_child(self._use_in_child) == "refused"

    def _use_in_child(self) -> str:
        """A child can read what it has, and use nothing else."""
        self.held_batches_are_as_they_came()
        try:
            iter(self.loader)
        except RuntimeError as error:
            return "refused" if "forked" in str(error) else str(error)
        return "it began an epoch"

    # ---- what the world does ---------------------------------------------------------------------

    @rule(which=st.integers(0, 2), number=st.sampled_from([SIGKILL, SIGSEGV, SIGTERM]))
    def kill(self, which: int, number: signal.Signals) -> None:
        workers = self.loader.workers()
        if workers:
            kill_if_alive(workers[which % len(workers)].pid, number)

    @rule(which=st.integers(0, 2))
    def stop(self, which: int) -> None:
        workers = self.loader.workers()
        if workers:
            self.stopped.append(workers[which % len(workers)].pid)
            kill_if_alive(self.stopped[-1], signal.SIGSTOP)

    @rule()
    def continue_all(self) -> None:
        while self.stopped:
            kill_if_alive(self.stopped.pop(), signal.SIGCONT)

    @contextlib.contextmanager
    def _continuing_soon(self) -> Iterator[None]:
        """Let who is stopped go on after a while: who waits for it would wait for ever."""
        if not self.stopped:
            yield
            return
        timer = threading.Timer(STOPPED_S, self.continue_all)
        timer.start()
        try:
            yield
        finally:
            timer.join()

    @rule()
    def pause(self) -> None:
        time.sleep(0.005)

    # ---- what always holds -----------------------------------------------------------------------

    @invariant()
    def no_slot_has_two_owners(self) -> None:
        if hasattr(self, "loader"):
            assert double_owners(self.loader) == []

    @invariant()
    def held_batches_are_as_they_came(self) -> None:
        for batch, came in self.held:
            assert is_whole(batch)
            assert content(batch) == came

    def teardown(self) -> None:
        self.continue_all()
        self.readers.clear()
        self.held.clear()
        if hasattr(self, "loader"):
            self.loader.close()
            del self.loader
        assert wait_until(lambda: not living_descendants(), timeout_s=3.0)
        assert belongings() == self.before


# Without shrinking: moments do not repeat, and it would take minutes.
PROFILE = settings(
    deadline=None,
    stateful_step_count=STEPS,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],
)


def run(examples: int, *, derandomize: bool) -> None:
    """Run so many examples, the same ones each time or new ones."""
    profile = settings(PROFILE, max_examples=examples, derandomize=derandomize, database=None)
    with always_in_pieces():
        run_state_machine_as_test(LoaderMachine, settings=profile)


def main(examples: int = 300) -> None:
    """Print the figures."""
    logging.getLogger("supervisor").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", "num_workers=")  # they are many on purpose
    start_s = time.monotonic()
    run(examples, derandomize=False)
    print(f"{examples} programs of up to {STEPS} steps in {time.monotonic() - start_s:.0f} s:")
    print("  each batch once, in order, whole; no slot with two owners; nothing left over")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
