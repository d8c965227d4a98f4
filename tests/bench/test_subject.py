"""Loaders that are made of what was found."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
import pytest

from dataloader import BatchSampler, DataLoader, RestartPolicy, SequentialSampler
from dataloader.bench import subject as module
from dataloader.bench.subject import Options, Subject
from dataloader.bench.target import TargetError


class Twos:
    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> np.int64:
        return np.int64(2 * index)


class NoLength:
    def __getitem__(self, index: int) -> int:
        return index


@pytest.fixture(autouse=True)
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests may have imported it."""
    monkeypatch.setattr(module, "_kind_for", lambda: DataLoader)


def batches(loader: Any) -> list[list[int]]:
    with loader:
        return [batch.tolist() for batch in loader]


def test_a_dataset_is_shuffled_the_same_way_for_any_number_of_workers() -> None:
    subject = Subject("twos", Twos(), Options(batch_size=10, start_method="fork", seed=3))
    alone = batches(subject.loader(0))
    assert batches(subject.loader(2)) == alone
    assert sorted(chain(*alone)) == list(range(0, 200, 2))
    assert alone[0] != list(range(0, 20, 2))
    assert (subject.batch_size, subject.start_method, subject.length) == (10, "fork", 100)
    assert Subject("twos", Twos(), Options()).batch_size == 32


def test_a_loader_keeps_its_settings_but_no_policy_that_hides_deaths() -> None:
    given = DataLoader(
        Twos(),
        batch_size=5,
        num_workers=1,
        timeout=9,
        prefetch_factor=3,
        multiprocessing_context="spawn",
        restart=RestartPolicy(),
        collate_fn=list,
        drop_last=True,
        worker_memory_limit="1GiB",
    )
    subject = Subject("given", given, Options())
    with_workers, alone = subject.loader(2), subject.loader(0)
    assert (with_workers.num_workers, with_workers.batch_size) == (2, 5)
    assert (with_workers.timeout, with_workers.prefetch_factor, with_workers.drop_last) == (9, 3, True)
    assert with_workers.start_method == subject.start_method == "spawn"
    assert with_workers.collate_fn is list
    assert with_workers.restart is alone.restart is None
    assert (alone.num_workers, alone.timeout, alone.worker_memory_limit) == (0, 0, None)
    assert Subject("given", given, Options(start_method="fork")).loader(1).start_method == "fork"


def test_a_loader_s_batch_size_can_be_changed_if_it_has_one() -> None:
    assert Subject("given", DataLoader(Twos()), Options(batch_size=7)).batch_size == 7
    fours = BatchSampler(SequentialSampler(Twos()), 4, False)
    for given, what in {
        DataLoader(Twos(), batch_sampler=fours): "has a batch_sampler",
        DataLoader(Twos(), batch_size=None): "gives single samples",
    }.items():
        with pytest.raises(TargetError, match=f"--batch-size 7: given {what}: leave it out"):
            Subject("given", given, Options(batch_size=7))


@pytest.mark.parametrize(
    ("thing", "message"),
    [
        ([], "thing has no samples: there is nothing to measure"),
        (DataLoader([]), "thing has no samples"),
        (DataLoader([1, 2], batch_size=3, drop_last=True), "thing gives no batch of its 2 samples"),
        (
            type("NoLength", (), {"__getitem__": lambda self, index: index})(),
            "thing has no __len__: define it",
        ),
    ],
)
def test_what_gives_nothing_is_refused(thing: Any, message: str) -> None:
    with pytest.raises(TargetError, match=message):
        Subject("thing", thing, Options())
