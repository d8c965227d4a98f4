"""How samples become a batch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, MutableMapping, MutableSequence, Sequence
from dataclasses import fields, is_dataclass
from operator import countOf
from typing import Any

import numpy as np

from dataloader import arena
from dataloader.arena import empty, sample_name

_NUMBERS = (bool, int, float, complex, np.generic)
_PLAIN_SEQUENCES = (tuple, list)


def default_collate(samples: Sequence[Any]) -> Any:
    """Return ``samples`` as one batch.

    Numbers become an array of shape (samples,): int as int64, float as float64. Arrays of shape S and dtype D
    become one of shape (samples, *S) and dtype D; numpy scalars likewise. Mappings, sequences, named tuples
    and dataclasses are collated field by field and keep their type; str and bytes stay a list.

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
    try:
        return _collate(samples)
    except _Problem as problem:
        raise problem.error() from None


class _Problem(Exception):
    """Why samples cannot be collated, and in which field of theirs."""

    def __init__(self, kind: type[Exception], before: str, after: str = "") -> None:
        self.kind = kind
        self.field = ""
        self._before, self._after = before, after

    def error(self) -> Exception:
        """Return what the user gets."""
        where = f" in field {self.field}" if self.field else ""
        return self.kind(f"default_collate {self._before}{where}{self._after}")


def _collate(samples: Sequence[Any]) -> Any:
    if not len(samples):
        raise _Problem(
            ValueError, "got an empty batch", ": let the batch_sampler give none, or pass a collate_fn"
        )
    first = samples[0]
    collate = _OF_PLAIN.get(type(first)) or _collate_of(first)
    if collate is None:
        raise _not_collatable(samples, 0)
    return collate(samples)


def _collate_of(first: Any) -> Callable[[Sequence[Any]], Any] | None:
    """Return how samples like ``first`` are collated; None if they cannot be."""
    if isinstance(first, np.ndarray):
        return _stack
    if isinstance(first, str | bytes):
        return list
    if isinstance(first, _NUMBERS):
        return _number_array
    if isinstance(first, Mapping):
        return _collate_mapping
    if isinstance(first, Sequence):
        return _collate_sequence
    if is_dataclass(first) and not isinstance(first, type):
        return _collate_dataclass
    return None


def _collate_field(name: str, column: Sequence[Any]) -> Any:
    try:
        return _collate(column)
    except _Problem as problem:
        problem.field = name + problem.field
        raise


def _not_collatable(samples: Sequence[Any], at: int) -> _Problem:
    kind = type(samples[at])
    what = "None" if samples[at] is None else f"{kind.__module__}.{kind.__qualname__} objects"
    return _Problem(
        TypeError,
        f"cannot put {what} into a batch, as in {sample_name(at, len(samples))}",
        ": return numbers, numpy arrays, str, bytes, mappings, sequences or dataclasses of these, or pass a "
        "collate_fn",
    )


def _number_array(numbers: Sequence[Any]) -> Any:
    try:
        array = np.array(numbers)
    except ValueError:  # a sequence among them
        raise _why_no_numbers(numbers) from None
    if array.dtype.kind in "OUS" or (array.dtype.kind == "f" and _all_are(int, numbers)):
        raise _why_no_numbers(numbers)
    return array


def _why_no_numbers(numbers: Sequence[Any]) -> _Problem:
    for i, number in enumerate(numbers):
        if not isinstance(number, _NUMBERS):
            return _not_alike(numbers, i)
    if _all_are(int, numbers):
        return _Problem(ValueError, "found ints that no 64-bit integer type holds", ": use float or str")
    different = next((i for i, number in enumerate(numbers) if type(number) is not type(numbers[0])), 0)
    return _not_alike(numbers, different)


def _not_alike(samples: Sequence[Any], different: int) -> _Problem:
    if samples[different] is None:
        return _not_collatable(samples, different)
    types = _both(samples, different, lambda sample: type(sample).__name__)
    advice = ": return one type, or pass a collate_fn"
    return _Problem(TypeError, f"needs samples of one type: {types}", advice)


def _both(samples: Sequence[Any], different: int, describe: Callable[[Any], Any]) -> str:
    """Return what the first sample is and what the one that differs from it is."""
    count = len(samples)
    first, other = (f"{describe(samples[i])} in {sample_name(i, count)}" for i in (0, different))
    return f"{first}, {other}"


def _all_are(kind: type, samples: Sequence[Any]) -> bool:
    return all(isinstance(sample, kind) for sample in samples)


def _stack(samples: Sequence[Any]) -> Any:
    whole = arena.whole(samples)
    if whole is not None:
        return whole
    arrays = samples if _all_are(np.ndarray, samples) else [np.asarray(sample) for sample in samples]
    first = arrays[0]
    different = next((i for i, array in enumerate(arrays) if array.shape != first.shape), None)
    if different is not None:
        shapes = _both(arrays, different, lambda array: array.shape)
        advice = ": pad them, or pass a collate_fn"
        raise _Problem(ValueError, f"cannot stack arrays of different shapes: {shapes}", advice)
    dtype = np.result_type(*dict.fromkeys(array.dtype for array in arrays))
    return np.stack(arrays, out=empty((len(arrays), *first.shape), dtype))


def _collate_mapping(samples: Sequence[Any]) -> Any:
    first = samples[0]
    for i, sample in enumerate(samples):
        if not isinstance(sample, Mapping):
            raise _not_alike(samples, i)
        if sample.keys() != first.keys():
            keys = _both(samples, i, list)
            raise _Problem(ValueError, f"needs the same keys in every sample: {keys}")
    batches = {key: _collate_field(f"[{key!r}]", [sample[key] for sample in samples]) for key in first}
    return batches if type(first) is dict else _like_mapping(first, batches)


def _like_mapping(first: Mapping[Any, Any], batches: dict[Any, Any]) -> Any:
    """Return a mapping like ``first``, of its type and with its attributes, or a dict if that cannot be."""
    if isinstance(first, MutableMapping):
        like = copy.copy(first)
        like.update(batches)
        return like
    try:
        return type(first)(batches)  # type: ignore[call-arg]
    except TypeError:
        return batches


def _collate_sequence(samples: Sequence[Any]) -> Any:
    first = samples[0]
    if not (type(first) in _PLAIN_SEQUENCES and _are_all(type, samples) and _are_all(len, samples)):
        _check_sequences(samples)
    batches = [_collate_field(f"[{i}]", column) for i, column in enumerate(zip(*samples, strict=True))]
    if type(first) is list:
        return batches
    if type(first) is tuple:
        return tuple(batches)
    return type(first)(*batches) if hasattr(first, "_fields") else _like_sequence(first, batches)


def _are_all(trait: Callable[[Any], Any], samples: Sequence[Any]) -> bool:
    """Whether all samples are alike in ``trait``. In one C call: a look at each costs more than all else."""
    return countOf(map(trait, samples), trait(samples[0])) == len(samples)


def _check_sequences(samples: Sequence[Any]) -> None:
    for i, sample in enumerate(samples):
        if not isinstance(sample, Sequence) or isinstance(sample, str | bytes):
            raise _not_alike(samples, i)
        if len(sample) != len(samples[0]):
            lengths = _both(samples, i, len)
            raise _Problem(ValueError, f"needs sequences of one length: {lengths}")


def _like_sequence(first: Sequence[Any], batches: list[Any]) -> Any:
    """Return a sequence like ``first``, of its type and with its attributes, or a list if that cannot be."""
    try:
        if not isinstance(first, MutableSequence):
            return type(first)(batches)  # type: ignore[call-arg]
        like = copy.copy(first)
        for i, batch in enumerate(batches):
            like[i] = batch
        return like
    except TypeError:
        return batches


def _collate_dataclass(samples: Sequence[Any]) -> Any:
    first = samples[0]
    for i, sample in enumerate(samples):
        if type(sample) is not type(first):
            raise _not_alike(samples, i)
    batch = copy.copy(first)  # not made anew: __init__ and __post_init__ are for samples
    for field in fields(first):
        column = [getattr(sample, field.name) for sample in samples]
        object.__setattr__(batch, field.name, _collate_field(f".{field.name}", column))  # it may be frozen
    return batch


# The same answers as those of _collate_of, which takes longer than to collate some numbers.
_OF_PLAIN: dict[type, Callable[[Sequence[Any]], Any]] = {
    np.ndarray: _stack,
    str: list,
    bytes: list,
    int: _number_array,
    float: _number_array,
    dict: _collate_mapping,
    list: _collate_sequence,
    tuple: _collate_sequence,
}


def default_convert(sample: Any) -> Any:
    """Return a single sample as it is: the ``collate_fn`` of ``batch_size=None``.

    NumPy arrays, numbers, str, bytes and all that holds them are what a loader yields already.

    >>> default_convert({"x": 1})
    {'x': 1}
    """
    return sample
