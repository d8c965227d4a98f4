"""What stands in a dataset's place, and what it writes down."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataloader import DataLoader, IterableDataset, Subset
from dataloader.bench.probe import Journal, Probe, TimedCollate, plain_index, probed, size_of
from dataloader.datasets import loads_together
from dataloader.datasets.kinds import is_iterable
from dataloader.stateful import has_state


class Squares:
    label = "squares"

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> int:
        return index * index


class Together(Squares):
    def __getitems__(self, indices: list[int]) -> list[int]:
        return [index * index for index in indices]


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter([1, 4, 9])

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal")


def noted(journal: Journal) -> list[Any]:
    return [note.index for note in journal.read()[0]]


def test_a_probe_has_the_dataset_s_attributes_both_ways(journal: Journal) -> None:
    dataset = Squares()
    probe: Any = probed(dataset, journal)
    assert (probe.label, len(probe), probe[3]) == ("squares", 5, 9)
    probe.label = "other"  # as a worker_init_fn does by get_worker_info().dataset
    assert dataset.label == "other"
    assert not hasattr(probe, "nothing")


def test_a_probe_travels_and_both_write_into_one_journal(journal: Journal) -> None:
    probe = probed(Squares(), journal)
    copy = pickle.loads(pickle.dumps(probe))
    assert type(copy) is Probe
    assert [probe[1], copy[2], probe[3]] == [1, 4, 9]
    assert noted(journal) == [1, 2, 3]


def test_a_probe_is_of_the_dataset_s_kind(journal: Journal) -> None:
    assert not loads_together(probed(Subset(Squares(), [1, 2]), journal))
    assert loads_together(probed(Together(), journal))
    stream = probed(Stream(), journal)
    assert is_iterable(stream)
    assert has_state(stream)
    assert not has_state(probed(Squares(), journal))


def test_samples_that_come_together_share_the_time(journal: Journal) -> None:
    assert list(DataLoader(probed(Together(), journal), batch_size=3, collate_fn=list)) == [
        [0, 1, 4],
        [9, 16],
    ]
    notes, _ = journal.read()
    assert [note.index for note in notes] == [0, 1, 2, 3, 4]
    assert notes[0].stop_s == pytest.approx(notes[1].start_s)


def test_samples_of_a_stream_are_numbered(journal: Journal) -> None:
    assert list(DataLoader(probed(Stream(), journal), batch_size=2, collate_fn=list)) == [[1, 4], [9]]
    assert noted(journal) == [0, 1, 2]


def test_batches_are_noted_with_what_they_are_made_of(journal: Journal) -> None:
    collate = TimedCollate(sum, journal, in_batches=True)
    assert list(DataLoader(probed(Squares(), journal), batch_size=3, collate_fn=collate)) == [5, 25]
    samples, batches = journal.read()
    assert [batch.samples for batch in batches] == [3, 2]
    assert {note.pid for note in samples} == {note.pid for note in batches} == {os.getpid()}
    assert samples[2].stop_s <= batches[0].start_s <= batches[0].stop_s <= samples[3].start_s
    single = TimedCollate(str, journal, in_batches=False)
    assert single(7) == "7"
    assert journal.read()[1][-1].samples == 1


def test_a_note_that_a_worker_died_of_is_left_out(journal: Journal) -> None:
    _ = probed(Squares(), journal)[1]
    with journal.path.open("a") as file:
        file.write('["sample", 1, 2')
    assert noted(journal) == [1]


def test_a_journal_that_nobody_wrote_is_empty(journal: Journal) -> None:
    assert journal.read() == ([], [])


def test_indices_that_json_has_not_are_told_in_words() -> None:
    assert [plain_index(index) for index in (np.int64(3), "a", (1, "b"))] == [3, "a", "(1, 'b')"]


def test_the_size_is_that_of_the_elements() -> None:
    array = np.zeros((1000, 4), np.float32)
    assert 16_000 <= size_of({"x": array}) <= 16_500  # type: ignore[operator]
    assert 1_600 <= size_of(array[:100]) <= 2_100  # type: ignore[operator]
    assert size_of(lambda: 0) is None
