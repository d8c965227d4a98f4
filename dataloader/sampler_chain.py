"""What decides the order of an epoch: a loader's samplers, each with the one that it draws from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sized
from typing import Any

import numpy as np

from dataloader.generators import generators_of, global_generators, set_state, state_text
from dataloader.samplers import EpochSampler, SeededSampler

_SETTINGS = (
    *("batch_size", "drop_last", "replacement", "num_samples", "seed", "shuffle", "num_replicas"),
    *("budget", "padded", "max_size", "oversized", "bucket_size"),
)
_OURS = ("dataloader", "torch")
_TORCHS_WITHOUT_DRAWS = (
    "SequentialSampler",
    "BatchSampler",
    "DistributedSampler",
    "_InfiniteConstantSampler",
)


class SamplerChain:
    """A sampler, the sampler that it holds as ``batch_sampler`` or ``sampler``, and so on.

    Parameters:
        batch_sampler: the loader's, or None.
        sampler: the loader's.
        generator: the loader's, if samplers may draw from it.
    """

    def __init__(self, batch_sampler: Any, sampler: Any, generator: Any = None) -> None:
        self.samplers: dict[str, Any] = {}
        top = sampler if batch_sampler is None else batch_sampler
        name = "batch_sampler" if top is batch_sampler else "sampler"
        while top is not None and all(top is not other for other in self.samplers.values()):
            self.samplers["sampler" if top is sampler else name] = top
            attribute, top = _inner(top)
            name = f"{name}.{attribute}"
        self._generator = generator

    # ---- generators ------------------------------------------------------------------------------

    def _generators(self) -> dict[str, Any]:
        """Return the generators from which samplers draw, by the attribute that holds each."""
        found = {} if self._generator is None else {"generator": self._generator}
        for name, sampler in self.samplers.items():
            for attribute, held in generators_of(sampler).items():
                if held is not self._generator:
                    found[f"{name}.{attribute}"] = held
        return found

    def generators(self) -> dict[str, str]:
        """Return where the generators are from which samplers draw, by the attribute that holds each."""
        texts = {name: state_text(generator) for name, generator in self._generators().items()}
        return {name: text for name, text in texts.items() if text is not None}

    def lacks(self, texts: Mapping[str, str]) -> bool:
        """Whether some of these generators are not there, or not yet."""
        return not texts.keys() <= self._generators().keys()

    def set_generators(self, texts: Mapping[str, str]) -> None:
        """Put the generators where they were.

        Raises:
            ValueError: there is none, or it is no state of it.
        """
        generators = self._generators()
        for name, text in texts.items():
            if name not in generators:
                raise ValueError(
                    f"state_dict has the state of the generator {name}, which this loader has not: give the "
                    "samplers that it was saved with"
                )
            try:
                set_state(generators[name], text)
            except ValueError as error:
                raise ValueError(f"state_dict['generators'][{name!r}]: {error}") from error

    def global_generators(self) -> dict[str, str]:
        """Return where those global generators are that samplers may draw from."""
        names: set[str] = set().union(*map(_global_generators_of, self.samplers.values()))
        found = global_generators()
        texts = {name: state_text(found[name]) for name in sorted(names & set(found))}
        return {name: text for name, text in texts.items() if text is not None}

    # ---- epochs ----------------------------------------------------------------------------------

    def epochs(self, epoch: int) -> dict[str, int]:
        """Return which epoch each sampler was told; ``epoch``: number of the loader's."""
        found = {name: _epoch_of(sampler, epoch) for name, sampler in self.samplers.items()}
        return {name: number for name, number in found.items() if number is not None}

    def set_epochs(self, epochs: Mapping[str, int]) -> None:
        """Tell samplers which epoch it is."""
        for name, epoch in epochs.items():
            tell = getattr(self.samplers.get(name), "set_epoch", None)
            if tell is not None:
                tell(epoch)

    @property
    def follows_seed(self) -> bool:
        """Whether the order may follow from the loader's seed."""
        return any(isinstance(sampler, EpochSampler) for sampler in self.samplers.values())

    @property
    def rank(self) -> int | None:
        """Which rank's share the samplers give; None: they know of no ranks."""
        for sampler in self.samplers.values():
            for attribute in ("rank", "process_index"):
                rank = getattr(sampler, attribute, None)
                if type(rank) is int:
                    return rank
        return None

    # ---- facts -----------------------------------------------------------------------------------

    def facts(self) -> dict[str, Any]:
        """Return what must be the same for the order to be the same, in plain values."""
        facts: dict[str, Any] = {}
        for name, sampler in self.samplers.items():
            kind = type(sampler)
            is_known = kind.__module__.partition(".")[0] in _OURS
            facts[name] = f"{kind.__module__}.{kind.__qualname__}" if is_known else kind.__qualname__
            if is_known:
                settings = {key: getattr(sampler, key, None) for key in _SETTINGS}
                facts |= {f"{name}.{key}": value for key, value in settings.items() if _is_plain(value)}
                held = generators_of(sampler)
                facts |= {f"{name}.{key}": type(generator).__name__ for key, generator in held.items()}
            elif _is_sequence(sampler):
                facts[f"len({name})"] = len(sampler)
        return facts


def _inner(sampler: Any) -> tuple[str, Any]:
    for attribute in ("batch_sampler", "sampler"):
        inner = getattr(sampler, attribute, None)
        if isinstance(inner, Iterable):
            return attribute, inner
    return "", None


def _epoch_of(sampler: Any, epoch: int) -> int | None:
    if isinstance(sampler, SeededSampler):
        return sampler.epoch_in(epoch)
    number = getattr(sampler, "epoch", None)
    return number if hasattr(sampler, "set_epoch") and type(number) is int else None


def _global_generators_of(sampler: Any) -> set[str]:
    """Return the names of the global generators that ``sampler`` may draw from."""
    kind = type(sampler)
    library = kind.__module__.partition(".")[0]
    if library == "dataloader" or _is_sequence(sampler):
        return set()
    if library != "torch":
        return set(global_generators())
    draws = kind.__name__ not in _TORCHS_WITHOUT_DRAWS and getattr(sampler, "generator", None) is None
    return {"torch"} if draws else set()


def _is_sequence(sampler: Any) -> bool:
    return isinstance(sampler, list | tuple | range | np.ndarray) and isinstance(sampler, Sized)


def _is_plain(value: Any) -> bool:
    return isinstance(value, bool | int | float | str)
