"""What code in a worker learns about its worker, and worker_init_fn."""

from __future__ import annotations

import os
import random
import signal
from typing import Any

import numpy as np
import pytest

from dataloader import DataLoader, Dataset, RestartPolicy, WorkerInfo, get_worker_info

METHODS = pytest.mark.parametrize("method", ["forkserver", "fork", "spawn"])


class Informed(Dataset[Any]):
    def __init__(self) -> None:
        self.marks: list[Any] = []

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        assert info is not None
        assert info.dataset is self
        drawn = info.rng.random_generator.random(), info.rng.numpy_generator.random()
        return info.id, info.num_workers, info.seed, tuple(self.marks), drawn


def mark(worker: int) -> None:
    info = get_worker_info()
    assert isinstance(info, WorkerInfo)
    info.dataset.marks.append((worker, random.getrandbits(32), int(np.random.randint(2**31))))


def informed(method: str, **arguments: Any) -> DataLoader:
    return DataLoader(
        Informed(), num_workers=2, collate_fn=list, multiprocessing_context=method, seed=10, **arguments
    )


@METHODS
def test_every_sample_knows_its_worker(method: str) -> None:
    with informed(method, worker_init_fn=mark) as loader:
        samples = [sample for batch in loader for sample in batch]
    assert {sample[:3] for sample in samples} == {(0, 2, 10), (1, 2, 11)}
    marks = {sample[3] for sample in samples}
    assert {worker for ((worker, _, _),) in marks} == {0, 1}
    assert len({drawn for ((_, *drawn),) in marks for drawn in drawn}) == 4
    assert len({sample[4] for sample in samples}) == 12
    assert get_worker_info() is None


def test_worker_init_fn_is_seeded_the_same_each_time() -> None:
    def marks() -> set[Any]:
        with informed("fork", worker_init_fn=mark) as loader:
            return {sample[3] for batch in loader for sample in batch}

    assert marks() == marks()


def marks_of_both(loader: DataLoader) -> dict[int, Any]:
    """Return both workers' marks: in one epoch the quicker may have made all batches."""
    marks: dict[int, Any] = {}
    while len(marks) < 2:
        marks.update((sample[0], sample[3]) for batch in loader for sample in batch)
    return marks


def test_a_replacement_runs_worker_init_fn_too() -> None:
    policy = RestartPolicy(backoff=0)
    with informed("fork", worker_init_fn=mark, restart=policy, persistent_workers=True) as loader:
        before = marks_of_both(loader)
        for worker in loader.workers():
            os.kill(worker.pid, signal.SIGKILL)
        assert marks_of_both(loader) == before
    assert sum(report.is_death for report in loader.reports) == 2


@METHODS
def test_what_worker_init_fn_raises_is_raised_by_iter(method: str) -> None:
    def fail(worker: int) -> None:
        raise LookupError(f"no device for worker {worker}")

    with (
        informed(method, worker_init_fn=fail) as loader,
        pytest.raises(LookupError, match=r"no device for worker \d") as caught,
    ):
        iter(loader)
    assert "in fail" in str(caught.value.__cause__)


def test_a_workers_info_says_nothing_outside_it() -> None:
    with informed("fork") as loader:
        list(loader)
    assert get_worker_info() is None
