"""The ledger of streams: which batches of which stream are wanted, and how far each stream is.

    number of a batch   0  1  2  3  4  5  ...      with 3 workers
    stream              0  1  2  0  1  2           only the worker with that id makes it, in order
    turn                0  0  0  1  1  1           which of the stream's batches it is

Batches are delivered in the order of their numbers. A stream that has ended is passed over, so that the order
does not depend on when that becomes known. See ledger for what is stored and what is derived; stored here are
``ends`` and ``checkpoints`` too. A checkpoint counts what was delivered; what came after it is with the jobs.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from dataloader.checkpoints import Checkpoint, Place, Progress
from dataloader.ledger import Epoch, Job, Link
from dataloader.pieces import derived_seed
from dataloader.slots import Slot
from dataloader.source import Drawn
from dataloader.stream_resume import plain
from dataloader.wire import END, Result

NEVER = float("inf")

logger = logging.getLogger("dataloader")


class Streams(NamedTuple):
    """The streams of one epoch, in place of batches of indices.

    Parameters:
        workers: how many have one; without workers this process has one.
        size: samples that a batch has.
        rank: of this process, among those that train together.
        name: what to call the dataset.
        length: how many samples it was said to have; None: nobody asked.
        warned: what was warned of before.
    """

    workers: int
    size: int
    rank: int
    name: str
    length: int | None
    warned: set[str]


class StreamJob(Job):
    """One batch of a stream. Its samples have names once it is made: their positions in the stream."""

    __slots__ = ("stream", "turn")

    def __init__(self, number: int, streams: int) -> None:
        super().__init__(number, ())
        self.turn, self.stream = divmod(number, streams)

    def sample_at(self, item: int) -> Any:
        return item

    @property
    def of_stream(self) -> int | None:
        return self.stream


class StreamEpoch(Epoch):
    """What one iterator wants of the workers' streams.

    Parameters:
        streams: what it is that they are of.
        progress: where to go on; None: at the begin.

    Attributes:
        size: samples that a batch has.
        count: how many streams there are.
        ends: by stream: the turn in which it has no more; NEVER: not known.
        checkpoints: by stream: what was delivered of it.
        unshared: two streams that give the same, though they are the same dataset's and have no way to know
            of each other; None as far as is known.
    """

    __slots__ = ("_fingerprints", "checkpoints", "count", "ends", "size", "streams", "unshared")

    has_streams = True
    jobs: dict[int, StreamJob]  # type: ignore[assignment]

    def __init__(
        self, seed: int, number: int, max_attempts: int, streams: Streams, progress: Progress | None = None
    ) -> None:
        super().__init__(seed, number, max_attempts)
        self.streams = streams
        self.size = streams.size
        self.count = max(1, streams.workers)
        self.ends: list[float] = [NEVER] * self.count
        self.checkpoints = [Checkpoint()] * self.count
        self.unshared: tuple[int, int] | None = None
        self._fingerprints: dict[bytes, int] = {}
        if progress is not None:
            self.checkpoints = list(progress.checkpoints)
            known = zip(progress.checkpoints, progress.ended, strict=True)
            self.ends = [checkpoint.batches if ended else NEVER for checkpoint, ended in known]

    def new_job(self, number: int, indices: Sequence[Any], mark: Any, in_pieces: bool) -> StreamJob:
        return StreamJob(number, self.count)

    def progress(self) -> Progress:
        """Return how far the user is; may be asked at any moment, by any thread."""
        checkpoints = list(self.checkpoints)
        for job in list(self.jobs.values()):
            if job.delivered:
                checkpoints[job.stream] = self._after(checkpoints[job.stream], job)
        both = zip(checkpoints, self.ends, strict=True)
        return Progress(checkpoints, [checkpoint.batches >= end for checkpoint, end in both])

    def next_turns(self) -> list[int]:
        """Return, by stream, which of its batches is to be wanted next."""
        turns = [checkpoint.batches for checkpoint in self.checkpoints]
        for job in self.jobs.values():
            turns[job.stream] = max(turns[job.stream], job.turn + 1)
        return turns

    # ---- what is to be delivered -----------------------------------------------------------------

    def deliverable(self, *, in_order: bool) -> Job | None:
        """Return the job to deliver next, if it is done. Those of one stream come in their order."""
        waits = set()
        for job in self.jobs.values():
            if job.delivered or self._is_over(job):
                continue
            if job.is_done and job.stream not in waits:
                return job
            if in_order:
                return None
            waits.add(job.stream)
        return None

    def drop_delivered(self) -> None:
        """Forget what the user has, and what there is not."""
        self._end_the_broken()
        for job in self.jobs.values():
            if job.delivered:
                self.checkpoints[job.stream] = self._after(self.checkpoints[job.stream], job)
        super().drop_delivered()

    def _after(self, checkpoint: Checkpoint, job: StreamJob) -> Checkpoint:
        """Return the checkpoint with a job that was delivered, unless that is counted already."""
        if checkpoint.batches != job.turn:
            return checkpoint
        if job.result is not None and job.result.news is not None:
            return checkpoint.after(job.result.news, self.size)
        return checkpoint._replace(batches=job.turn + 1)  # an error in its stead: the stream ends there

    def _end_the_broken(self) -> None:
        """End streams that nobody gets past: what is raised in a job's stead is not of its own making."""
        for job in list(self.jobs.values()):
            if job.error is not None:
                self._end(job.stream, job.turn + 1)

    def _end(self, stream: int, turn: int) -> None:
        """Take note that a stream has nothing in ``turn``, nor behind it."""
        self.ends[stream] = min(self.ends[stream], turn)
        for number, job in list(self.jobs.items()):
            if self._is_over(job):
                del self.jobs[number]
                self.todo.pop(job, None)

    def _is_over(self, job: StreamJob) -> bool:
        return job.turn >= self.ends[job.stream]

    def renew_todo(self) -> None:
        self._end_the_broken()
        super().renew_todo()

    def _is_to_do(self, job: Job) -> bool:
        assert isinstance(job, StreamJob)
        return not self._is_over(job) and super()._is_to_do(job)

    # ---- what workers are told, and tell ---------------------------------------------------------

    def place(self, job: Job, link: Link | None) -> Place | None:
        """Return which batch it is, and for a worker that is not there from where to go on."""
        assert isinstance(job, StreamJob)
        is_there = link is not None and link.at == (self.run, job.turn)
        return Place(self.run, job.stream, job.turn, None if is_there else self.last_known(job))

    def last_known(self, job: StreamJob) -> Checkpoint:
        """Return how far the job's stream is known before it."""
        checkpoint = self.checkpoints[job.stream]
        for other in self.jobs.values():
            if other.stream == job.stream and checkpoint.batches == other.turn < job.turn:
                if other.result is None:
                    break
                assert other.result.news is not None
                checkpoint = checkpoint.after(other.result.news, self.size)
        return checkpoint

    def note_sent(self, link: Link, place: Place) -> None:
        resume = place.resume
        if resume is not None and resume.batches and resume.state is None:
            text = "worker %d begins its stream anew, and draws %d samples again, of %d batches"
            logger.info(text, place.stream, resume.samples, resume.batches)
        link.at = place.run, place.turn + 1

    def note(self, job: Job, result: Result, slot: Slot | None) -> Result:
        """Take note of a result; return it as it is to be kept."""
        assert isinstance(job, StreamJob)
        news = result.news
        if result.kind == END:
            self._end(job.stream, job.turn)
        elif news is not None and news.is_last:
            self._end(job.stream, job.turn + 1)
        if news is None:
            return result
        if news.again is not None:
            self._log_again(job, *news.again)
        if news.fingerprint is not None:
            self._compare(job.stream, news.fingerprint)
        if isinstance(news.state, tuple):
            assert slot is not None
            offset, length = news.state
            news = news._replace(state=slot.memory[offset : offset + length])
        job.indices = range(news.start, news.start + news.drawn)
        return result._replace(news=news)

    def _log_again(self, job: StreamJob, samples: int, seconds: float) -> None:
        logger.warning(
            "stream %d was drawn again up to batch %d, for it has no exact state to go on from: %d samples "
            "in %.3g s. A state_dict() and a load_state_dict() of its own would save that",
            job.stream,
            job.number,
            samples,
            seconds,
        )

    def _compare(self, stream: int, fingerprint: bytes) -> None:
        other = self._fingerprints.setdefault(fingerprint, stream)
        if other != stream:
            self.unshared = min(other, stream), max(other, stream)


class StreamSource:
    """Which batches come next, of the streams that have not ended.

    Parameters:
        streams: of the workers.
        prefetch: batches of one stream that may be ahead of the user, where they are delivered as they come.
        in_order: they are delivered in the order of their numbers.
        progress: where to go on; None: at the begin.

    Attributes:
        taken: number of the last batch that was taken.
    """

    def __init__(
        self, streams: Streams, prefetch: int = 1, *, in_order: bool = True, progress: Progress | None = None
    ) -> None:
        self._streams = streams
        self._prefetch = prefetch
        self._in_order = in_order
        self._progress = progress
        self.taken = -1
        self.begin_mark: None = None  # of a sampler, which there is not

    def epoch(self, seed: int, number: int, max_attempts: int = 1) -> StreamEpoch:
        """Return the ledger for its batches. Ranks draw other random numbers than each other."""
        rank = self._streams.rank
        own_seed = derived_seed(seed, rank) if rank else seed
        self._epoch = StreamEpoch(own_seed, number, max_attempts, self._streams, self._progress)
        return self._epoch

    def peek(self) -> Drawn | None:
        """Return the number of the next batch, and no indices; None where none is to be had now."""
        epoch = self._epoch
        epoch.drop_delivered()
        turns = epoch.next_turns()
        goes_on = [stream for stream, turn in enumerate(turns) if turn < epoch.ends[stream]]
        if not self._in_order:
            goes_on = self._with_room(goes_on)
        if not goes_on:
            return None
        return Drawn(min(turns[stream] * len(turns) + stream for stream in goes_on), ())

    def _with_room(self, streams: Sequence[int]) -> list[int]:
        """Return those of which not too much is ahead, not counting one that the user can take."""
        jobs = self._epoch.jobs.values()
        ahead = Counter(job.stream for job in jobs)
        ready = {job.stream for job in jobs if job.is_done}
        return [stream for stream in streams if ahead[stream] < self._prefetch + (stream in ready)]

    def state(self) -> dict[str, Any]:
        """Return how far the user is, as plain values."""
        return plain(self._epoch.progress(), self._streams.workers)

    def end_mark(self) -> None:
        """Return where the sampler is: there is none."""


class OwnStream(StreamSource):
    """Which batch comes next of the one stream of this process. What was not delivered is made again."""

    def peek(self) -> Drawn | None:
        epoch = self._epoch
        epoch.drop_delivered()
        turn = epoch.checkpoints[0].batches
        return Drawn(turn, ()) if turn < epoch.ends[0] else None
