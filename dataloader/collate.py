"""How samples become a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dataloader.arena import empty


def default_collate(samples: Sequence[Any]) -> Any:
    """Return ``samples`` as one batch.

    Numbers become an array of shape (samples,): int as int64, float as float64. Arrays of shape S and dtype D
    become one of shape (samples, *S) and dtype D; numpy scalars likewise. Dicts, lists and tuples are
    collated field by field and keep their type; str and bytes stay a list.

    Parameters:
        samples: at least one; all alike.

    Raises:
        TypeError: samples of a type that cannot be collated.
        ValueError: arrays of different shapes, or fields that are not the same in all samples.

    >>> default_collate([(1, "a"), (2, "b")])
    (array([1, 2]), ['a', 'b'])
    >>> default_collate([{"x": np.zeros(3)}, {"x": np.ones(3)}])["x"].shape
    (2, 3)
    """
    first = samples[0]
    if isinstance(first, np.ndarray):
        return _stack(samples)
    if isinstance(first, str | bytes):
        return list(samples)
    if isinstance(first, bool | int | float | complex | np.generic):
        return _number_array(samples)
    if isinstance(first, Mapping):
        return _collate_mapping(samples)
    if isinstance(first, tuple | list):
        return _collate_sequence(samples)
    raise _not_collatable(first)


def _not_collatable(sample: Any) -> TypeError:
    kind = type(sample)
    return TypeError(
        f"default_collate cannot put {kind.__module__}.{kind.__qualname__} objects into a batch: "
        "return numbers, numpy arrays, str, bytes, dicts, lists or tuples of these, or pass a collate_fn"
    )


def _number_array(numbers: Sequence[Any]) -> Any:
    array = np.array(numbers)
    if array.dtype.hasobject:
        odd = next((n for n in numbers if not isinstance(n, bool | int | float | complex | np.generic)), None)
        if odd is None and None not in numbers:
            raise ValueError("default_collate found an int that does not fit into 64 bits: use float or str")
        raise _not_collatable(odd)
    return array


def _stack(arrays: Sequence[Any]) -> Any:
    first = arrays[0]
    different = next((i for i, array in enumerate(arrays) if np.shape(array) != first.shape), None)
    if different is not None:
        raise ValueError(
            f"default_collate cannot stack arrays of different shapes: {first.shape} in sample 0, "
            f"{np.shape(arrays[different])} in sample {different}: pad them, or pass a collate_fn"
        )
    dtype = first.dtype if all(array.dtype == first.dtype for array in arrays) else np.result_type(*arrays)
    return np.stack(arrays, out=empty((len(arrays), *first.shape), dtype))


def _collate_mapping(samples: Sequence[Any]) -> Any:
    first = samples[0]
    for i, sample in enumerate(samples):
        if sample.keys() != first.keys():
            raise ValueError(
                f"default_collate needs the same keys in every sample: {list(first)} in sample 0, "
                f"{list(sample)} in sample {i}"
            )
    fields = {key: default_collate([sample[key] for sample in samples]) for key in first}
    return fields if type(first) is dict else type(first)(fields)


def _collate_sequence(samples: Sequence[Any]) -> Any:
    first = samples[0]
    for i, sample in enumerate(samples):
        if len(sample) != len(first):
            raise ValueError(
                f"default_collate needs sequences of one length: {len(first)} in sample 0 of the batch, "
                f"{len(sample)} in sample {i}"
            )
    fields = [default_collate(field) for field in zip(*samples, strict=True)]
    if hasattr(first, "_fields"):
        return type(first)(*fields)
    return type(first)(fields)
