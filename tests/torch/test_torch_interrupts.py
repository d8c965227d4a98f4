"""An exception out of a signal handler, anywhere in ``next()``, loses no batch of tensors."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from dataloader.torch import DataLoader
from tests.chaos.interrupts import AtRandom, Interrupt
from tests.torch.datasets import Counting

BATCHES = 250


class Large(Counting):
    """Tensors whose batches lie in slots."""

    def __getitem__(self, index: int) -> Any:
        return torch.full((10_000,), float(index))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_no_interrupt_loses_a_batch(num_workers: int) -> None:
    context = "fork" if num_workers else None
    loader: Any = DataLoader(Large(2 * BATCHES), 2, num_workers=num_workers, multiprocessing_context=context)
    iterator: Any = iter(loader)
    striker = AtRandom(Interrupt, seed=7)
    batches: list[Any] = []
    interrupts = 0
    with loader, striker.installed():
        while len(batches) < BATCHES:
            try:
                striker.arm()
                batches.extend(islice(iterator, 1))
                striker.disarm()
            except Interrupt:
                interrupts += 1
            assert iterator._num_yielded == len(batches)
        assert next(iterator, None) is None
    assert interrupts > 10
    assert [batch[:, -1].tolist() for batch in batches] == [[2 * i, 2 * i + 1] for i in range(BATCHES)]
