"""Iterable datasets in torch's loader: torch's, ours, Hugging Face's; torch's order, and deaths."""

from __future__ import annotations

import os
import random
import signal
import warnings
from collections.abc import Iterator
from itertools import chain
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.utils.data as data
from torch.utils.data import get_worker_info

from dataloader import IterableDataset as OurIterableDataset
from dataloader.torch import DataLoader
from tests.streams import Numbers

FORK: dict[str, Any] = {"multiprocessing_context": "fork"}


class Uneven(data.IterableDataset[Any]):
    """Worker i gives ``lengths[i]`` numbers, or without workers those of all; each with a random one."""

    def __init__(self, lengths: tuple[int, ...]) -> None:
        self.lengths = lengths

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        of_all = [range(100 * worker, 100 * worker + length) for worker, length in enumerate(self.lengths)]
        for number in chain(*of_all) if info is None else of_all[info.id]:
            yield number, torch.rand(1).item(), random.random()


class Whole(data.IterableDataset[int]):
    """Each worker gives all of it."""

    def __len__(self) -> int:
        return 5

    def __iter__(self) -> Iterator[int]:
        return iter(range(5))


def numbers(batches: Any) -> list[Any]:
    return [batch[0].tolist() if isinstance(batch[0], torch.Tensor) else batch[0] for batch in batches]


@pytest.mark.parametrize("lengths", [(7, 2), (0, 5)], ids=str)
@pytest.mark.parametrize(
    "arguments",
    [
        {"batch_size": 2},
        {"batch_size": 3, "drop_last": True, "prefetch_factor": 3},
        {"batch_size": None, "prefetch_factor": 1},
    ],
    ids=str,
)
def test_the_order_is_torchs(lengths: tuple[int, ...], arguments: dict[str, Any]) -> None:
    torchs = data.DataLoader(Uneven(lengths), num_workers=2, **FORK, **arguments)
    with DataLoader(Uneven(lengths), num_workers=2, **FORK, **arguments) as loader:
        assert numbers(loader) == numbers(torchs)
    arguments.pop("prefetch_factor", None)
    assert numbers(DataLoader(Uneven(lengths), **arguments)) == numbers(
        data.DataLoader(Uneven(lengths), **arguments)
    )


def test_what_torch_refuses_is_refused() -> None:
    for arguments in ({"shuffle": True}, {"sampler": [0]}, {"batch_sampler": [[0]]}):
        with pytest.raises(ValueError, match="DataLoader with IterableDataset: expected unspecified"):
            DataLoader(Whole(), **arguments)
    with pytest.raises(ValueError, match="on_error='skip' with an iterable dataset that has no exact state"):
        DataLoader(Whole(), on_error="skip")


def test_ours_are_torchs_too() -> None:
    assert isinstance(Numbers(4), data.IterableDataset)
    assert not isinstance(OurIterableDataset, data.IterableDataset)
    loader = DataLoader(Numbers(5), batch_size=2)
    assert loader._dataset_kind == data.dataloader._DatasetKind.Iterable
    assert numbers(loader) == [[0, 1], [2, 3], [4]]


def test_the_length_and_its_warnings_are_torchs() -> None:
    loader = DataLoader(Whole(), batch_size=2, num_workers=2, persistent_workers=True, **FORK)
    with loader, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        list(loader)
        assert [str(warning.message)[:36] for warning in caught] == ["workers 0 and 1 give the same data: "]
        caught.clear()
        assert len(loader) == 3
        list(loader)
        assert [str(warning.message).partition(", but ")[2][:25] for warning in caught] == [
            f"{count} samples have been fetched"[:25] for count in (6, 8, 9, 10)
        ]


def test_a_killed_workers_stream_goes_on_and_is_resumed() -> None:
    def loader() -> Any:
        return DataLoader(Uneven((40, 30)), 4, num_workers=2, seed=7, collate_fn=list, **FORK)

    with loader() as calm:
        expected = list(calm)
    with loader() as rough:
        iterator = iter(rough)
        come = [next(iterator) for _ in range(5)]
        os.kill(rough.workers()[0].pid, signal.SIGKILL)
        come += [next(iterator) for _ in range(5)]
        state = rough.state_dict()
        assert come + list(iterator) == expected
        assert [report.reason.name for report in rough.reports if report.is_death] == ["KILLED"]
    with loader() as other:
        other.load_state_dict(state)
        assert come + list(other) == expected


# ---- Hugging Face --------------------------------------------------------------------------------


def shards_of_numbers(shards: list[int]) -> Iterator[dict[str, int]]:
    for shard in shards:
        for number in range(100 * shard, 100 * shard + 15):
            yield {"number": number}


@pytest.mark.parametrize("shuffled", [False, True])
def test_a_hugging_face_stream_loses_nothing(shuffled: bool, caplog: pytest.LogCaptureFixture) -> None:
    datasets = pytest.importorskip("datasets")

    def loader(workers: int) -> Any:
        dataset = datasets.IterableDataset.from_generator(
            shards_of_numbers, gen_kwargs={"shards": list(range(4))}
        )
        if shuffled:
            dataset = dataset.shuffle(seed=3, buffer_size=7)
        dataset = dataset.map(lambda row: {"number": row["number"] + 1})
        method = "fork" if workers else None
        return DataLoader(dataset, 4, num_workers=workers, multiprocessing_context=method, seed=1)

    def rows(batches: Any) -> list[int]:
        return [number for batch in batches for number in batch["number"].tolist()]

    everything = sorted(100 * shard + number for shard in range(4) for number in range(1, 16))
    with loader(2) as calm:
        expected = rows(calm)
    assert sorted(expected) == everything
    with loader(2) as rough:
        iterator = iter(rough)
        come = [next(iterator) for _ in range(5)]
        os.kill(rough.workers()[0].pid, signal.SIGKILL)
        state = rough.state_dict()
        assert rows(chain(come, iterator)) == expected
    drawn_again = [message for message in caplog.messages if "drawn again" in message]
    assert bool(drawn_again) == shuffled  # its own state would lose what is in the buffer
    with loader(2) as other:
        other.load_state_dict(state)
        assert rows(come) + rows(other) == expected
    own = loader(0)
    iterator = iter(own)
    come = [next(iterator) for _ in range(3)]
    other = loader(0)
    other.load_state_dict(own.state_dict())
    assert sorted(rows(chain(come, other))) == everything
    assert sorted(rows(other)) == everything  # the next epoch begins anew
