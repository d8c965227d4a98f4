"""Frames, tables and arrays of other libraries are datasets as they are, with workers too."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataloader import ConcatDataset, DataLoader, MappedDataset, StackDataset, Subset
from dataloader.datasets import by_row, loads_together
from tests.equality import fingerprint

COLUMNS: dict[str, Any] = {
    "id": np.arange(10, dtype=np.int16),
    "weight": np.linspace(0, 1, 10, dtype=np.float32),
    "name": list("abcdefghij"),
    "is_even": [True, False] * 5,
}


def pandas_frame() -> Any:
    return pytest.importorskip("pandas").DataFrame(COLUMNS, index=range(100, 110))


def arrow_table() -> Any:
    return pytest.importorskip("pyarrow").table(COLUMNS)


def arrow_batch() -> Any:
    return arrow_table().to_batches()[0]


def hugging_face() -> Any:
    return pytest.importorskip("datasets").Dataset.from_dict(COLUMNS)


TABLES = pytest.mark.parametrize("make", [pandas_frame, arrow_table, arrow_batch, hugging_face])
TYPED = pytest.mark.parametrize("make", [pandas_frame, arrow_table, arrow_batch])


@TABLES
def test_samples_are_rows(make: Any) -> None:
    table = make()
    (first, *others) = DataLoader(table, batch_size=4)
    assert {name: np.asarray(values).tolist() for name, values in first.items()} == {
        name: np.asarray(values[:4]).tolist() for name, values in COLUMNS.items()
    }
    assert [len(batch["id"]) for batch in others] == [4, 2]
    assert next(iter(DataLoader(table, batch_size=None, sampler=[-1])))["name"] == "j"
    assert loads_together(table)


@TYPED
def test_numbers_keep_their_type(make: Any) -> None:
    batch = next(iter(DataLoader(make(), batch_size=4)))
    assert (batch["id"].dtype, batch["weight"].dtype, batch["is_even"].dtype) == (
        np.int16,
        np.float32,
        np.bool_,
    )
    assert all(type(name) is str for name in batch["name"])


@TABLES
def test_datasets_made_of_tables_have_rows(make: Any) -> None:
    table = make()
    names = MappedDataset(Subset(table, np.array([3, 1])), lambda row: row["name"])
    assert [names[0], names[1]] == ["d", "b"]
    assert StackDataset(table, range(10))[2][0]["name"] == "c"
    assert ConcatDataset([[0], table])[1]["name"] == "a"
    part = DataLoader(table, batch_size=None).slice(8, 10)
    assert [row["name"] for row in part] == ["i", "j"]


@TYPED
def test_a_row_that_is_not_there_is_an_index_error(make: Any) -> None:
    with pytest.raises(IndexError):
        by_row(make())[10]


def test_torchs_loader_gives_rows_as_tensors() -> None:
    torch = pytest.importorskip("torch")
    loader = importlib.import_module("dataloader.torch").DataLoader(pandas_frame(), batch_size=4)
    batch = next(iter(loader))
    assert (batch["id"].dtype, batch["weight"].dtype) == (torch.int16, torch.float32)
    assert batch["name"] == ["a", "b", "c", "d"]


def test_the_loader_keeps_the_table_itself() -> None:
    frame = pandas_frame()
    loader = DataLoader(frame, batch_size=4)
    assert loader.dataset is frame
    list(loader)
    frame["more"] = 1
    assert next(iter(loader))["more"].tolist() == [1, 1, 1, 1]


def test_a_series_is_taken_by_position() -> None:
    frame = pandas_frame()
    (batch, *_) = DataLoader(frame["id"], batch_size=4)
    assert (batch.tolist(), batch.dtype) == ([0, 1, 2, 3], np.int16)


def test_two_columns_of_one_name_are_told() -> None:
    pandas, pyarrow = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    frame = pandas.DataFrame([[1, 2]], columns=["a", "a"])
    table = pyarrow.Table.from_arrays([[1], [2]], names=["a", "a"])
    for twice in (frame, table):
        with pytest.raises(ValueError, match=r"^columns \['a', 'a'\]: two have the same name: rename one"):
            by_row(twice)[0]


def test_missing_values_come_as_the_library_has_them() -> None:
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table({"a": pyarrow.array([1, None, 3], pyarrow.int32()), "list": [[1], [], None]})
    assert by_row(table).__getitems__([0, 1]) == [{"a": 1, "list": [1]}, {"a": None, "list": []}]


def test_a_subclass_of_a_frame_is_one() -> None:
    class Special(pytest.importorskip("pandas").DataFrame):  # type: ignore[misc]
        pass

    assert by_row(Special(COLUMNS))[1]["name"] == "b"


def test_a_list_and_a_memory_mapped_array_are_datasets(tmp_path: Path) -> None:
    np.save(tmp_path / "array.npy", np.arange(40, dtype=np.float32).reshape(10, 4))
    array = np.load(tmp_path / "array.npy", mmap_mode="r")
    (first, *_) = DataLoader(StackDataset(array, list("abcdefghij")), batch_size=4)
    assert (first[0].shape, first[0].dtype, first[1]) == ((4, 4), np.float32, ["a", "b", "c", "d"])


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_workers_have_the_same_rows(method: str, tmp_path: Path) -> None:
    np.save(tmp_path / "array.npy", np.arange(40, dtype=np.float32).reshape(10, 4))
    everything = StackDataset(
        frame=pandas_frame(),
        table=arrow_table(),
        hugging_face=hugging_face(),
        array=np.load(tmp_path / "array.npy", mmap_mode="r"),
        list=COLUMNS["name"],
    )
    arguments: Any = {"batch_size": 4, "shuffle": True, "seed": 3}
    expected = [fingerprint(batch) for batch in DataLoader(everything, **arguments)]
    with DataLoader(everything, **arguments, num_workers=1, multiprocessing_context=method) as loader:
        assert [fingerprint(batch) for batch in loader] == expected
