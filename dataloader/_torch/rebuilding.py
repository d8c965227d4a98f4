"""Tensors that have arrived: made anew of the memory that they came with. See tensors for the other side."""

from __future__ import annotations

from typing import Any

import torch

DTYPES = sorted({value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=str)
CONJ, NEG, GRAD = 1, 2, 4  # flags of a tensor


def rebuild(
    buffer: Any,
    dtype: int,
    size: tuple[int, ...],
    stride: tuple[int, ...] | None = None,
    flags: int = 0,
) -> torch.Tensor:
    """Return the tensor whose memory is ``buffer``, and not a copy of it; ``dtype``: its number."""
    if not len(buffer):
        tensor = torch.empty_strided(size, stride or (), dtype=DTYPES[dtype], device="cpu")
    else:
        tensor = torch.frombuffer(buffer, dtype=DTYPES[dtype])
        if stride is not None:
            tensor.as_strided_(size, stride)
        elif len(size) != 1:
            tensor.resize_(size)
    return _flagged(tensor, flags) if flags else tensor


def rebuild_view(
    storage: torch.UntypedStorage,
    offset_bytes: int,
    dtype: int,
    size: tuple[int, ...],
    stride: tuple[int, ...],
    flags: int,
) -> torch.Tensor:
    """Return a tensor that is a view of ``storage``, which others are views of too."""
    tensor = torch.empty(0, dtype=DTYPES[dtype], device="cpu")
    return _flagged(tensor.set_(storage, offset_bytes // tensor.element_size(), size, stride), flags)


def _flagged(tensor: torch.Tensor, flags: int) -> torch.Tensor:
    if flags & CONJ:
        tensor = tensor.conj()
    if flags & NEG:
        tensor = torch._neg_view(tensor)
    return tensor.requires_grad_() if flags & GRAD else tensor


def storage_of(buffer: Any) -> torch.UntypedStorage:
    """Return a storage whose memory is ``buffer``."""
    return torch.frombuffer(buffer, dtype=torch.uint8).untyped_storage()


def typed(storage: torch.UntypedStorage, dtype: torch.dtype) -> torch.TypedStorage:
    return torch.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)


def untyped(storage: torch.TypedStorage) -> torch.UntypedStorage:
    return storage._untyped_storage


def itself(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    return storage
