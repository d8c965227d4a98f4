"""Whole programs: they end by themselves, with what torch's threads and an early exit may do to a fork."""

from __future__ import annotations

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

PROGRAM = """
import torch

from dataloader.torch import DataLoader


class Convolved(torch.utils.data.Dataset):
    x = torch.ones(1, 1, 24_000)

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.nn.functional.conv1d(self.x, torch.ones(1, 1, 2))


class Empty(Convolved):
    def __len__(self):
        return 10_000_000

    def __getitem__(self, index):
        return torch.empty(0)


torch.set_num_threads(4)
dataset = Convolved()
dataset[0]  # so that torch's threads run before the fork
fork = {"multiprocessing_context": "fork", "num_workers": 2}
for batch in DataLoader(dataset, 8, persistent_workers=True, **fork):
    assert batch.shape == (8, 1, 1, 23_999)
loaders = [
    DataLoader(dataset, 8, persistent_workers=True, **fork),
    DataLoader(Empty(), 40_960, **fork),
    DataLoader(dataset, 8, **fork),
]
iterators = [iter(loader) for loader in loaders]
for iterator in iterators:
    next(iterator)
print("done", flush=True)
raise RuntimeError("my error")
"""


@pytest.mark.slow
def test_a_program_that_fails_ends_with_live_iterators() -> None:
    command = [sys.executable, "-c", PROGRAM]
    outcome = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert (outcome.stdout, outcome.returncode) == ("done\n", 1), outcome.stderr
    assert outcome.stderr.endswith("RuntimeError: my error\n")
