"""Memory-mapped arrays travel by the name of their file as long as that is there, else by what is in it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from supervisor.payload import Payload

SMALL_BYTES = 10_000


def carried(array: Any) -> tuple[Any, int]:
    """Return what arrives, and the size of the pickle."""
    payload = Payload.pack(array)
    size_bytes = os.fstat(payload.fd).st_size
    arrived = payload.load()
    payload.close()
    return arrived, size_bytes


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "an array.npy"
    np.save(path, np.arange(60_000, dtype=np.float32).reshape(300, 200))
    return path


PARTS: dict[str, Any] = {
    "the whole": lambda array: array,
    "rows": lambda array: array[10:250],
    "every second, backwards": lambda array: array[::-2, ::3],
    "transposed": lambda array: array.T,
}


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
@pytest.mark.parametrize("mode", ["r", "r+", "c"])
def test_an_array_and_its_parts_travel_by_name(path: Path, mode: Any, part: Any) -> None:
    array = part(np.load(path, mmap_mode=mode))
    arrived, size_bytes = carried(array)
    assert size_bytes < SMALL_BYTES
    assert type(arrived) is np.memmap
    assert (arrived.dtype, arrived.shape, arrived.strides) == (array.dtype, array.shape, array.strides)
    assert np.array_equal(arrived, array)
    assert arrived.flags.writeable == (mode != "r")
    again, _ = carried(arrived)
    assert np.array_equal(again, array)


def test_what_is_written_is_seen_by_all(tmp_path: Path) -> None:
    array = np.memmap(tmp_path / "raw", np.int16, "w+", offset=6, shape=(50_000,))
    arrived, size_bytes = carried(array)
    assert size_bytes < SMALL_BYTES
    arrived[3] = 7
    arrived.flush()
    assert array[3] == 7


def test_changes_of_its_own_are_copied(path: Path) -> None:
    array = np.load(path, mmap_mode="c")
    array[0, 0] = -1
    arrived, size_bytes = carried(array)
    assert arrived[0, 0] == -1
    assert size_bytes > array.nbytes


def test_what_is_written_to_an_array_of_ones_own_stays_there(path: Path) -> None:
    array = np.load(path, mmap_mode="c")
    arrived, size_bytes = carried(array)
    assert size_bytes < SMALL_BYTES
    arrived[0, 0] = -1
    assert array[0, 0] == np.load(path)[0, 0] == 0


@pytest.mark.parametrize("replaced", [True, False])
def test_an_array_whose_file_is_gone_is_copied(path: Path, replaced: bool) -> None:
    array = np.load(path, mmap_mode="r")
    path.unlink()
    if replaced:
        np.save(path, np.zeros((300, 200), np.float32))
    arrived, size_bytes = carried(array)
    assert np.array_equal(arrived, array)
    assert size_bytes > array.nbytes
