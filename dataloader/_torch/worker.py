"""A worker that makes batches of tensors.

Torch's own ``default_collate`` asks for torch's shared memory where it finds itself in a worker. Here what it
asks for lies in the slot that was lent for the batch: nothing is copied twice, /dev/shm is not used, and that
holds for a user's ``collate_fn`` that calls it as well.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from operator import countOf
from typing import Any

import numpy as np
import torch
from torch.utils.data import _utils

from dataloader import arena
from dataloader._torch import datapipes
from dataloader._torch.joining import CONTAINERS, is_torchs_alone
from dataloader._torch.rebuilding import storage_of
from dataloader._torch.tensors import Numbers, dumps, dumps_by_value, dumps_shared
from dataloader.recipe import Recipe, WorkerInit
from dataloader.rows import Rows
from dataloader.stream_recipe import StreamRecipe
from dataloader.wire import Dump
from dataloader.worker import Server
from dataloader.worker_info import WorkerInfo, note_asked
from supervisor.child import WorkerContext

_collate = _utils.collate
_collate_fns = _collate.default_collate_fn_map
_ROW_TYPES = {
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
}
_ARRAY_TYPES = frozenset("?bBhHiIlLqQefdFD")  # that torch has too
MAX_NUMBERS = arena.SMALL_BYTES // 8  # more are better off in the slot
_ORIGINALS = {  # of what is replaced in a worker, unless the user has replaced it
    torch.Tensor: _collate.collate_tensor_fn,
    int: _collate.collate_int_fn,
    float: _collate.collate_float_fn,
}


class TorchServer(Server):
    """What runs in a worker."""

    dumps: Sequence[Dump] = (dumps, dumps_shared, dumps_by_value)

    def __init__(self, recipe: Recipe | StreamRecipe, seed: int, init: WorkerInit | None) -> None:
        super().__init__(recipe, seed, init)
        self._collate_fns = list(_collate_fns.items())
        self._ranks = datapipes.ranks()

    def become(self, context: WorkerContext) -> WorkerInfo:
        info = super().become(context)
        torch.set_num_threads(1)
        _utils.worker._worker_info = _WorkerInfo(
            id=info.id, num_workers=info.num_workers, seed=info.seed, dataset=info.dataset
        )
        datapipes.shard(info.dataset, self._ranks, info)
        collate_into_slots(dict(self._collate_fns))
        return info

    def set_up(self, context: WorkerContext) -> None:
        super().set_up(context)  # worker_init_fn may replace collate functions
        if self.recipe.collate is _collate.default_collate and _are_containers_torchs():
            rows = TensorRows if is_torchs_alone(*REPLACEMENTS.values()) else TensorRowsOfWholes
            self.recipe = self.recipe.with_collate(_collate_fast, rows)


class _WorkerInfo(_utils.worker.WorkerInfo):
    """Torch's, that takes note when somebody asks which of several workers this is."""

    def __getattribute__(self, name: str) -> Any:
        if name in ("id", "num_workers"):
            note_asked()
        return super().__getattribute__(name)


def collate_into_slots(collate_fns: dict[Any, Callable[..., Any]]) -> None:
    """Let torch's ``default_collate`` in this process collate by ``collate_fns``, and into slots."""
    for kind, original in _ORIGINALS.items():
        if collate_fns.get(kind) is original:
            collate_fns[kind] = REPLACEMENTS[kind]
    _collate_fns.clear()
    _collate_fns.update(collate_fns)
    torch.UntypedStorage._new_shared = classmethod(_new_storage)  # type: ignore[assignment]


def _new_storage(kind: type, nbytes: int, *, device: Any = "cpu") -> torch.UntypedStorage:
    """Stand in for the request of shared memory."""
    room = arena.room(nbytes)
    return torch.UntypedStorage(nbytes, device=device) if room is None else storage_of(room)


def _stack(batch: Sequence[Any], *, collate_fn_map: Any = None) -> Any:
    """Stack tensors; large ones in the slot. What torch refuses is torch's."""
    whole = arena.whole(batch)
    if whole is not None:
        return whole
    first = batch[0]
    room = _room_for(batch)
    if room is None:
        with _no_worker():
            return _collate.collate_tensor_fn(batch, collate_fn_map=collate_fn_map)
    flat = torch.frombuffer(room, dtype=first.dtype)
    return torch.stack(list(batch), out=flat.view(len(batch), *first.shape))


class TensorRows(Rows):
    """The rows of a batch of tensors, or of arrays, which become tensors."""

    __slots__ = ()

    plain = Rows.plain | {torch.Tensor}

    def takes(self, value: Any) -> bool:
        if type(value) is np.ndarray:
            return super().takes(value) and self.travels(value)
        if type(value) is not torch.Tensor or not value.is_cpu or value.is_nested:
            return False
        if value.layout is not torch.strided or value.requires_grad or value.dtype not in _ROW_TYPES:
            return False
        return bool(value.nbytes >= self.least_bytes)

    @classmethod
    def travels(cls, array: Any) -> bool:
        """Whether torch makes a tensor of it; what it refuses, it is to see as it is."""
        strides = array.strides
        if array.dtype.char not in _ARRAY_TYPES or not array.dtype.isnative:
            return False
        return all(stride >= 0 and stride % array.itemsize == 0 for stride in strides)

    def new_array(self, first: Any) -> Any:
        if type(first) is np.ndarray:
            return super().new_array(first)
        shape, room = (self.count, *first.shape), self.room_for(first)
        if room is None:
            return torch.empty(shape, dtype=first.dtype, device="cpu")
        return torch.frombuffer(room, dtype=first.dtype).view(shape)


class TensorRowsOfWholes(TensorRows):
    """Of batches that are never made in pieces."""

    __slots__ = ()

    plain = frozenset()


def _room_for(batch: Sequence[Any]) -> memoryview | None:
    """Return room for the stacked tensors if they are alike."""
    first = batch[0]
    if {*map(type, batch)} != {torch.Tensor} or not first.is_cpu or first.is_nested:
        return None
    if first.layout is not torch.strided:
        return None
    room_bytes = len(batch) * first.numel() * first.element_size()
    if room_bytes < arena.SMALL_BYTES:
        return None
    if any(
        tensor.shape != first.shape or tensor.dtype != first.dtype or tensor.requires_grad for tensor in batch
    ):
        return None
    return arena.room(room_bytes)


def _are_containers_torchs() -> bool:
    """Whether no function of the user's collates dicts, lists or tuples."""
    return not any(issubclass(container, kind) for container in CONTAINERS for kind in _collate_fns)


def _collate_fast(samples: Sequence[Any]) -> Any:
    """Return what ``default_collate`` does, as it will be when it has arrived.

    Plain containers of samples that are alike take less time, and so do plain numbers.
    """
    first = samples[0]
    kind = type(first)
    are_alike = countOf(map(type, samples), kind) == len(samples)
    if are_alike and kind in CONTAINERS and countOf(map(len, samples), len(first)) == len(samples):
        if kind is dict:
            return {key: _collate_fast([sample[key] for sample in samples]) for key in first}
        return [*map(_collate_fast, zip(*samples, strict=False))]  # they are of one length
    collate_fn = _collate_fns.get(kind)
    if collate_fn is _collate.collate_numpy_array_fn and _collate_fns.get(torch.Tensor) is _stack:
        whole = arena.whole(samples)
        if whole is not None:
            return torch.from_numpy(whole)
    if collate_fn is None:
        return _collate.default_collate(samples)
    if are_alike and len(samples) < MAX_NUMBERS:
        if collate_fn is _floats:
            return Numbers("d", samples)
        if collate_fn is _ints:
            try:
                return Numbers("q", samples)
            except OverflowError:
                pass
    return collate_fn(samples, collate_fn_map=_collate_fns)


class _no_worker:
    """Let torch think for a while that this is no worker, so that it stacks in ordinary memory."""

    def __enter__(self) -> None:
        self._info, _utils.worker._worker_info = _utils.worker._worker_info, None

    def __exit__(self, *raised: object) -> None:
        _utils.worker._worker_info = self._info


def _ints(batch: Sequence[Any], *, collate_fn_map: Any = None) -> torch.Tensor:
    """Return what torch does, in a fifth of the time."""
    if countOf(map(type, batch), int) == len(batch):  # torch makes bools of bools
        try:
            return torch.frombuffer(array("q", batch), dtype=torch.int64)
        except OverflowError:
            pass
    return torch.tensor(batch)


def _floats(batch: Sequence[Any], *, collate_fn_map: Any = None) -> torch.Tensor:
    if countOf(map(type, batch), float) == len(batch):
        return torch.frombuffer(array("d", batch), dtype=torch.float64)
    return torch.tensor(batch, dtype=torch.float64)


REPLACEMENTS: dict[type, Callable[..., Any]] = {torch.Tensor: _stack, int: _ints, float: _floats}
