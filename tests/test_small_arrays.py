"""Small arrays inside the pickle: what arrives is what NumPy's own pickling would have brought."""

from __future__ import annotations

import copyreg
import pickle
from typing import Any

import numpy as np
import pytest

from dataloader import small_arrays
from dataloader.arena import SMALL_BYTES

TYPES = [np.dtype(char) for char in "?bBhHiIlLqQefdgFDGSUVO"] + [np.dtype("m8[s]"), np.dtype(">i4")]


def sent(value: Any) -> tuple[Any, list[pickle.PickleBuffer]]:
    """Return what arrives, and the buffers that stayed out of band."""
    buffers: list[pickle.PickleBuffer] = []

    def keep(buffer: pickle.PickleBuffer) -> bool:
        is_small = buffer.raw().nbytes < SMALL_BYTES
        if not is_small:
            buffers.append(buffer)
        return is_small

    data = small_arrays.dumps(value, 5, buffer_callback=keep)
    return pickle.loads(data, buffers=buffers), buffers


def same(ours: Any, numpys: Any) -> bool:
    return (
        type(ours) is type(numpys)
        and ours.dtype == numpys.dtype
        and ours.shape == numpys.shape
        and ours.tobytes() == numpys.tobytes()
        and ours.flags.writeable == numpys.flags.writeable
    )


@pytest.mark.parametrize("dtype", TYPES, ids=lambda dtype: dtype.str + dtype.char)
@pytest.mark.parametrize("shape", [(), (1,), (5,), (0,), (2, 3), (2, 0, 3)], ids=str)
def test_every_type_and_shape_arrives(dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    array = np.zeros(shape, dtype)
    if dtype.kind in "biufc":
        array[...] = np.arange(array.size).reshape(shape)
    arrived, buffers = sent(array)
    assert same(arrived, pickle.loads(pickle.dumps(array, 5)))
    assert not buffers


def read_only() -> np.ndarray[Any, Any]:
    array = np.arange(4)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12).reshape(3, 4)[:, ::2],
        np.asfortranarray(np.arange(12).reshape(3, 4)),
        read_only(),
        np.arange(4).view(np.recarray),
        np.ma.masked_array([1, 2], [True, False]),
        np.zeros(3, [("a", "i4"), ("b", "f8")]),
    ],
    ids=["gaps", "columns first", "read-only", "subclass", "masked", "fields"],
)
def test_what_is_not_plain_is_numpys_business(array: np.ndarray[Any, Any]) -> None:
    arrived, _ = sent(array)
    assert same(arrived, pickle.loads(pickle.dumps(array, 5)))
    assert arrived.flags.f_contiguous == pickle.loads(pickle.dumps(array, 5)).flags.f_contiguous


def test_what_a_type_says_of_itself_is_not_lost() -> None:
    array = np.zeros(3, np.dtype("i4", metadata={"unit": "m"}))
    assert sent(array)[0].dtype.metadata == pickle.loads(pickle.dumps(array, 5)).dtype.metadata


def test_large_arrays_stay_out_of_band() -> None:
    arrived, buffers = sent({"small": np.ones(3), "large": np.ones(SMALL_BYTES // 8)})
    assert arrived["large"].sum() == SMALL_BYTES // 8
    assert [buffer.raw().nbytes for buffer in buffers] == [SMALL_BYTES]


def test_an_array_that_occurs_twice_is_one_when_it_arrives() -> None:
    array = np.arange(3)
    first, second = sent([array, array])[0]
    first[0] = 7
    assert first is second


def test_what_arrives_can_be_written_to_and_is_nobody_elses() -> None:
    array = np.arange(3)
    arrived, _ = sent(array)
    arrived[:] = 9
    assert array.tolist() == [0, 1, 2]


def as_text(array: np.ndarray[Any, Any]) -> Any:
    return str, (array.tobytes().hex(),)


def test_what_the_user_registered_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_arrays, "_REDUCERS", small_arrays.Reducers())
    monkeypatch.setitem(copyreg.dispatch_table, np.ndarray, as_text)
    assert sent([np.zeros(1, "u1")])[0] == ["00"]
