"""Values shared with workers: under every start method, and by replacements too."""

from __future__ import annotations

import multiprocessing
import os
import signal
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import numpy as np
import pytest

from dataloader import DataLoader, Dataset, RestartPolicy

pytestmark = pytest.mark.usefixtures("no_helper_process_is_left")

METHODS = pytest.mark.parametrize(
    "method", ["fork", "forkserver", pytest.param("spawn", marks=pytest.mark.slow)]
)


class Sharing(Dataset[int]):
    """Counts what is loaded in every kind of shared value; sample 2 ends its first worker."""

    def __init__(self, method: str) -> None:
        context = multiprocessing.get_context(method)
        self.count, self.lock, self.event = context.Value("i"), context.Lock(), context.Event()
        self.array: Any = context.Array("i", 4)
        self.queue = context.SimpleQueue()
        self.memory: Any = SharedMemory(create=True, size=4)

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        if index == 2 and not self.event.is_set():
            self.event.set()
            os.kill(os.getpid(), signal.SIGKILL)
        with self.lock:
            self.count.value += 1
            self.array[index] += 1
            self.memory.buf[index] += 1
        self.queue.put(index)
        return index


@METHODS
def test_workers_and_their_replacements_share_with_the_consumer(method: str) -> None:
    dataset = Sharing(method)
    try:
        loader = DataLoader(
            dataset, num_workers=1, multiprocessing_context=method, restart=RestartPolicy(backoff=0.0)
        )
        with loader:
            epochs = 1 if method == "spawn" else 2
            for _ in range(epochs):  # what the first workers' end has removed, the second would not find
                assert [int(batch[0]) for batch in loader] == [0, 1, 2, 3]
            assert [report.is_death for report in loader.reports].count(True) == 1
        loaded = dataset.count.value
        assert 4 * epochs <= loaded <= 4 * epochs + 2  # after the death some may have been loaded again
        assert list(dataset.array) == list(dataset.memory.buf[:4])
        assert sum(dataset.array) == loaded
        assert dataset.event.is_set()
        assert sorted(dataset.queue.get() for _ in range(loaded))[0] == 0
    finally:
        dataset.memory.close()
        dataset.memory.unlink()


def test_what_cannot_be_shared_is_named_with_the_way_out() -> None:
    class Forked(Dataset[int]):
        def __init__(self) -> None:
            self.counters = {"seen": multiprocessing.get_context("fork").Value("i")}

        def __len__(self) -> int:
            return 1

        def __getitem__(self, index: int) -> int:
            return index

    loader = DataLoader(Forked(), num_workers=1, multiprocessing_context="forkserver")
    with loader, pytest.raises(TypeError, match=r"dataset.counters\['seen'\]") as raised:
        iter(loader)
    assert "make it by multiprocessing.get_context('forkserver')" in str(raised.value)
    assert "multiprocessing_context='fork'" in str(raised.value)
    with DataLoader(Forked(), num_workers=1, multiprocessing_context="fork") as loader:
        assert len(list(loader)) == 1


class Epochs(Dataset[int]):
    """Every sample is the epoch, which the consumer sets in a tensor in shared memory."""

    def __init__(self, torch: Any) -> None:
        self.epoch = torch.tensor(0).share_memory_()

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        return int(self.epoch)


def test_workers_that_stay_see_a_shared_tensor_change() -> None:
    dataset = Epochs(pytest.importorskip("torch"))
    with DataLoader(dataset, 2, num_workers=1, persistent_workers=True) as loader:
        for epoch in range(3):
            dataset.epoch += epoch - dataset.epoch
            assert [batch.tolist() for batch in loader] == [[epoch, epoch]]


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_managers_dict_is_the_same_everywhere(method: str) -> None:
    with multiprocessing.get_context("fork").Manager() as manager:
        shared: Any = manager.dict()

        def note(samples: list[int]) -> np.ndarray[Any, Any]:
            shared[samples[0]] = os.getpid()
            return np.array(samples)

        with DataLoader(range(2), num_workers=1, multiprocessing_context=method, collate_fn=note) as loader:
            list(loader)
        assert sorted(shared.keys()) == [0, 1]
        assert os.getpid() not in shared.values()
