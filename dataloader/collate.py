"""How samples become a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dataloader.arena import empty

_NUMBERS = (bool, int, float, complex, np.generic)


def default_collate(samples: Sequence[Any]) -> Any:
    """Return ``samples`` as one batch.

    Numbers become an array of shape (samples,): int as int64, float as float64. Arrays of shape S and dtype D
    become one of shape (samples, *S) and dtype D; numpy scalars likewise. Dicts, lists and tuples are
    collated field by field and keep their type; str and bytes stay a list.

    Parameters:
        samples: at least one; all alike.

    Raises:
        TypeError: samples of a type that cannot be collated, or of different types.
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
    if isinstance(first, _NUMBERS):
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
    try:
        array = np.array(numbers)
    except ValueError:  # a sequence among them
        raise _why_no_numbers(numbers) from None
    if array.dtype.kind in "OUS" or (array.dtype.kind == "f" and _all_are(int, numbers)):
        raise _why_no_numbers(numbers)
    return array


def _why_no_numbers(numbers: Sequence[Any]) -> Exception:
    for i, number in enumerate(numbers):
        if not isinstance(number, _NUMBERS):
            return _not_alike(numbers, i)
    if _all_are(int, numbers):
        return ValueError("default_collate found ints that no 64-bit integer type holds: use float or str")
    different = next((i for i, number in enumerate(numbers) if type(number) is not type(numbers[0])), 0)
    return _not_alike(numbers, different)


def _not_alike(samples: Sequence[Any], different: int) -> TypeError:
    sample = samples[different]
    if sample is None:
        return _not_collatable(sample)
    return TypeError(
        f"default_collate needs samples of one type: {type(samples[0]).__name__} in sample 0, "
        f"{type(sample).__name__} in sample {different}: return one type, or pass a collate_fn"
    )


def _all_are(kind: type, samples: Sequence[Any]) -> bool:
    return all(isinstance(sample, kind) for sample in samples)


def _stack(samples: Sequence[Any]) -> Any:
    arrays = samples if _all_are(np.ndarray, samples) else [np.asarray(sample) for sample in samples]
    first = arrays[0]
    different = next((i for i, array in enumerate(arrays) if array.shape != first.shape), None)
    if different is not None:
        raise ValueError(
            f"default_collate cannot stack arrays of different shapes: {first.shape} in sample 0, "
            f"{arrays[different].shape} in sample {different}: pad them, or pass a collate_fn"
        )
    dtype = np.result_type(*dict.fromkeys(array.dtype for array in arrays))
    return np.stack(arrays, out=empty((len(arrays), *first.shape), dtype))


def _collate_mapping(samples: Sequence[Any]) -> Any:
    first = samples[0]
    for i, sample in enumerate(samples):
        if not isinstance(sample, Mapping):
            raise _not_alike(samples, i)
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
        if not isinstance(sample, tuple | list):
            raise _not_alike(samples, i)
        if len(sample) != len(first):
            raise ValueError(
                f"default_collate needs sequences of one length: {len(first)} in sample 0 of the batch, "
                f"{len(sample)} in sample {i}"
            )
    fields = [default_collate(field) for field in zip(*samples, strict=True)]
    if hasattr(first, "_fields"):
        return type(first)(*fields)
    return type(first)(fields)


def default_convert(sample: Any) -> Any:
    """Return a single sample as it is: the ``collate_fn`` of ``batch_size=None``.

    NumPy arrays, numbers, str, bytes and all that holds them are what a loader yields already.

    >>> default_convert({"x": 1})
    {'x': 1}
    """
    return sample
