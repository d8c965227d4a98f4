"""The state that a stream has of its own: which is exact, how it travels, how a stream goes on from it.

A dataset, or the iterator that it gives, may have ``state_dict()`` and ``load_state_dict()``, as torchdata
wants them. Where both have, both are kept.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import cloudpickle

from dataloader.stateful import has_state
from supervisor.payload import PayloadError

ADVICE = "let it return plain values"


def has_exact_state(dataset: Any) -> bool:
    """Whether ``dataset`` has a state, and goes on from it with the very next sample."""
    return has_state(dataset) and not _shuffles_in_a_buffer(dataset)


def _is_of_hugging_face(dataset: Any) -> bool:
    return type(dataset).__module__.partition(".")[0] == "datasets"


def _shuffles_in_a_buffer(dataset: Any) -> bool:
    """Whether it is a stream of Hugging Face ``datasets`` with a shuffle buffer: what is in it gets lost."""
    if not _is_of_hugging_face(dataset):
        return False
    parts = [getattr(dataset, "_ex_iterable", None)]
    while parts:
        part = parts.pop()
        if part is None:
            continue
        if "BufferShuffled" in type(part).__name__:
            return True
        parts += [getattr(part, "ex_iterable", None), *(getattr(part, "ex_iterables", None) or ())]
    return False


def pack_state(dataset: Any, iterator: Any) -> bytes | None:
    """Return where a stream is, None where it has no exact state.

    Raises:
        PayloadError: what ``state_dict`` gave cannot be pickled.
        Exception: what it raised.
    """
    if _shuffles_in_a_buffer(dataset):
        return None
    of_dataset = [dataset.state_dict()] if has_state(dataset) else []
    of_iterator = [iterator.state_dict()] if _has_own_state(iterator, dataset) else []
    return packed_state(of_dataset, of_iterator) if of_dataset or of_iterator else None


def _has_own_state(iterator: Any, dataset: Any) -> bool:
    return iterator is not dataset and has_state(iterator)


def packed_state(of_dataset: list[Any], of_iterator: list[Any]) -> bytes:
    """Pack states, one or none of each."""
    state = of_dataset, of_iterator
    for dumps in (pickle.dumps, cloudpickle.dumps):
        try:
            data: bytes = dumps(state)
            return data
        except Exception as failure:
            error = failure
    raise PayloadError.about({"state_dict()": state}, ADVICE) or error


def begin_state(dataset: Any) -> bytes | None:
    """Return where ``dataset`` is before it is iterated; None where it does not know, or cannot tell yet."""
    if not has_exact_state(dataset):
        return None
    try:
        return packed_state([dataset.state_dict()], [])
    except Exception:
        return None


def load_dataset(dataset: Any, state: bytes) -> tuple[list[Any], list[Any]]:
    """Let ``dataset`` be where ``state`` says; return the states in it, of the dataset and its iterator."""
    of_dataset, of_iterator = pickle.loads(state)
    for each in of_dataset:
        dataset.load_state_dict(each)
    return of_dataset, of_iterator


def forget_loaded(dataset: Any) -> None:
    """Let ``dataset``, which is being iterated from a state, begin anew when it is iterated the next time.

    Hugging Face's would begin at that state again.
    """
    if _is_of_hugging_face(dataset):
        dataset.load_state_dict(None)


def iterate_from(dataset: Any, state: bytes) -> Any:
    """Return an iterator of ``dataset`` that goes on from ``state``."""
    of_dataset, of_iterator = load_dataset(dataset, state)
    iterator = iter(dataset)
    if iterator is dataset:
        of_iterator = of_dataset  # its __iter__ may have begun anew
    for each in of_iterator:
        iterator.load_state_dict(each)
    return iterator


def can_go_on(dataset: Any, iterator: Iterator[Any]) -> bool:
    """Whether ``iterator`` is an object with a state of its own, which no exception ends."""
    return iterator is dataset or has_state(iterator)
