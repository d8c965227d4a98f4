"""Batches of tensors that were made in pieces, put together in the consumer: see ``dataloader.joining``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import countOf
from typing import Any

import numpy as np
import torch
from torch.utils.data import _utils

from dataloader import arena
from dataloader.arena import SMALL_BYTES
from dataloader.joining import Column
from dataloader.pieces import NotInPieces

_collate = _utils.collate
CONTAINERS = frozenset({dict, list, tuple})


def is_torchs_alone(*ours: Callable[..., Any]) -> bool:
    """Whether torch's ``default_collate`` calls nothing but functions of torch's, or ``ours``."""
    known = {*map(id, vars(_collate).values()), *map(id, ours)}
    return all(id(function) in known for function in _collate.default_collate_fn_map.values())


def collate_joined(samples: Sequence[Any]) -> Any:
    """Return what ``default_collate`` does in a worker: in main memory, whatever the default device here."""
    if torch.get_default_device().type == "cpu":
        return _joined(samples)
    with torch.device("cpu"):
        return _joined(samples)


def _joined(samples: Sequence[Any]) -> Any:
    first = samples[0]
    kind = type(first)
    if countOf(map(type, samples), kind) == len(samples):
        if kind in CONTAINERS and countOf(map(len, samples), len(first)) == len(samples):
            if kind is dict:
                return {key: _joined([sample[key] for sample in samples]) for key in first}
            return [*map(_joined, zip(*samples, strict=False))]  # they are of one length
        if kind is torch.Tensor and True in [tensor.requires_grad for tensor in samples]:
            raise NotInPieces  # one worker could not send the batch either, and says why
        whole = arena.whole(samples) if kind is torch.Tensor or kind is np.ndarray else None
        if whole is not None:
            return whole
    return _collate.default_collate(samples)


class TensorColumn(Column):
    """Finds the tensors, or the arrays, that are all the rows of a column."""

    __slots__ = ()

    def whole(self, arrays: Sequence[Any]) -> Any:
        first = arrays[0]
        if type(first) is np.ndarray:
            array = super().whole(arrays)
            return None if array is None else torch.from_numpy(array)
        room = self._room(arrays)
        if room is None:
            return None
        return torch.frombuffer(room, dtype=first.dtype).view(len(arrays), *first.shape)

    def are_alike(self, arrays: Sequence[Any]) -> bool:
        first = arrays[0]
        if type(first) is np.ndarray:
            return super().are_alike(arrays)
        if type(first) is not torch.Tensor or first.nbytes < SMALL_BYTES or not first.is_cpu:
            return False
        return False not in [
            type(tensor) is torch.Tensor
            and tensor.dtype == first.dtype
            and tensor.shape == first.shape
            and tensor.layout is torch.strided
            and tensor.is_contiguous()
            and not (tensor.requires_grad or tensor.is_conj() or tensor.is_neg())
            for tensor in arrays
        ]

    def addresses(self, arrays: Sequence[Any]) -> list[int]:
        if type(arrays[0]) is np.ndarray:
            return super().addresses(arrays)
        return [tensor.data_ptr() for tensor in arrays]
