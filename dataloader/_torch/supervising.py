"""Supervising a loader that exists: torch's own, one that Accelerate has prepared, or one of ours again.

    a loader of torch's       becomes one of ours, in place: what holds it need not know
    prepared by Accelerate    a shell around a loader of torch's, and that becomes one of ours

A shell tells its epoch to the samplers, and not to the loader in it: it is made to, for the random state of
samples follows from it.
"""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Mapping
from functools import partial
from typing import Any, TypeVar

import torch

from dataloader.live_state import LiveState

EXTRAS = ("seed", "restart", "on_error", "worker_memory_limit", "progress")
"""The arguments that torch's loader does not have."""

_PLAIN = (
    *("dataset", "num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "generator"),
    *("multiprocessing_context", "prefetch_factor", "persistent_workers", "pin_memory_device", "in_order"),
)
_CHANGEABLE = (*EXTRAS, "multiprocessing_context", "timeout", "prefetch_factor", "in_order", "worker_init_fn")
_CONTEXT = "_DataLoader__multiprocessing_context"  # where torch keeps it

Loader = TypeVar("Loader")


def supervise_as(ours: type[Any], loader: Loader, like: Any, extras: Mapping[str, Any]) -> Loader:
    """See ``dataloader.torch.supervise``. ``ours``: the class of the loader that it becomes."""
    unknown = extras.keys() - set(_CHANGEABLE)
    if unknown:
        name = min(unknown)
        raise TypeError(f"{name}={extras[name]!r}: only these can be changed: {', '.join(_CHANGEABLE)}")
    base = base_of(loader)
    if not isinstance(base, torch.utils.data.DataLoader):
        raise TypeError(f"loader={loader!r} is no torch.utils.data.DataLoader: give one, or a prepared one")
    wanted = {**_extras_of(ours, like), **extras}
    if isinstance(base, ours):
        _change(base, wanted)
    else:
        _convert(base, ours, wanted)
    if loader is not base:
        _let_shell_follow(loader, base)
    return loader


def base_of(loader: Any) -> Any:
    """Return the loader itself, without the shells that Accelerate puts around it."""
    while "base_dataloader" in getattr(loader, "__dict__", {}):
        loader = loader.__dict__["base_dataloader"]
    return loader


def _extras_of(ours: type[Any], like: Any) -> dict[str, Any]:
    if like is None:
        return {}
    base = base_of(like)
    if not isinstance(base, ours):
        raise TypeError(f"like={like!r}: give a loader of dataloader.torch, or None")
    return {name: base._given[name] for name in EXTRAS}


def _change(base: Any, wanted: Mapping[str, Any]) -> None:
    made = type(base)(**{**base._given, **wanted})
    for name in wanted:
        key = _CONTEXT if name == "multiprocessing_context" else name
        base.__dict__[key] = vars(made)[key]
    base._given = made._given


def _convert(base: Any, ours: type[Any], wanted: Mapping[str, Any]) -> None:
    kind = type(base)
    plain = torch.utils.data.DataLoader
    if kind.__iter__ is not plain.__iter__ or kind._get_iterator is not plain._get_iterator:
        raise TypeError(
            f"loader={base!r} iterates in a way of its own, which would be lost: let its class inherit from "
            "dataloader.torch.DataLoader"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what it was made of was warned of
        made = ours(**{**_arguments_of(base), **wanted})
    before = {name: value for name, value in vars(base).items() if name != "_iterator"}
    changed = {_CONTEXT if name == "multiprocessing_context" else name for name in wanted}
    base.__dict__.clear()
    base.__dict__.update({**vars(made), **before, **{name: vars(made)[name] for name in changed}})
    # Possible only as long as torch's class is the first that ``ours`` inherits from.
    base.__class__ = ours if kind is plain else type(kind.__name__, (ours, kind), {})


def _arguments_of(base: Any) -> dict[str, Any]:
    """Return what a loader like ``base`` is made with, where its sampler is given."""
    arguments = {name: getattr(base, name) for name in _PLAIN}
    if isinstance(base.dataset, torch.utils.data.IterableDataset):
        return {**arguments, "batch_size": base.batch_size, "drop_last": base.drop_last}
    if base.batch_size is None and base.batch_sampler is not None:
        return {**arguments, "batch_size": 1, "batch_sampler": base.batch_sampler}
    return {**arguments, "batch_size": base.batch_size, "sampler": base.sampler, "drop_last": base.drop_last}


# ---- Accelerate ----------------------------------------------------------------------------------


def _let_shell_follow(shell: Any, base: Any) -> None:
    shell.dl_state_dict = base.state_dict()
    if hasattr(type(shell), "set_epoch"):
        shell.set_epoch = partial(_set_epoch, shell)


def _set_epoch(shell: Any, epoch: int) -> None:
    type(shell).set_epoch(shell, epoch)
    base, skipped = base_of(shell), shell.__dict__.get("supervised_skip", 0)
    if base._live.resume is not None and not skipped:
        return  # the user has loaded a state, which says where to go on
    base._live.resume = None
    base.set_epoch(epoch)
    if skipped:
        base.load_state_dict(state_after(base, skipped))


def state_after(loader: Any, batches: int) -> dict[str, Any]:
    """Return the state of ``loader`` once that many batches of its next epoch are received."""
    fresh = copy.copy(loader).state_dict()
    return {**fresh, "_num_yielded": batches, "_iterator_finished": False, "begun": True}


def without_first(loader: Loader, batches: int) -> Loader:
    """Return a loader like ``loader``, one of ours or around one, whose epochs lack their first batches.

    Their samples are not loaded. Those that are left come as they do in whole epochs.
    """
    if loader is base_of(loader):
        skipping: Any = copy.copy(loader)
        skipping.load_state_dict(state_after(skipping, batches))
        return skipping  # type: ignore[no-any-return]
    shell: Any = object.__new__(type(loader))
    shell.__dict__.update(vars(loader))
    shell.base_dataloader = copy.copy(base_of(loader))
    shell.supervised_skip = batches + vars(loader).get("supervised_skip", 0)
    _let_shell_follow(shell, shell.base_dataloader)
    return shell  # type: ignore[no-any-return]


class SeenByAccelerate:
    """Warns, once, where Accelerate is about to put a loader of torch's in the place of one of ours."""

    _live: LiveState
    _was_told = False

    @property
    def _is_accelerate_prepared(self) -> bool:
        is_prepared: bool = self.__dict__.get("_is_accelerate_prepared", False)
        caller = sys._getframe(1)
        if (
            not is_prepared
            and not self._was_told
            and caller.f_globals["__name__"] == "accelerate.accelerator"
        ):
            self._was_told = True
            warnings.warn(
                "Accelerate puts a loader of torch's in the place of this one, and its workers are not "
                "supervised: take Accelerator from dataloader.accelerate, or call "
                "dataloader.torch.supervise(prepared, like=loader)",
                stacklevel=5,
            )
        return is_prepared

    @_is_accelerate_prepared.setter
    def _is_accelerate_prepared(self, is_prepared: bool) -> None:
        self.__dict__["_is_accelerate_prepared"] = is_prepared
