"""Where a stream is, and how it gets there again: what consumer and workers tell each other of streams.

    Place       consumer --> worker    make this batch of that stream; if you are not there, go on from here
    News        worker --> consumer    what was drawn for it, and the dataset's state afterwards
    Checkpoint  kept by the consumer   news of all batches up to one
    Progress    of all streams         what was delivered of each

Plain values: nobody here draws or sends anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

Span = tuple[int, int]  # offset and length in a slot


class News(NamedTuple):
    """What was drawn from a stream for one batch.

    Parameters:
        start: how many samples had been drawn before.
        drawn: how many were drawn for it, with those that raised.
        is_last: the stream is known to have no more.
        state: the dataset's afterwards, packed, or where in the slot that lies; None: it has none that is
            exact.
        again: (samples, seconds) that were drawn before once already, to get there; or None.
        fingerprint: of the first batch, where nobody in the worker had asked which worker it is; or None.
    """

    start: int
    drawn: int
    is_last: bool = False
    state: bytes | Span | None = None
    again: tuple[int, float] | None = None
    fingerprint: bytes | None = None


class Checkpoint(NamedTuple):
    """A stream after some batches.

    Parameters:
        batches: how many.
        samples: how many were drawn for them.
        state: the dataset's then, packed; None: it has none, and they are drawn again.
        odd: (batch, drawn) of those batches for which more or fewer samples were drawn than a batch has.

    >>> begin = Checkpoint()
    >>> begin.after(News(start=0, drawn=8), size=8)
    Checkpoint(batches=1, samples=8, state=None, odd=())
    >>> begin.after(News(start=0, drawn=3), size=8).odd
    ((0, 3),)
    """

    batches: int = 0
    samples: int = 0
    state: bytes | None = None
    odd: tuple[tuple[int, int], ...] = ()

    def after(self, news: News, size: int) -> Checkpoint:
        """Return the checkpoint one batch later. ``size``: samples that a batch has."""
        assert not isinstance(news.state, tuple), "it is still in the slot"
        odd = self.odd if news.drawn == size else (*self.odd, (self.batches, news.drawn))
        past = () if news.state is not None else odd
        return Checkpoint(self.batches + 1, news.start + news.drawn, news.state, past)


class Progress(NamedTuple):
    """How far streams are.

    Parameters:
        checkpoints: by stream: what was delivered of it.
        ended: by stream: that was all.
    """

    checkpoints: Sequence[Checkpoint]
    ended: Sequence[bool]


class Place(NamedTuple):
    """A batch of a stream.

    Parameters:
        run: number of the iteration; under another number the stream is begun anew.
        stream: the worker's id.
        turn: which of the stream's batches.
        resume: the last known place before it; None: the worker is there.
    """

    run: int
    stream: int
    turn: int
    resume: Checkpoint | None
