"""A state that was loaded, ``load_state_dict``: whether it fits the loader, and where the next epoch goes on.

Nothing here draws, loads or sends anything.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dataloader.state import FINISHED, NUM_YIELDED, VERSION, Beginning, Facts, Mark, Position


@dataclass(frozen=True)
class Resume:
    """A state that was loaded.

    Parameters:
        beginning: of its epoch.
        position: in it.
        next_epoch: number of the epoch after it.
        generators, sampler_epochs: as in ``beginning``: of the time that it is gone on from.
        state: it, as it was given.
    """

    beginning: Beginning
    position: Position
    next_epoch: int
    generators: Mapping[str, str]
    sampler_epochs: Mapping[str, int]
    state: Mapping[str, Any]

    @property
    def epoch(self) -> int:
        """Number of the epoch that begins or goes on next."""
        return self.next_epoch if self.position.finished else self.beginning.epoch

    @property
    def is_middle(self) -> bool:
        """Whether it goes on with an epoch, rather than begin one."""
        return not self.position.finished and (self.beginning.begun or self.position.next > 0)

    @property
    def is_cut_short(self) -> bool:
        """Whether the epoch is said to be over, and its iterator had not said so."""
        return self.position.finished and self.beginning.begun and self.state["after"] is None

    @property
    def draws_seed(self) -> bool:
        """Whether the seed of the epoch that it opens was, or would be, drawn from the generators too."""
        return self.beginning.next_draws if self.position.finished else self.beginning.draws

    @property
    def last_batch(self) -> str | None:
        """The digest of the indices of the last batch before its position; None: it is not known."""
        digest: str | None = self.state["last_batch"]
        return digest if self.position.next == self.state["next_batch"] else None

    @property
    def has_older_dataset(self) -> bool:
        """Whether the dataset has a state of its own, and it is not that of the position."""
        taken_at = self.state["dataset_batches"]
        return self.beginning.dataset is not None and self.is_middle and taken_at != self.position.next

    def renumbered(self, epoch: int) -> dict[str, int]:
        """Return what of the state differs where the epoch that it begins is number ``epoch``."""
        return {"next_epoch": epoch} if self.position.finished else {"epoch": epoch, "next_epoch": epoch + 1}

    def with_seed(self, seed: int) -> Resume:
        """Return the same for a loader with another seed."""
        beginning = replace(self.beginning, seed=seed)
        return replace(self, beginning=beginning, state={**self.state, "seed": seed})


_ADVICE = "load what state_dict() of such a loader returned, or begin anew without it"
_KINDS: dict[str, tuple[type, ...]] = {
    NUM_YIELDED: (int,),
    FINISHED: (bool, int),
    "version": (int,),
    "seed": (int, type(None)),
    "epoch": (int,),
    "next_epoch": (int,),
    "rank": (int,),
    "begun": (bool,),
    "draws_seed": (bool,),
    "next_draws_seed": (bool,),
    "next_batch": (int,),
    "ahead": (list, tuple),
    "left_out": (int,),
    "lately_left_out": (list, tuple),
    "last_batch": (str, type(None)),
    "samples": (int,),
    "generators": (Mapping,),
    "global_generators": (Mapping,),
    "sampler_epochs": (Mapping,),
    "after": (Mapping, type(None)),
    "sampler": (Mapping, type(None)),
    "dataset_batches": (int,),
    "streams": (Mapping, type(None)),
    "loader": (Mapping,),
}


def checked_state(state: Any, facts: Facts) -> Resume:
    """Return what ``state`` says, for a loader of which ``facts`` are true.

    Raises:
        TypeError: it is no dict.
        ValueError: it is none of ours, or of another loader: the message names what differs.
    """
    if not isinstance(state, Mapping):
        raise TypeError(f"state_dict={state!r}: {_ADVICE}")
    _check_origin(state)
    _check_values(state)
    _check_facts(state["loader"], facts)
    state = copy.deepcopy(dict(state))
    beginning = Beginning(
        state["epoch"],
        state["seed"],
        state["rank"],
        state["generators"],
        state["sampler_epochs"],
        state["dataset"],
        state["begun"],
        state["global_generators"],
        state["draws_seed"],
        state["next_draws_seed"],
    )
    position = _position(state)
    order = state["after"] if position.finished and state["after"] is not None else state
    return Resume(
        beginning, position, state["next_epoch"], order["generators"], order["sampler_epochs"], state
    )


def _check_origin(state: Mapping[str, Any]) -> None:
    if "_snapshot" in state or "_sampler_iter_yielded" in state:
        raise ValueError(
            "state_dict is one of torchdata's StatefulDataLoader, which a loader of ours cannot go on from: "
            "finish the epoch with that loader, and change at its end"
        )
    missing = [key for key in (*_KINDS, "dataset") if key not in state]
    if missing:
        raise ValueError(f"state_dict has no {missing[0]!r}: {_ADVICE}")
    if state["version"] != VERSION:
        raise ValueError(
            f"state_dict has version {state['version']!r}, where this release knows {VERSION}: load it with "
            "the release that made it"
        )


def _check_values(state: Mapping[str, Any]) -> None:
    for key, kinds in _KINDS.items():
        value = state[key]
        if not isinstance(value, kinds) or (isinstance(value, int) and value < 0):
            raise ValueError(f"state_dict[{key!r}]={value!r}: {_ADVICE}")
    for key in ("ahead", "lately_left_out"):
        if not all(type(number) is int for number in state[key]):
            raise ValueError(f"state_dict[{key!r}]={state[key]!r}: {_ADVICE}")
    if state["next_batch"] + len(state["ahead"]) < state["left_out"]:
        raise ValueError(f"state_dict['left_out']={state['left_out']!r}: {_ADVICE}")
    for key, fields in (("sampler", Mark._fields), ("after", ("generators", "sampler_epochs"))):
        if state[key] is not None and set(state[key]) != set(fields):
            raise ValueError(f"state_dict[{key!r}] has {sorted(state[key])}: {_ADVICE}")


def _check_facts(then: Facts, now: Facts) -> None:
    differing = [
        f"{name} was {then.get(name)!r} and is {now.get(name)!r}"
        for name in dict.fromkeys((*now, *then))
        if then.get(name) != now.get(name)
    ]
    if differing:
        raise ValueError(
            f"state_dict is of another loader: {'; '.join(differing)}. Make the loader as it was then, or "
            "begin anew without the state"
        )


def _position(state: Mapping[str, Any]) -> Position:
    mark = state["sampler"]
    position = Position(
        next=state["next_batch"],
        ahead=dict.fromkeys(state["ahead"]),
        received=state["next_batch"] + len(state["ahead"]) - state["left_out"],
        left_out=state["left_out"],
        lately=tuple(state["lately_left_out"]),
        items=state["samples"],
        mark=None if mark is None else Mark(**mark),
        dataset=state["dataset"],
        finished=bool(state[FINISHED]),
    )
    if state["streams"] is not None and not position.finished and position.received != state[NUM_YIELDED]:
        raise ValueError(
            f"{NUM_YIELDED} was changed from {position.received} to {state[NUM_YIELDED]}, and an iterable "
            "dataset cannot be taken to any place but that of the state: load it as it was saved"
        )
    return position.with_received(state[NUM_YIELDED])
