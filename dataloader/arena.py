"""Memory for the batch in hand.

In a worker, ``empty`` gives arrays that lie in the slot that the consumer lent for the batch: what is written
there need not be copied again. Where there is no slot, or no room left in it, the array is an ordinary one
and is copied when the batch is sent. Either way the batch is the same.

Workers that make pieces of one batch are lent the same slot. Each writes only its own rows of the columns
that all of them are told of; one whose samples have other columns makes a slot of its own.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dataloader.slots import map_shared, size_class
from supervisor.linux import create_memory_file

if TYPE_CHECKING:
    from dataloader.rows import Rows

ALIGNMENT_BYTES = 64
SMALL_BYTES = 1 << 16  # arrays below this travel inline


class Arena:
    """A stretch of shared memory that is given out from its start to its end.

    Parameters:
        memory: the slot, whole.
        columns: what lies in it, where it is lent to other workers as well; None: it is this one's alone.

    Attributes:
        agreed: what lies in it, where others can write pieces of the same batch; None: nothing like that.
    """

    __slots__ = ("_columns", "_left_bytes", "_made", "address", "agreed", "memory", "used_bytes")

    def __init__(self, memory: memoryview, columns: bytes | None = None) -> None:
        self._columns = columns
        self._made: tuple[int, int] | None = None
        self._use(memory)

    def _use(self, memory: memoryview) -> None:
        self.memory = memory
        self.address = address_of(memory) if memory.nbytes else 0
        self.clear()

    def clear(self) -> None:
        """Give all of it out anew; nothing, where it is lent to others, before they agree on columns."""
        self.used_bytes = 0
        self._left_bytes = self.memory.nbytes if self._columns is None else 0
        self.agreed: bytes | None = None

    def agree(self, columns: bytes, wanted_bytes: int) -> None:
        """Have room for ``columns``, where those who make other pieces have it too, or else in new memory."""
        if self._columns not in (None, columns) or wanted_bytes > self.memory.nbytes:
            self._grow(wanted_bytes)
        self._left_bytes = wanted_bytes  # nothing but rows lies there
        self.agreed = columns

    def _grow(self, wanted_bytes: int) -> None:
        self.close()
        size_bytes = size_class(wanted_bytes)
        fd = create_memory_file("batch")
        self._made = fd, size_bytes
        os.ftruncate(fd, size_bytes)
        self._columns = None
        self._use(memoryview(map_shared(fd, size_bytes)))

    def take_made(self) -> tuple[int | None, int]:
        """Return the memory file that was made here and its size, the caller's from now on; None, 0: none."""
        made, self._made = self._made, None
        return made or (None, 0)

    def close(self) -> None:
        """Close the memory file that was made here, if it was not taken."""
        fd, _ = self.take_made()
        if fd is not None:
            os.close(fd)

    def take(self, wanted_bytes: int) -> memoryview | None:
        """Return the next ``wanted_bytes``, aligned, or None where there is no room."""
        start = -(-self.used_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        if start + wanted_bytes > self._left_bytes:
            return None
        self.used_bytes = start + wanted_bytes
        return self.memory[start : self.used_bytes]

    def offset_of(self, buffer: memoryview) -> int | None:
        """Return where ``buffer`` lies in what was given out, or None if it does not."""
        offset = address_of(buffer) - self.address
        return offset if offset >= 0 and offset + buffer.nbytes <= self.used_bytes else None


_current: Arena | None = None
_rows: Rows | None = None
_indices: Sequence[Any] = ()


class use:
    """Let ``empty`` give out ``arena``, for the batch of the samples at ``indices``, some of it in ``rows``.

    No ``contextlib.contextmanager``: that sets attributes of an exception, which a frozen dataclass refuses.
    """

    __slots__ = ("_arena", "_indices", "_rows")

    def __init__(self, arena: Arena | None, indices: Sequence[Any] = (), rows: Rows | None = None) -> None:
        self._arena = arena
        self._indices = indices
        self._rows = rows

    def __enter__(self) -> None:
        global _current, _indices, _rows
        _current, _indices, _rows = self._arena, self._indices, self._rows

    def __exit__(self, *raised: object) -> None:
        global _current, _indices, _rows
        _current, _indices, _rows = None, (), None


def whole(arrays: Sequence[Any]) -> Any:
    """Return the array of which ``arrays`` are all the rows, if they were written there as they were made."""
    return None if _rows is None else _rows.whole(arrays)


def sample_name(position: int, samples: int) -> str:
    """Return what to call a sample of the batch in hand, with its index if that is known."""
    known = len(_indices) == samples
    return f"sample {position}" + (f" (index {_indices[position]!r})" if known else "")


def empty(shape: int | Sequence[int], dtype: DTypeLike = np.float64) -> NDArray[Any]:
    """Return a new uninitialised array; in a worker, one that lies in the batch's shared memory.

    For use in a ``collate_fn``: what is written into it is not copied again on its way to the consumer. It is
    valid until the collate function has returned.

    Parameters:
        shape: as for ``numpy.empty``.
        dtype: as for ``numpy.empty``.

    >>> batch = empty((2, 3), "float32")
    >>> batch.shape, batch.dtype
    ((2, 3), dtype('float32'))
    """
    if _current is None:
        return np.empty(shape, dtype)
    kind = np.dtype(dtype)
    wanted_bytes = kind.itemsize * (math.prod(shape) if isinstance(shape, Sequence) else index(shape))
    memory = None if kind.hasobject else room(wanted_bytes)
    return np.empty(shape, kind) if memory is None else np.ndarray(shape, kind, buffer=memory)


def room(wanted_bytes: int) -> memoryview | None:
    """Return so much of the batch's shared memory; None where there is none, or so little travels inline."""
    if _current is None or wanted_bytes < SMALL_BYTES:
        return None
    return _current.take(wanted_bytes)


def address_of(buffer: Any) -> int:
    """Return where in memory ``buffer`` lies."""
    address: int = np.frombuffer(buffer, np.uint8).__array_interface__["data"][0]
    return address
