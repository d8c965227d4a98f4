"""What processes share is still shared once it was pickled: a change on one side is seen on the other."""

from __future__ import annotations

import ctypes
import importlib
import multiprocessing
import multiprocessing.connection
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import multiprocess
import pytest

from supervisor.payload import Payload, PayloadError
from supervisor.sharing import MAX_SHARED
from tests.limits import descriptors_without_garbage

pytestmark = pytest.mark.usefixtures("no_helper_process_is_left")

LIBRARIES = pytest.mark.parametrize(
    "library", [multiprocessing, multiprocess], ids=["standard", "multiprocess"]
)


class Kind(NamedTuple):
    make: Callable[[Any], Any]
    change: Callable[[Any], Any]
    is_changed: Callable[[Any], bool]


def add_one(value: Any) -> None:
    value.value += 1


def set_second(array: Any) -> None:
    array[1] = 7


KINDS = {
    "Value": Kind(lambda c: c.Value("i", 3), add_one, lambda value: value.value == 4),
    "RawValue": Kind(lambda c: c.RawValue(ctypes.c_double, 3), add_one, lambda value: value.value == 4),
    "Array": Kind(lambda c: c.Array("d", 4), set_second, lambda array: list(array) == [0, 7, 0, 0]),
    "RawArray": Kind(lambda c: c.RawArray("i", 2), set_second, lambda array: list(array) == [0, 7]),
    "Lock": Kind(lambda c: c.Lock(), lambda lock: lock.acquire(), lambda lock: not lock.acquire(False)),
    "Semaphore": Kind(lambda c: c.Semaphore(2), lambda s: s.acquire(), lambda s: s.get_value() == 1),
    "Event": Kind(lambda c: c.Event(), lambda event: event.set(), lambda event: bool(event.is_set())),
    "Barrier": Kind(
        lambda c: c.Barrier(1), lambda barrier: barrier.abort(), lambda barrier: bool(barrier.broken)
    ),
    "SimpleQueue": Kind(lambda c: c.SimpleQueue(), lambda q: q.put("sent"), lambda q: q.get() == "sent"),
}


@LIBRARIES
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_change_is_seen_on_the_other_side(library: Any, kind: Kind) -> None:
    value = kind.make(library.get_context("spawn"))
    payload = Payload.pack({"deep": [value]})
    one, other = payload.load()["deep"][0], payload.load()["deep"][0]
    payload.close()
    kind.change(one)
    assert kind.is_changed(other)
    if kind is not KINDS["SimpleQueue"]:
        assert kind.is_changed(value)


@LIBRARIES
@pytest.mark.parametrize("kind", ["Value", "Array", "Lock", "Semaphore", "Event", "Queue", "Condition"])
def test_what_was_made_for_forked_processes_says_how_to_make_it(library: Any, kind: str) -> None:
    needed: dict[str, list[Any]] = {"Value": ["i"], "Array": ["i", 3]}
    arguments = needed.get(kind, [])
    value = getattr(library.get_context("fork"), kind)(*arguments)
    error = PayloadError.about({"dataset": {"parts": [value]}}, "a way out")
    assert str(error).startswith(f"dataset['parts'][0], a {library.__name__}.")
    assert f"made for forked processes: make it by {library.__name__}.get_context('fork" in str(error)


def test_raw_values_need_no_context() -> None:
    payload = Payload.pack(multiprocessing.RawValue("i", 5))
    assert payload.load().value == 5
    payload.close()


def test_another_value_in_its_place_has_another_digest() -> None:
    first, second = multiprocessing.RawArray("b", 5_000_000), multiprocessing.RawArray("b", 5_000_000)
    payloads = [Payload.pack(array) for array in (first, first, second)]
    digests = [payload.digest for payload in payloads]
    for payload in payloads:
        payload.close()
    assert digests[0] == digests[1] != digests[2]


def test_no_descriptor_is_left_open() -> None:
    value = multiprocessing.get_context("spawn").Value("i")
    unpicklable = [value, threading.Lock()]
    before = descriptors_without_garbage()
    Payload.pack(value).close()
    with pytest.raises(PayloadError):
        Payload.pack(unpicklable)
    assert PayloadError.about({"part": unpicklable}, "") is not None
    assert descriptors_without_garbage() == before


def test_a_lock_can_be_pickled_only_on_its_way_into_workers() -> None:
    lock = multiprocessing.get_context("spawn").Lock()
    Payload.pack(lock).close()
    with pytest.raises(RuntimeError, match="only be shared between processes through inheritance"):
        lock.__getstate__()


def test_too_many_descriptors_are_told() -> None:
    reader, writer = multiprocessing.Pipe()
    with reader, writer:
        ends: list[Any] = [
            multiprocessing.connection.Connection(reader.fileno()) for _ in range(MAX_SHARED + 1)
        ]
        with pytest.raises(PayloadError, match=rf"more than {MAX_SHARED} descriptors cannot go along"):
            Payload.pack(ends)
        for end in ends:
            end._handle = None  # it is the first one's


# ---- torch ---------------------------------------------------------------------------------------


def test_a_tensor_in_shared_memory_is_shared_and_another_is_copied() -> None:
    torch = pytest.importorskip("torch")
    shared, own = torch.zeros(4).share_memory_(), torch.zeros(4)
    parameter = torch.nn.Parameter(torch.zeros(2)).share_memory_()
    payload = Payload.pack({"shared": shared, "part": shared[2:], "own": own, "parameter": parameter})
    loaded = payload.load()
    payload.close()
    shared += 1
    own += 1
    assert loaded["shared"].tolist() == [1, 1, 1, 1]
    assert loaded["own"].tolist() == [0, 0, 0, 0]
    loaded["part"] += 1
    assert shared.tolist() == [1, 1, 2, 2]
    parameter.data += 1
    assert loaded["parameter"].tolist() == [1, 1]


def test_tensors_that_count_their_processes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    torch_multiprocessing = pytest.importorskip("torch.multiprocessing")
    torch: Any = importlib.import_module("torch")
    monkeypatch.setattr(torch_multiprocessing, "get_sharing_strategy", lambda: "file_system")
    with pytest.raises(PayloadError, match=r"set_sharing_strategy\('file_descriptor'\)"):
        Payload.pack(torch.zeros(4).share_memory_())
    Payload.pack(torch.zeros(4)).close()
