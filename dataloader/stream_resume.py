"""How far streams are, as plain values for a state_dict, and back."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any

from dataloader.checkpoints import Checkpoint, Progress
from dataloader.stateful import has_state
from dataloader.stream_state import packed_state

_ADVICE = "load what state_dict() of such a loader returned, or begin anew without it"


def plain(progress: Progress, workers: int) -> dict[str, Any]:
    """Return ``progress`` as plain values, but for the dataset's states, which are as they are."""
    streams = map(_plain_stream, progress.checkpoints, progress.ended)
    return {"num_workers": workers, "streams": list(streams)}


def _plain_stream(checkpoint: Checkpoint, ended: bool) -> dict[str, Any]:
    packed = checkpoint.state
    return {
        "batches": checkpoint.batches,
        "samples": checkpoint.samples,
        "odd": [list(each) for each in checkpoint.odd],
        "state": None if packed is None else [list(part) for part in pickle.loads(packed)],
        "ended": ended,
    }


def progress_of(state: Any, workers: int, dataset: Any) -> Progress | None:
    """Return what ``state`` says, None where no stream had begun. ``workers``: how many there are now.

    Raises:
        ValueError: it is none of ours, or does not fit to the loader: the message says why.
    """
    if state is None:
        return None
    try:
        known = [_stream(each) for each in state["streams"]]
        workers_then = int(state["num_workers"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"state_dict['streams'] is damaged ({error!r}): {_ADVICE}") from error
    progress = Progress(*zip(*known, strict=True))
    if not any(checkpoint.batches for checkpoint in progress.checkpoints) and not any(progress.ended):
        return None
    if len(known) != max(1, workers):
        raise ValueError(
            f"state_dict is of an iterable dataset in the middle of an epoch with "
            f"num_workers={workers_then}, and num_workers={workers} now: what each worker had left of its "
            f"share cannot be shared out anew. Make the loader with num_workers={workers_then}, or change it "
            "between two epochs"
        )
    _require_state(progress, dataset)
    return progress


def _stream(plain: Mapping[str, Any]) -> tuple[Checkpoint, bool]:
    odd = tuple((int(batch), int(drawn)) for batch, drawn in plain["odd"])
    state = None if plain["state"] is None else packed_state(*plain["state"])
    return Checkpoint(int(plain["batches"]), int(plain["samples"]), state, odd), bool(plain["ended"])


def _require_state(progress: Progress, dataset: Any) -> None:
    for checkpoint in progress.checkpoints:
        if checkpoint.state is not None and pickle.loads(checkpoint.state)[0] and not has_state(dataset):
            raise ValueError(
                f"state_dict has a state of the dataset, and {type(dataset).__name__} has no "
                "load_state_dict(): give the dataset that it was saved with"
            )
