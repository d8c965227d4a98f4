"""An exception out of a signal handler, at any instruction of next(), loses nothing."""

from __future__ import annotations

import contextlib
import random
import signal
from collections import deque
from collections.abc import Iterator
from itertools import islice
from types import FrameType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dataloader import DataLoader
from tests.chaos.storm import POLICY, Killer
from tests.processes import belongings

SAMPLES = 6000
INLINE, IN_SLOTS = 4, 3000  # numbers in a sample; batches of four


class Numbers:
    """Sample i holds nothing but the number i."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> NDArray[np.float64]:
        return np.full(self.size, float(index))


class Interrupt(Exception):
    """What the handler raises."""


class Interrupter:
    """Raises ``error`` in the main thread at seeded random moments while ``next`` runs."""

    def __init__(self, error: type[BaseException]) -> None:
        self.error = error
        self.landed = 0
        self._armed = False
        self._random = random.Random(3)

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        before = signal.signal(signal.SIGALRM, self._raise)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def _raise(self, number: int, frame: FrameType | None) -> None:
        # A signal can be on its way, by another thread, when the timer is stopped.
        if self._armed:
            self._armed = False
            self.landed += 1
            raise self.error

    def take(self, iterator: Iterator[Any], taken: deque[Any]) -> bool:
        """Take one batch if no interrupt comes; return whether there may be more.

        ``extend`` stores what ``next`` returned within one C call: a batch is either in ``taken`` or still
        to come.
        """
        count = len(taken)
        try:
            self._armed = True
            signal.setitimer(signal.ITIMER_REAL, self._random.expovariate(1 / 2e-4))
            taken.extend(islice(iterator, 1))
            self._armed = False
        except self.error:
            return True
        return len(taken) > count


@pytest.mark.parametrize("error", [Interrupt, KeyboardInterrupt])
@pytest.mark.parametrize("size", [INLINE, IN_SLOTS], ids=["inline", "in slots"])
@pytest.mark.parametrize("start_method", ["fork", "forkserver"])
def test_a_thousand_interrupts_lose_nothing(start_method: str, size: int, error: type[BaseException]) -> None:
    before = belongings()
    interrupter = Interrupter(error)
    with _loader(start_method, size) as loader:
        assert _indices(_interrupted_epochs(loader, interrupter, interrupts=1000)) == _expected(loader)
    assert interrupter.landed >= 1000
    assert belongings() == before


def test_interrupts_and_kills_together_lose_nothing() -> None:
    before = belongings()
    interrupter = Interrupter(Interrupt)
    with _loader("fork", IN_SLOTS) as loader, Killer(loader, per_s=50.0, limit=100, seed=4):
        assert _indices(_interrupted_epochs(loader, interrupter, interrupts=300)) == _expected(loader)
    assert belongings() == before


def _loader(start_method: str, size: int) -> DataLoader:
    return DataLoader(
        Numbers(size),
        batch_size=4,
        num_workers=2,
        multiprocessing_context=start_method,
        persistent_workers=True,
        restart=POLICY,
    )


EPOCHS: dict[int, int] = {}


def _interrupted_epochs(loader: DataLoader, interrupter: Interrupter, interrupts: int) -> list[float]:
    """Run whole epochs until enough interrupts have landed; return every sample, checked."""
    samples: list[float] = []
    epochs = 0
    while interrupter.landed < interrupts:
        epochs += 1
        samples += _interrupted_epoch(loader, interrupter)
    EPOCHS[id(loader)] = epochs
    return samples


def _interrupted_epoch(loader: DataLoader, interrupter: Interrupter) -> list[float]:
    samples: list[float] = []
    held: deque[NDArray[np.float64]] = deque()
    iterator = iter(loader)
    with interrupter.installed():
        going = True
        while going:
            going = interrupter.take(iterator, held)
            # Three batches are held for a while, to see that nobody writes into them.
            while len(held) > (3 if going else 0):
                batch = held.popleft()
                assert (batch == batch[:, :1]).all()
                samples += batch[:, 0].tolist()
    return samples


def _indices(samples: list[float]) -> list[int]:
    return [int(sample) for sample in samples]


def _expected(loader: DataLoader) -> list[int]:
    return list(range(SAMPLES)) * EPOCHS[id(loader)]
