"""What makes a loader's epochs repeatable: what it draws from, the numbers of its epochs, its states."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from dataloader.datasets.kinds import is_iterable
from dataloader.live_state import LiveState
from dataloader.opening import Opened, Opener, Start
from dataloader.ranks import rank_here
from dataloader.resume import Resume, checked_state
from dataloader.sampler_chain import SamplerChain
from dataloader.samplers import BatchSampler, checked_count, iterate
from dataloader.state import Bookmark, Position
from dataloader.stream_ledger import OwnStream, Streams, StreamSource
from dataloader.stream_resume import progress_of


class ResumableLoader:
    """Opens epochs, and says where their user is."""

    dataset: Any
    batch_size: int | None
    drop_last: bool
    sampler: Iterable[Any]
    batch_sampler: Iterable[Any] | None
    num_workers: int
    in_order: bool
    seed: int | None
    _given: Mapping[str, Any]
    _live: LiveState

    def set_epoch(self, epoch: int) -> None:
        """Let the next ``iter()`` begin epoch number ``epoch``, counted from 0.

        A sampler of the user's that has ``set_epoch``, such as a distributed one, is told as well.

        Raises:
            ValueError, TypeError: ``epoch`` is no whole number of at least 0.

        >>> from dataloader import DataLoader
        >>> loader = DataLoader(range(9), shuffle=True)
        >>> first, second = list(loader), list(loader)
        >>> loader.set_epoch(0)
        >>> list(loader) == first != second
        True
        """
        self._live.next_epoch = checked_count("epoch", epoch, least=0)
        resume = self._live.resume
        if resume is not None and resume.is_middle and resume.epoch != self._live.next_epoch:
            self._live.resume = None
            warnings.warn(
                f"set_epoch({epoch}) after a state of epoch {resume.epoch} was loaded: epoch {epoch} begins "
                "at its first batch",
                stacklevel=2,
            )
        samplers = (self.batch_sampler, self.sampler, getattr(self.batch_sampler, "sampler", None))
        for sampler in {id(sampler): sampler for sampler in samplers}.values():
            tell = getattr(sampler, "set_epoch", None)
            if tell is not None:
                tell(self._live.next_epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return where the user of the iterator that was made last is: see ``load_state_dict``.

        It counts the batches that the user has received. It can be had at any time, before the first epoch,
        in the middle of one, or between two; it draws nothing and starts nothing. The dict is the caller's,
        and can be written as JSON if the states of the dataset and the sampler can, where these have one.

        >>> from dataloader import DataLoader
        >>> loader = DataLoader(range(10), batch_size=4)
        >>> for batch in loader:
        ...     break
        >>> loader.state_dict()["_num_yielded"]
        1
        """
        live = self._live
        if live.resume is not None:
            state = copy.deepcopy(dict(live.resume.state))
            return state if live.resume.is_middle else {**state, **live.resume.renumbered(live.next_epoch)}
        if live.bookmark is not None:
            return live.bookmark.state_dict(live.next_epoch)
        opener = self._opener()
        beginning = opener.beginning(live.next_epoch, self.seed)
        return Bookmark(beginning, opener.facts, position=Position(mark=opener.begin_mark())).state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Let the next ``iter()`` go on where ``state_dict`` was taken.

        The batches that are left come as they would have come then, random augmentation included, whatever
        ``num_workers`` is; samples of those before are not loaded. A state of an epoch's end lets the next
        epoch begin. Where ``seed`` was not given, the loader has the state's from now on.

        Parameters:
            state_dict: what ``state_dict()`` of a loader like this returned, of another rank's too. An empty
                one undoes an earlier call.

        Raises:
            TypeError, ValueError: it is no such state, or one of another loader: the message names what
                differs.

        Warns:
            UserWarning: what cannot be exact: the dataset has a state of its own, and workers changed it.

        >>> from dataloader import DataLoader
        >>> loader, other = [DataLoader(range(10), batch_size=4, shuffle=True) for _ in range(2)]
        >>> iterator = iter(loader)
        >>> _ = next(iterator)
        >>> other.load_state_dict(loader.state_dict())
        >>> [batch.tolist() for batch in other] == [batch.tolist() for batch in iterator]
        True
        """
        live = self._live
        if state_dict == {}:
            live.load(None)
            return
        opener = self._opener()
        resume = checked_state(state_dict, opener.facts)
        if resume.has_older_dataset:
            warnings.warn(
                "the dataset's own state that was loaded is that of its epoch's beginning: what workers' "
                "copies of it had become is not known, and samples that depend on it are not the same",
                stacklevel=2,
            )
        if self._has_streams and not resume.position.finished:
            progress_of(resume.state["streams"], self.num_workers, self.dataset)
        with live.lock:
            resume = self._with_seed_of(resume, opener.rank)
            opener.chain.set_epochs(resume.sampler_epochs)
            live.load(resume)

    def _with_seed_of(self, resume: Resume, rank: int) -> Resume:
        """Take the state's seed for this loader, or this loader's for the state, where they differ."""
        seed = resume.beginning.seed
        if self.seed is None or seed is None or seed == self.seed:
            return resume
        if self._given["seed"] is None:
            self.__dict__["seed"] = seed
            return resume
        if resume.beginning.rank == rank:
            raise ValueError(
                f"state_dict is of a loader with seed={seed}, and this one has seed={self.seed}: give "
                f"seed={seed}, or none, or begin anew without the state"
            )
        return resume.with_seed(self.seed)

    # ---- opening -------------------------------------------------------------------------------

    def _open(self) -> Opened:
        opened = self._opener().open(self._live.next_epoch, self._live.resume)
        if self._given["seed"] is None:
            self.__dict__["seed"] = opened.seed
        return opened

    def _start(self, epoch: int) -> Start:
        """Return what the epoch begins with, having drawn whatever there is to draw."""
        raise NotImplementedError

    def _drawn(self, seed: int, epoch: int) -> Iterator[Any]:
        """Begin to draw from the sampler: lists of indices, of one each where samples come singly."""
        if self.batch_sampler is None:
            return BatchSampler(self.sampler, batch_size=1, drop_last=False).iterate(seed, epoch)
        return iterate(self.batch_sampler, seed, epoch)

    def _opener(self) -> Opener:
        chain = self._chain()
        ours = {"batch_size": self.batch_size, "drop_last": self.drop_last}
        twice = [] if self.batch_size is None else [f"batch_sampler.{name}" for name in ours]
        facts = {"len(dataset)": self._length(), **ours, **chain.facts()}
        facts = {name: value for name, value in facts.items() if name not in twice}
        streams = self._streams if self._has_streams else None
        return Opener(self.dataset, chain, self._order_sampler, facts, self._start, self._drawn, streams)

    def _length(self) -> int | None:
        """Return how many samples the dataset has; None where it does not tell, or has streams."""
        try:
            return None if self._has_streams else len(self.dataset)
        except Exception:  # the user's: nobody may ever have asked
            return None

    @property
    def _has_streams(self) -> bool:
        """Whether the dataset is iterable, so that each worker has a stream of its own."""
        return is_iterable(self.dataset)

    def _streams(self, state: Any) -> StreamSource:
        """Return the workers' streams, which go on from what a state says of them."""
        streams = Streams(
            workers=self.num_workers,
            size=self.batch_size or 1,
            rank=rank_here(),
            name=type(self.dataset).__name__,
            length=self._stated_length,
            warned=self._live.warned,
        )
        progress = progress_of(state, self.num_workers, self.dataset)
        if self.num_workers == 0:
            return OwnStream(streams, progress=progress)
        return StreamSource(streams, self._prefetch, in_order=self.in_order, progress=progress)

    @property
    def _stated_length(self) -> int | None:
        """How many samples an iterable dataset was said to have; None: nobody asked."""
        return self._live.stated_length

    def _chain(self) -> SamplerChain:
        return SamplerChain(self.batch_sampler, self.sampler)

    @property
    def _order_sampler(self) -> Any:
        """The sampler whose own state counts, if it has one."""
        if self.batch_sampler is None:
            return self.sampler
        return _behind(self.batch_sampler)

    @property
    def _prefetch(self) -> int:
        """Batches per worker ahead of the user."""
        raise NotImplementedError


def _behind(batch_sampler: Iterable[Any]) -> Iterable[Any]:
    """Return whose indices the batches are made of, where that is all that ``batch_sampler`` does."""
    return batch_sampler.sampler if isinstance(batch_sampler, BatchSampler) else batch_sampler
