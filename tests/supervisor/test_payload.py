"""Objects pickled once and mapped by all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from supervisor.payload import Payload, PayloadError
from tests.forks import in_child
from tests.limits import descriptors_without_garbage


def carried(value: Any) -> Any:
    payload = Payload.pack(value)
    try:
        return payload.load()
    finally:
        payload.close()


def test_a_large_array_is_out_of_band_and_copied_on_write() -> None:
    payload = Payload.pack(np.arange(100_000))
    assert [length for _, length, _ in payload.spans][1:] == [800_000]
    one, other = payload.load(), payload.load()
    payload.close()
    one[0] = 7
    assert other[0] == 0


def test_a_read_only_array_stays_read_only() -> None:
    array = np.zeros(100_000)
    array.flags.writeable = False
    assert not carried(array).flags.writeable


def test_arrays_are_aligned() -> None:
    arrays = carried([np.zeros(100_001, np.uint8), np.ones(100_003, np.uint8)])
    assert [array.ctypes.data % 64 for array in arrays] == [0, 0]


def test_lambdas_travel() -> None:
    offset = 3
    assert carried(lambda x: x + offset)(4) == 7


def test_functions_keep_the_file_that_they_come_from() -> None:
    function = lambda: None  # noqa: E731
    travelled, code = carried(function).__code__, function.__code__
    assert travelled.co_filename == code.co_filename == __file__
    assert travelled.co_firstlineno == code.co_firstlineno


def test_equal_functions_have_equal_digests_whoever_refers_to_their_parts() -> None:
    def function() -> str:
        return f"{function.__name__} {'a constant that is not interned'}"

    digests = []
    for _ in range(2):
        payload = Payload.pack(function)
        digests.append(payload.digest)
        payload.close()
        kept = [*function.__code__.co_consts, *function.__code__.co_names]  # counted for the second time
    assert kept
    assert digests[0] == digests[1]


def test_equal_contents_have_equal_digests() -> None:
    payloads = [Payload.pack({"a": np.full(100_000, n)}) for n in (1, 1, 2)]
    digests = [payload.digest for payload in payloads]
    for payload in payloads:
        payload.close()
    assert digests[0] == digests[1] != digests[2]


def test_modules_are_named() -> None:
    payload = Payload.pack((np.zeros(3), Payload, os.path.join))
    payload.close()
    assert {"numpy", "supervisor.payload", "posixpath"} <= {
        name.split("._core")[0] for name in payload.modules
    }


def test_what_cannot_be_pickled_says_so() -> None:
    with pytest.raises(PayloadError, match="generator"):
        Payload.pack(x for x in "abc")


def test_classes_of_main_travel_by_value() -> None:
    script = (
        "from supervisor.payload import Payload\n"
        "class Local:\n    pass\n"
        "payload = Payload.pack(Local())\n"
        "assert type(payload.load()) is Local and '__main__' not in payload.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=30)


def test_an_array_in_fortran_order_stays_so() -> None:
    array = np.asfortranarray(np.arange(200_000).reshape(400, 500))
    copy = carried(array)
    assert copy.flags.f_contiguous
    assert np.array_equal(copy, array)


def test_small_arrays_are_in_the_pickle_and_can_be_written_to() -> None:
    payload = Payload.pack([np.arange(10), np.empty(0), np.ones((3, 0))])
    one, other = payload.load(), payload.load()
    payload.close()
    assert len(payload.spans) == 1
    one[0][0] = 7
    assert other[0][0] == 0
    assert other[2].shape == (3, 0)


def test_an_array_that_occurs_twice_is_one() -> None:
    array = np.arange(100_000)
    one, other = carried([array, array])
    assert one is other


def test_writing_changes_neither_what_others_load_nor_the_digest() -> None:
    array = np.zeros(100_000)
    payload = Payload.pack(array)
    payload.load()[:] = 1
    again = Payload.pack(array)
    assert payload.load().sum() == 0
    assert payload.digest == again.digest
    payload.close()
    again.close()


def own_bytes_of(name: str) -> int:
    """Return how much of the mapped file ``name`` this process has copied for itself."""
    _, _, entry = Path("/proc/self/smaps").read_text().partition(name)
    (line,) = [line for line in entry.splitlines()[:25] if line.startswith("Anonymous:")]
    return int(line.split()[1]) << 10


def test_processes_share_the_memory_until_they_write() -> None:
    payload = Payload.pack(np.ones(50_000_000, np.uint8))

    def use() -> tuple[int, int]:
        array = payload.load()
        assert int(array.sum()) == 50_000_000  # it has seen every page
        before = own_bytes_of("worker-payload")
        array[0] = 2
        return before, own_bytes_of("worker-payload")

    before, after = in_child(use)
    payload.close()
    assert before < 1 << 20
    assert before < after < before + (4 << 20)


def test_what_is_loaded_outlives_the_descriptor() -> None:
    array = carried(np.arange(100_000))
    assert array[-1] == 99_999


@pytest.mark.parametrize("other", [{"a": 2}, {"b": 1}, {"a": 1, "b": 1}, [1]], ids=str)
def test_other_contents_have_other_digests(other: Any) -> None:
    payloads = [Payload.pack({"a": 1}), Payload.pack(other)]
    for payload in payloads:
        payload.close()
    assert payloads[0].digest != payloads[1].digest


def test_a_read_only_array_has_another_digest_than_one_to_write_to() -> None:
    arrays = [np.zeros(100_000), np.zeros(100_000)]
    arrays[1].flags.writeable = False
    payloads = [Payload.pack(array) for array in arrays]
    for payload in payloads:
        payload.close()
    assert payloads[0].digest != payloads[1].digest


class RefusesToBePickled:
    def __reduce__(self) -> Any:
        raise RuntimeError("holds a connection")


def test_the_error_of_pickling_is_the_cause_and_no_memory_is_left() -> None:
    before = descriptors_without_garbage()
    with pytest.raises(PayloadError, match="RuntimeError: holds a connection") as caught:
        Payload.pack([np.zeros(100_000), RefusesToBePickled()])
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert descriptors_without_garbage() == before


def test_a_module_that_cannot_be_imported_is_left_to_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "wave", raising=False)
    payload = Payload(-1, b"", frozenset({"no.such.module", "wave"}), ())
    payload.import_modules()
    assert "wave" in sys.modules
