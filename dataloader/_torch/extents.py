"""Where tensors lie in memory, whether they leave gaps there, and whether they have elements in common."""

from __future__ import annotations

from collections.abc import Iterable

import torch

Extent = tuple[int, int]
"""A stretch of memory: its first address, and that behind its last."""


def _spanned(tensor: torch.Tensor) -> int:
    """Return how many elements lie from the first to the last."""
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def extent_of(tensor: torch.Tensor) -> Extent:
    start = tensor.data_ptr()
    return (start, start + _spanned(tensor) * tensor.element_size())


def has_gaps(tensor: torch.Tensor) -> bool:
    return _spanned(tensor) > tensor.numel()


def without_gaps(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(tensor, memory_format=torch.preserve_format).copy_(tensor)


def overlap(extents: Iterable[Extent]) -> bool:
    """Whether any two have an address in common.

    >>> overlap([(8, 16), (0, 8)]), overlap([(8, 16), (0, 9)])
    (False, True)
    """
    end = 0
    for start, stop in sorted(extents):
        if start < end:
            return True
        end = max(end, stop)
    return False


def overlapping(found: list[tuple[Extent, torch.Tensor]]) -> list[list[tuple[Extent, torch.Tensor]]]:
    """Return what overlaps together."""
    groups: list[list[tuple[Extent, torch.Tensor]]] = []
    end = 0
    for (start, stop), tensor in found:
        if start >= end:
            groups.append([])
        groups[-1].append(((start, stop), tensor))
        end = max(end, stop)
    return groups


def share_elements(tensors: list[torch.Tensor]) -> bool:
    """Whether tensors whose extents overlap have an element in common: columns of a matrix have none."""
    if not all(map(has_gaps, tensors)):
        return True
    start = min(extent_of(tensor)[0] for tensor in tensors)
    marks = torch.zeros(
        max(extent_of(tensor)[1] for tensor in tensors) - start, dtype=torch.int8, device="cpu"
    )
    for tensor in tensors:
        bytes_each = tensor.element_size()
        size = [1 if not stride else size for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]
        stride = [stride * bytes_each for stride in tensor.stride()]
        view = marks.as_strided([*size, bytes_each], [*stride, 1], extent_of(tensor)[0] - start)
        if view.any():
            return True
        view.fill_(1)
    return False
