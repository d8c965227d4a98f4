"""Pieces: how a batch is cut, and the random state that each piece starts from.

Both are part of a batch's bytes. The layout depends on the number of samples alone, and the random state on
(seed, epoch, batch, piece, indices): never on the number of workers, nor on who makes the piece, nor on how
often it is tried.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import struct
from array import array
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple


class NotInPieces(Exception):
    """This batch is to be made by one worker as a whole: it cannot be told from its pieces what it is."""


MAX_PIECES = 4
SAMPLES_PER_PIECE = 8


@lru_cache(maxsize=256)
def layout(samples: int) -> tuple[tuple[int, int], ...]:
    """Return (start, stop) of each piece of a batch of ``samples``, as equal as can be.

    >>> layout(32)
    ((0, 8), (8, 16), (16, 24), (24, 32))
    >>> layout(19)
    ((0, 10), (10, 19))
    >>> layout(3)
    ((0, 3),)
    """
    pieces = min(MAX_PIECES, max(1, samples // SAMPLES_PER_PIECE))
    size, longer = divmod(samples, pieces)
    stops = [(piece + 1) * size + min(piece + 1, longer) for piece in range(pieces)]
    return tuple(zip([0, *stops], stops, strict=False))


class Seeds(NamedTuple):
    """What Python's, numpy's and torch's generators are seeded with."""

    python: int
    numpy: int
    torch: int


def piece_seeds(seed: int, epoch: int, batch: int, piece: int, indices: Sequence[Any]) -> Seeds:
    """Return the seeds of one piece, whose samples are ``indices``.

    >>> piece_seeds(0, 0, 0, 0, [1, 2]) == piece_seeds(0, 0, 0, 0, [1, 2])
    True
    >>> piece_seeds(0, 0, 0, 0, [1, 2]) == piece_seeds(0, 0, 0, 1, [1, 2])
    False
    """
    key = struct.pack("<QQQQ", seed, epoch, batch, piece) + _index_bytes(indices)
    return Seeds(*struct.unpack("<QIQ", hashlib.blake2b(key, digest_size=20).digest()))


def derived_seed(seed: int, *numbers: int) -> int:
    """Return another seed, which follows from ``seed`` and ``numbers``.

    >>> derived_seed(0, 1, 2) == derived_seed(0, 1, 2) != derived_seed(0, 1, 3)
    True
    """
    key = struct.pack(f"<Q{len(numbers)}Q", seed, *numbers)
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")


def digest_of(indices: Sequence[Any]) -> str:
    """Return what tells these indices from others, in every process.

    >>> digest_of([1, 2]) == digest_of([1, 2]) != digest_of([2, 1])
    True
    """
    return hashlib.blake2b(_index_bytes(indices), digest_size=8).hexdigest()


def _index_bytes(indices: Sequence[Any]) -> bytes:
    """Return bytes that are the same in every process for the same indices, if there are such."""
    try:
        return array("q", indices).tobytes()
    except (TypeError, OverflowError):
        pass
    try:
        return _pickled_by_value(indices)
    except Exception:
        return b""


def _pickled_by_value(indices: Sequence[Any]) -> bytes:
    """Pickle without a memo, which would tell two equal strings from one that is there twice."""
    file = io.BytesIO()
    pickler = pickle.Pickler(file, protocol=4)
    pickler.fast = True
    pickler.dump(list(indices))
    return file.getvalue()
