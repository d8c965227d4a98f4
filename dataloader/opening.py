"""How an epoch is opened: at its first batch, or where a state that was loaded says.

    next      the samplers begin anew, from wherever generators are
    after     a state from between two epochs: generators and samplers are put where they were, then as next
    middle    generators are put where they were as that epoch began, so that the same order is drawn again;
              samplers with a state of their own go on from it, the others are drawn from as often as then;
              no sample is loaded

What samplers draw from global generators they draw from those of that time; the user's are left as they are.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from dataloader.datasets.kinds import is_iterable
from dataloader.generators import global_generators, set_state
from dataloader.pieces import digest_of
from dataloader.random_state import kept_random_state
from dataloader.ranks import rank_here
from dataloader.resume import Resume
from dataloader.sampler_chain import SamplerChain
from dataloader.source import SamplerState, Source, fast_forward, load_iterator
from dataloader.state import NUM_YIELDED, Beginning, Bookmark, Facts, Mark, Position
from dataloader.stateful import has_state
from dataloader.stream_ledger import StreamSource


class Start(NamedTuple):
    """What one epoch begins with.

    Parameters:
        seed: of the random state that its samples are loaded with.
        epoch: its number.
        batches: of indices, being drawn from the sampler.
        head: what a class that inherits has its iterator take over.
        draws: the seed was drawn from the generators that samplers draw from.
        next_draws: so will be the next epoch's.
    """

    seed: int
    epoch: int
    batches: Iterator[Any]
    head: Any = None
    draws: bool = False
    next_draws: bool = True


class Opened(NamedTuple):
    """An epoch that can be iterated."""

    seed: int
    epoch: int
    source: Source | StreamSource
    bookmark: Bookmark
    head: Any


@dataclass(frozen=True)
class Opener:
    """Opens the epochs of one loader.

    Parameters:
        dataset: the loader's.
        chain: its samplers.
        sampler: that one of them whose state counts.
        facts: about the loader.
        start: returns what epoch number ``epoch`` begins with, having drawn whatever there is to draw.
        draw: begins to draw from the samplers once more; given (seed, epoch).
        streams: returns the source of the workers' streams, which go on from what a state says of them, None
            for nothing; given instead of batches where the dataset is iterable.
    """

    dataset: Any
    chain: SamplerChain
    sampler: Any
    facts: Facts
    start: Callable[[int], Start]
    draw: Callable[[int, int], Iterator[Any]]
    streams: Callable[[Any], StreamSource] | None = None

    @property
    def rank(self) -> int:
        """Whose share is loaded."""
        rank = self.chain.rank
        return rank_here() if rank is None else rank

    def beginning(self, epoch: int, seed: int | None) -> Beginning:
        """Return what the epoch would begin with now."""
        has_own = has_state(self.dataset) and not is_iterable(self.dataset)
        dataset = copy.deepcopy(self.dataset.state_dict()) if has_own else None
        generators, told = self.chain.generators(), self.chain.epochs(epoch)
        return Beginning(epoch, seed, self.rank, generators, told, dataset, begun=False)

    def _beginning_now(self, epoch: int) -> Beginning:
        is_drawn_again = not has_state(self.sampler)
        texts = self.chain.global_generators() if is_drawn_again else {}
        return replace(self.beginning(epoch, None), begun=True, global_generators=texts)

    def begin_mark(self) -> Mark | None:
        """Return where the sampler is before it is iterated."""
        return SamplerState(self.sampler, None).mark(0)

    def open(self, epoch: int, resume: Resume | None) -> Opened:
        """Open epoch number ``epoch``.

        Raises:
            ValueError: the state that was loaded does not fit: the message names what differs.
        """
        if resume is None:
            return self._open_next(epoch)
        self._restore(resume)
        return self._open_middle(resume) if resume.is_middle else self._open_after(epoch, resume)

    def _open_next(self, epoch: int) -> Opened:
        beginning, start = self._beginning_now(epoch), self.start(epoch)
        source = self.streams(None) if self.streams else Source(start.batches, self.sampler)
        return self._opened(beginning, start, source, Position())

    def _open_after(self, epoch: int, resume: Resume) -> Opened:
        if resume.is_cut_short:
            self._draw_again(resume)
        beginning, mark = self._beginning_now(epoch), _mark_between(resume.position)
        with nullcontext() if resume.draws_seed else kept_random_state():
            start = self._started(epoch, resume, {}, draws=resume.draws_seed)
        source = self.streams(None) if self.streams else self._source(start, mark, Position())
        return self._opened(beginning, start, source, Position())

    def _open_middle(self, resume: Resume) -> Opened:
        beginning, position = resume.beginning, resume.position
        self._warn_of_other_epochs(beginning)
        with kept_random_state():
            start = self._started(beginning.epoch, resume, beginning.global_generators, draws=beginning.draws)
            if self.streams:
                return self._opened(beginning, start, self.streams(resume.state["streams"]), position)
            last_batch = resume.last_batch if beginning.rank == self.rank else None
            source = self._source(start, position.mark, position, last_batch)
            source.peek()  # samplers may draw nothing before they are asked for the first
        return self._opened(beginning, start, source, position)

    def _draw_again(self, resume: Resume) -> None:
        """Have generators and samplers where they are after the batches that were received."""
        beginning = resume.beginning
        if self.streams or has_state(self.sampler):
            return
        with kept_random_state():
            start = self._started(beginning.epoch, resume, beginning.global_generators, draws=beginning.draws)
            fast_forward(start.batches, resume.position.next + 1)  # beyond the last: it learns that it is

    def _started(self, epoch: int, resume: Resume, texts: Mapping[str, str], *, draws: bool) -> Start:
        """Return what the epoch begins with.

        ``texts``: where global generators were then; ``draws``: the seed was drawn from generators.
        """
        _set_global_generators(texts)
        beginning, start = resume.beginning, self.start(epoch)
        seed = start.seed
        if beginning.seed is not None and (resume.is_middle or not draws):
            seed = beginning.seed
        if start.draws and not draws:
            self.chain.set_generators(resume.generators)
            _set_global_generators(texts)
        elif seed == start.seed or not self.chain.follows_seed:
            return start._replace(seed=seed)
        return start._replace(seed=seed, batches=self.draw(seed, epoch))

    def _opened(
        self, beginning: Beginning, start: Start, source: Source | StreamSource, position: Position
    ) -> Opened:
        beginning = replace(beginning, seed=start.seed, draws=start.draws, next_draws=start.next_draws)
        position = position._replace(mark=source.begin_mark, finished=False)
        streams = source if isinstance(source, StreamSource) else None
        bookmark = Bookmark(beginning, self.facts, self.chain, position, streams)
        return Opened(start.seed, start.epoch, source, bookmark, start.head)

    # ---- resuming --------------------------------------------------------------------------------

    def _restore(self, resume: Resume) -> None:
        if self.chain.lacks(resume.generators):
            with kept_random_state():
                fast_forward(self.draw(0, resume.epoch), 1)  # samplers may make theirs as they begin
            self.chain.set_epochs(resume.sampler_epochs)
        self.chain.set_generators(resume.generators)
        if resume.beginning.dataset is not None:
            require_state("dataset", self.dataset)
            self.dataset.load_state_dict(copy.deepcopy(resume.beginning.dataset))
        mark = resume.position.mark
        if resume.position.finished:
            mark = _mark_between(resume.position)
        if mark is not None and mark.sampler is not None:
            require_state("sampler", self.sampler)
            self.sampler.load_state_dict(copy.deepcopy(mark.sampler))

    def _source(
        self, start: Start, mark: Mark | None, position: Position, last_batch: str | None = None
    ) -> Source:
        """Return the source whose next batch is ``position.next``; the sampler has been put to ``mark``.

        ``last_batch``: the digest of the one before, where that is known.
        """
        batches, wanted = start.batches, position.next
        if mark is not None and mark.ended and wanted:
            batches, wanted = iter(()), wanted - mark.batches
        elif mark is not None:
            if mark.sampler is not None or not mark.ended:
                load_iterator(batches, mark)
            wanted -= 0 if mark.ended else mark.batches
        if wanted < 0:
            raise ValueError(
                f"{NUM_YIELDED}={position.received} in state_dict, but the sampler's own state in it is that "
                "after more batches, and it cannot be taken back: load the state as it was saved"
            )
        skipped, last = fast_forward(batches, wanted)
        if skipped < wanted:
            raise ValueError(
                f"the sampler has {position.next - wanted + skipped} batches, and state_dict is that after "
                f"{position.next}: give the dataset and the sampler that it was saved with"
            )
        if last is not None and last_batch not in (None, digest_of(last)):
            _warn_of_another_order(position.next - 1)
        source = Source(batches, self.sampler, position.next, position.ahead)
        if mark is not None and position.next == 0 and source.peek() is None:
            source = Source(self.draw(start.seed, start.epoch), self.sampler)  # it was at an epoch's end
        return source

    def _warn_of_other_epochs(self, beginning: Beginning) -> None:
        now = self.chain.epochs(beginning.epoch)
        for name, epoch in beginning.sampler_epochs.items():
            if now.get(name, epoch) != epoch:
                warnings.warn(
                    f"{name} was told that this is epoch {now[name]}, but the state that was loaded is of "
                    f"its epoch {epoch}: the batches that are left are not those that were left then",
                    stacklevel=8,  # who called iter()
                )


def _warn_of_another_order(batch: int) -> None:
    warnings.warn(
        f"batch {batch} of the sampler's order is not the one that was received before the state was saved: "
        "what is left of the epoch is not what was left then. Let the sampler draw from a generator that it "
        "has as an attribute, or give it state_dict() and load_state_dict()",
        stacklevel=9,  # who called iter()
    )


def _mark_between(position: Position) -> Mark | None:
    """Return where the sampler is between two epochs, None where that is not known."""
    mark = position.mark
    return mark if mark is not None and (mark.ended or not position.finished) else None


def _set_global_generators(texts: Mapping[str, str]) -> None:
    for name, generator in global_generators().items():
        if name in texts:
            set_state(generator, texts[name])


def require_state(name: str, holder: Any) -> None:
    """Raise ValueError where a state was loaded that nobody takes."""
    if not has_state(holder):
        raise ValueError(
            f"state_dict has a state of the {name}, and {type(holder).__name__} has no load_state_dict(): "
            f"give the {name} that it was saved with"
        )
