"""What the tests of trainers train on, and how they see whose loader it was."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import torch

from dataloader.torch import DataLoader
from tests.datasets import first_time


class Noisy(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Four numbers with noise, and their label; sample ``fatal`` ends its first worker."""

    def __init__(self, length: int = 24, fatal: int | None = None, once: Path | None = None) -> None:
        self.length, self.fatal, self.once = length, fatal, once

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if index == self.fatal and self.once is not None and first_time(self.once):
            os.kill(os.getpid(), signal.SIGKILL)
        x = torch.full((4,), index / self.length) + 0.1 * torch.rand(4)
        return {"x": x, "labels": torch.tensor(index % 2), "index": torch.tensor(index)}


class Classifier(torch.nn.Module):
    """A linear layer that keeps what it was given, in order."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(4, 2)
        self.seen: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor, labels: torch.Tensor, index: Any = None) -> dict[str, torch.Tensor]:
        self.seen.append(x.detach().clone())
        logits = self.layer(x)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


def deaths(loader: DataLoader[Any]) -> int:
    """Return how many workers of a loader of ours have died."""
    assert isinstance(loader, DataLoader)
    return sum(report.is_death for report in loader.reports)


def equal(ones: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    return len(ones) == len(others) and all(map(torch.equal, ones, others))
