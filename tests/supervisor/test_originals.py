"""Classes that travel by value, and objects on their way home."""

from __future__ import annotations

import gc
import pickle
import weakref
from typing import Any

import cloudpickle

from supervisor import originals
from supervisor.originals import Originals, number_of, original_of
from supervisor.payload import Payload
from tests.forks import in_child


def local_class() -> Any:
    class Local:
        pass

    return Local


def homeward(value: Any) -> bytes:
    return originals.dumps(value, 5, lambda buffer: True)


def test_a_class_has_one_number() -> None:
    one, other = local_class(), local_class()
    assert number_of(one) == number_of(one) != number_of(other)
    assert original_of(number_of(one)) is one


def test_a_number_keeps_no_class_alive_but_a_payload_does() -> None:
    original = local_class()
    payload = Payload.pack(original)
    payload.close()
    number, gone = number_of(original), weakref.ref(original)
    del original
    gc.collect()
    assert original_of(number) is gone() is not None
    del payload
    gc.collect()
    assert gone() is None


def test_a_payload_tells_what_travels_by_value() -> None:
    original = local_class()
    payload = Payload.pack([original(), ValueError, len])
    payload.close()
    assert payload.originals == (original,)
    assert pickle.loads(pickle.dumps(payload)).originals == ()


def test_a_copy_goes_home_as_the_number_of_its_original() -> None:
    """In a child that has loaded the payload, pickling takes nothing of the class along."""
    original = local_class()
    payload = Payload.pack(original)

    def pickled_in_worker() -> tuple[bytes, int]:
        copy = payload.load()
        copy.large = "x" * 10_000
        return homeward([copy(), copy]), len(cloudpickle.dumps(copy))

    pickled, by_value_bytes = in_child(pickled_in_worker)
    payload.close()
    assert by_value_bytes > 10_000 > len(pickled)
    instance, itself = pickle.loads(pickled)
    assert type(instance) is itself is original
    assert not hasattr(original, "large")


def test_what_a_worker_defines_itself_goes_by_value() -> None:
    made = pickle.loads(in_child(lambda: homeward(local_class()())))
    assert type(made).__name__ == "Local"


def test_a_child_of_a_worker_does_not_use_the_numbers_of_the_workers_home() -> None:
    """What it pickles is for the worker, to which they say nothing."""
    original = local_class()
    payload = Payload.pack(original)

    def reduced_in_child_of_worker() -> bool:
        copy = payload.load()
        goes_as_number = b"original_of" in homeward(copy)
        return goes_as_number and in_child(lambda: b"original_of" not in homeward(copy))

    assert in_child(reduced_in_child_of_worker)
    payload.close()


def test_originals_are_a_tuple_that_travels_empty() -> None:
    assert pickle.loads(pickle.dumps(Originals([int, str]))) == ()
