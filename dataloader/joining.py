"""A batch that several workers made in pieces, put together in the consumer.

    worker 0   samples 0 to 7   --> rows 0 to 7 of the slot, and the samples, which have views of them
    worker 1   samples 8 to 15  --> rows 8 to 15               |
                                                               v
    consumer   all samples  -->  collate; where large arrays are all the rows of a column, the column itself

So a batch is collated by the function that would have collated it in one worker, of the same samples: it is
the same batch. The first pieces of all find no slot to share: their rows are copied into the one that came
first. Where rows do not lie together, because a sample differs or was skipped, arrays are stacked.

Only samples of plain types come in pieces, and only for ``default_collate``: see ``Rows.are_plain``. What
cannot be put together is made anew by one worker as a whole, whatever the reason, so that errors too are
those of one worker.

No generators here: one that is left before its end can swallow what a signal handler raises.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from ctypes import memmove
from typing import Any

import numpy as np

from dataloader.arena import SMALL_BYTES, address_of, use
from dataloader.batch_pool import BatchPool
from dataloader.collate import default_collate
from dataloader.interrupts import is_interrupt
from dataloader.ledger import Job
from dataloader.pieces import NotInPieces
from dataloader.rows import NoRows
from dataloader.sample_errors import Failure, Survivors
from dataloader.wire import WHOLE

MAX_FAILED = 3


class Column(NoRows):
    """Finds the arrays that are all the rows of a column, in the slot that pieces were written into.

    Parameters:
        memory: the slot; None: there is none.
    """

    __slots__ = ("_address", "_memory")

    def __init__(self, memory: memoryview | None) -> None:
        super().__init__()
        self._memory = memory
        self._address = 0 if memory is None else address_of(memory)

    def whole(self, arrays: Sequence[Any]) -> Any:
        room = self._room(arrays)
        if room is None:
            return None
        return np.frombuffer(room, arrays[0].dtype).reshape(len(arrays), *arrays[0].shape)

    def _room(self, arrays: Sequence[Any]) -> memoryview | None:
        """Return the memory of ``arrays`` if they are alike and lie there one behind the other.

        Those that lie elsewhere are put into their rows, which nobody else can have written: nothing but rows
        lies in memory that pieces share.
        """
        if self._memory is None or not self.are_alike(arrays):
            return None
        size_bytes = arrays[0].nbytes
        count = len(arrays)
        addresses = self.addresses(arrays)
        end = self._address + self._memory.nbytes
        inside = [self._address <= address < end for address in addresses]
        if True not in inside:
            return None
        found = inside.index(True)
        start = addresses[found] - found * size_bytes
        if start < self._address or start + count * size_bytes > end:
            return None
        for row, address in zip(range(start, start + count * size_bytes, size_bytes), addresses, strict=True):
            if address != row:
                if self._address <= address < end:
                    return None
                memmove(row, address, size_bytes)
        offset = start - self._address
        return self._memory[offset : offset + count * size_bytes]

    def are_alike(self, arrays: Sequence[Any]) -> bool:
        """Whether they are large arrays that can be the rows of one."""
        first = arrays[0]
        if type(first) is not np.ndarray or first.nbytes < SMALL_BYTES:
            return False
        return False not in [
            type(array) is np.ndarray
            and array.dtype == first.dtype
            and array.shape == first.shape
            and array.flags.c_contiguous
            for array in arrays
        ]

    def addresses(self, arrays: Sequence[Any]) -> list[int]:
        return [array.__array_interface__["data"][0] for array in arrays]


class Joiner:
    """Puts batches together.

    Parameters:
        collate: makes the batch of all samples.
        column: what finds large arrays that need not be stacked.

    Attributes:
        gave_up: batches cannot be put together.
    """

    def __init__(
        self, collate: Callable[[Sequence[Any]], Any] = default_collate, column: type[Column] = Column
    ) -> None:
        self._collate = collate
        self._column = column
        self.gave_up = False
        self._joined = 0
        self._joined_s = 0.0
        self._failed = 0  # in a row

    @property
    def join_s(self) -> float:
        """How long it takes to put a batch together; those few whose rows had to be copied do not count."""
        return self._joined_s / self._joined if self._joined else 0.0

    def is_in_vain(self, job: Job) -> bool:
        """Whether batches like this one cannot be put together, nor those that came before it lately."""
        if self._failed >= MAX_FAILED:
            return True
        return True in [piece.result is not None and piece.result.kind == WHOLE for piece in job.pieces]

    def join(self, pool: BatchPool, job: Job) -> Any:
        """Return the batch of which all pieces have come.

        Raises NotInPieces where one worker is to make it.
        """
        start_s = time.thread_time()  # of this thread alone: workers may want the same core
        if self.is_in_vain(job):
            raise NotInPieces
        try:
            batch = self._collated(pool, job)
        except Exception as error:
            if is_interrupt(error):
                raise
            self._failed += 1
            raise NotInPieces from error
        self._failed = 0
        if not pool.knows_columns or False not in [piece.slot is job.shared for piece in job.pieces]:
            self._joined += 1
            self._joined_s += time.thread_time() - start_s
        return batch

    def _collated(self, pool: BatchPool, job: Job) -> Any:
        opened, memory = pool.open_pieces(job)
        samples: list[Any] = []
        failures: list[Failure] = []
        for piece in opened:
            if isinstance(piece, Survivors):
                piece, failed = piece
                failures += failed
            samples += piece
        with use(None, (), self._column(memory)):
            batch = self._collate(samples) if samples else None
        return Survivors(batch, failures) if failures or job.skips else batch
