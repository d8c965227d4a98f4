"""How many batches workers may have ahead of the user, when they are given more, and whether in pieces.

To wake a worker, and to be woken by it, costs more than a small batch. So where batches cost next to nothing,
workers may have more of them ahead than by default, and are given several at a time, in one message: not
after each batch, but when half of what may be ahead is used up. Nobody waits for that, for the other half is
there. All other batches are handed out at once, as nobody does it between two calls of ``next()``.

Batches that take long are made in pieces, by several workers: the next one comes sooner, and a slow sample
holds up no more than its piece. To put it together costs the user's process some time, so it is done where a
worker has much more to do. Pieces are handed out late, for one that waits behind a slow sample is one that
nobody else can make: two to a worker, and as many as it makes while the user is away.
"""

from __future__ import annotations

import math
import sys
import time
from collections import deque

from dataloader.pieces import MAX_PIECES

CHEAP_S = 0.0005  # of a worker's time
CHEAP_BYTES = 8192
CHEAP_AHEAD = 8  # batches per worker
BATCHES_PER_LOOK = 32
AHEAD_WHILE_WAITING = 2  # batches or pieces per worker: one in hand, one to go on with
IN_PIECES_S = 0.003  # of each worker's time for a batch, at least
JOIN_SHARE = 0.1  # of that, at most, for the user's process to put it together
RECENT_AWAY = 32  # calls of next()


class Pace:
    """What one iterator goes by.

    Parameters:
        workers: how many there are.
        prefetch: batches per worker that may be ahead of the user.
        may_go_ahead: or more, where they are cheap.
        worked_s: how long the workers had worked when the iterator began.
        in_pieces: whether batches are made in pieces; None: it is to be found out.

    Attributes:
        per_worker: batches that a worker may have ahead now.
        in_pieces: as it is found to be best.

    >>> pace = Pace(workers=2, prefetch=2)
    >>> pace.ahead, pace.is_time_for(1)
    (4, True)
    >>> pace.look(batches=100, worked_s=0.01, moved_bytes=100_000)
    >>> pace.ahead, pace.is_time_for(1), pace.is_time_for(8)
    (16, False, True)
    """

    def __init__(
        self,
        workers: int,
        prefetch: int,
        *,
        may_go_ahead: bool = True,
        worked_s: float = 0.0,
        in_pieces: bool | None = None,
    ) -> None:
        self.per_worker = prefetch
        self.in_pieces = in_pieces
        self._next_judgement = 1 if in_pieces is None else BATCHES_PER_LOOK
        self._batch_s = 0.0
        self._left_s: float | None = None
        self._away_s: deque[float] = deque(maxlen=RECENT_AWAY)
        self._workers = workers
        self._prefetch = prefetch
        self._seen = (0, worked_s, 0)
        self._next_look = BATCHES_PER_LOOK if may_go_ahead and prefetch < CHEAP_AHEAD else sys.maxsize

    @property
    def ahead(self) -> int:
        """How many batches may be ahead of the user."""
        return self.per_worker * self._workers

    @property
    def while_waiting(self) -> int:
        """How many batches a worker is given while the user waits; the others go to whoever is first."""
        return AHEAD_WHILE_WAITING if self.per_worker == self._prefetch else self.per_worker

    def tasks(self, *, is_waiting: bool) -> int:
        """Return how many batches, or pieces, a worker may be given."""
        if not self.in_pieces:
            return self.while_waiting if is_waiting else self.per_worker
        if is_waiting:
            return AHEAD_WHILE_WAITING
        most = self.per_worker * MAX_PIECES
        if not self._away_s or not self._batch_s:
            return most
        return min(most, AHEAD_WHILE_WAITING + math.ceil(max(self._away_s) * MAX_PIECES / self._batch_s))

    def note_call(self) -> None:
        """Take note that the user wants a batch."""
        if self._left_s is not None:
            self._away_s.append(time.monotonic() - self._left_s)
            self._left_s = None

    def note_return(self) -> None:
        """Take note that the user gets one."""
        self._left_s = time.monotonic()

    def wants_judgement(self, batches: int) -> bool:
        """Whether to judge again if batches are better made in pieces, after so many batches."""
        return batches >= self._next_judgement

    def judge(self, batches: int, batch_s: float, join_s: float) -> None:
        """Decide whether batches are made in pieces.

        Parameters:
            batches: after so many.
            batch_s: of workers' time, that one takes.
            join_s: of this process's time, to put one together; 0: not known.

        >>> pace = Pace(workers=2, prefetch=2, in_pieces=None)
        >>> pace.judge(1, batch_s=0.05, join_s=0.0)
        >>> pace.in_pieces, pace.tasks(is_waiting=True), pace.tasks(is_waiting=False)
        (True, 2, 8)
        """
        self._next_judgement = batches + BATCHES_PER_LOOK
        self._batch_s = batch_s
        share_s = batch_s / self._workers
        if join_s > JOIN_SHARE * share_s:
            self.make_whole()
        else:
            self.in_pieces = share_s > IN_PIECES_S

    def make_whole(self) -> None:
        """Have no more batches made in pieces."""
        self.in_pieces = False
        self._next_judgement = sys.maxsize

    def is_time_for(self, batches: int) -> bool:
        """Whether to hand out so many now, though nobody waits for them."""
        return self.per_worker == self._prefetch or 2 * batches >= self.ahead

    def wants_look(self, batches: int) -> bool:
        """Whether to look at what they cost, after so many batches."""
        return batches >= self._next_look

    def look(self, batches: int, worked_s: float, moved_bytes: int) -> None:
        """Decide anew, by what the batches since the last look have cost."""
        (batches_before, worked_before_s, moved_before), self._seen = (
            self._seen,
            (batches, worked_s, moved_bytes),
        )
        self._next_look = batches + BATCHES_PER_LOOK
        count = batches - batches_before
        took_s, moved = worked_s - worked_before_s, moved_bytes - moved_before
        is_cheap = took_s < CHEAP_S * count and moved < CHEAP_BYTES * count
        self.per_worker = CHEAP_AHEAD if is_cheap else self._prefetch
