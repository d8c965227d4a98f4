"""How many batches workers may have ahead of the user, and when they are given more.

To wake a worker, and to be woken by it, costs more than a small batch. So where batches cost next to nothing,
workers may have more of them ahead than by default, and are given several at a time, in one message: not
after each batch, but when half of what may be ahead is used up. Nobody waits for that, for the other half is
there. All other batches are handed out at once, as nobody does it between two calls of ``next()``.
"""

from __future__ import annotations

import sys

CHEAP_S = 0.0005  # of a worker's time
CHEAP_BYTES = 8192
CHEAP_AHEAD = 8  # batches per worker
BATCHES_PER_LOOK = 32
AHEAD_WHILE_WAITING = 2  # batches per worker: one in hand, one to go on with


class Pace:
    """What one iterator goes by.

    Parameters:
        workers: how many there are.
        prefetch: batches per worker that may be ahead of the user.
        may_go_ahead: or more, where they are cheap.
        worked_s: how long the workers had worked when the iterator began.

    Attributes:
        per_worker: batches that a worker may have ahead now.

    >>> pace = Pace(workers=2, prefetch=2)
    >>> pace.ahead, pace.is_time_for(1)
    (4, True)
    >>> pace.look(batches=100, worked_s=0.01, moved_bytes=100_000)
    >>> pace.ahead, pace.is_time_for(1), pace.is_time_for(8)
    (16, False, True)
    """

    def __init__(
        self, workers: int, prefetch: int, *, may_go_ahead: bool = True, worked_s: float = 0.0
    ) -> None:
        self.per_worker = prefetch
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
