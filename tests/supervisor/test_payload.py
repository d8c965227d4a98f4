"""Objects pickled once and mapped by all."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from supervisor.payload import Payload, PayloadError


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
