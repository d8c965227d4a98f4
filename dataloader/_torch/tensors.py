"""Tensors on their way from a worker: their memory out of band, in the slot, as that of arrays.

    worker     tensor --> (how to make it again, its memory as a buffer)       dumps
    consumer   buffer --> storage of exactly that size --> tensor              rebuild

What travels is the stretch of memory that the elements of a tensor span, with its strides; where they leave
gaps in it, a copy without gaps. So what arrives owns just its elements, however large the storage was that it
was a view of. Tensors of one batch that share elements are sent as views of one storage, and still share it
when they arrive. That costs a second pass over the batch, and only then.

A dataset's tensors go the other way, to the workers, likewise.

Everything here is about dense tensors in main memory. The others (sparse, quantised, nested, on a device) are
pickled as torch does it, and the dense parts and storages that they are made of come here.

Non-goals: torch's shared memory, its file descriptors and its caches: none is used.
"""

from __future__ import annotations

import ctypes
import io
import pickle
from array import array
from bisect import bisect_right
from collections import ChainMap
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch._tensor import _rebuild_from_type_v2
from torch._utils import _rebuild_tensor_v2

from dataloader import small_arrays
from dataloader._torch.extents import (
    Extent,
    extent_of,
    has_gaps,
    overlap,
    overlapping,
    share_elements,
    without_gaps,
)
from dataloader._torch.rebuilding import (
    CONJ,
    DTYPES,
    GRAD,
    NEG,
    itself,
    rebuild,
    rebuild_view,
    storage_of,
    typed,
    untyped,
)
from dataloader.arena import SMALL_BYTES
from supervisor.originals import HomewardPickler
from supervisor.payload import REDUCERS

_NUMBERS = {dtype: number for number, dtype in enumerate(DTYPES)}  # shorter to send than a name


_has_names: Callable[[torch.Tensor], bool] = getattr(torch.Tensor, "has_names", lambda tensor: False)


class Shared:
    """Memory of several tensors of a batch. Pickled once; what arrives is its storage."""

    def __init__(self, extent: Extent, owners: Iterable[torch.Tensor]) -> None:
        self.extent = extent
        self._owners = list(owners)

    def __reduce__(self) -> tuple[Any, ...]:
        return storage_of, (_buffer(self.extent, self._owners),)


class Numbers(array):  # type: ignore[type-arg]
    """A tensor of one dimension that is made in the consumer alone: nobody sees it before, and it is small.

    >>> pickle.loads(dumps(Numbers("q", [3, 4]), 5, buffer_callback=lambda buffer: True))
    tensor([3, 4])
    """

    dtypes = {"q": torch.int64, "d": torch.float64}  # noqa: RUF012 (it is never changed)


# ---- in the worker -------------------------------------------------------------------------------


class SharingError(Exception):
    """Tensors share elements: ``dumps_shared`` is to pickle them."""


def dumps(value: Any, /, protocol: int, *, buffer_callback: Callable[[pickle.PickleBuffer], object]) -> bytes:
    """Pickle ``value``, each tensor by itself.

    Raises SharingError if some may have elements in common.
    """
    try:
        body = _dump(value, _SINGLY, protocol, buffer_callback)
        if len(_SINGLY.found) > 1 and overlap([extent for extent, _ in _SINGLY.found]):
            raise SharingError
        return body
    finally:
        _SINGLY.found.clear()


def dumps_shared(
    value: Any, /, protocol: int, *, buffer_callback: Callable[[pickle.PickleBuffer], object]
) -> bytes:
    """Pickle ``value``, and so that tensors which share elements still do when they arrive."""
    return _dump(value, _sharing_reducers(value, _dump), protocol, buffer_callback)


def dumps_by_value(
    value: Any, /, protocol: int, *, buffer_callback: Callable[[pickle.PickleBuffer], object]
) -> bytes:
    """Pickle ``value`` as ``dumps_shared`` does, and by value what the consumer does not have."""
    return _dump_homeward(value, _sharing_reducers(value, _dump_homeward), protocol, buffer_callback)


def _dump(value: Any, reducers: _Reducers, protocol: int, buffer_callback: Callable[..., object]) -> bytes:
    file = io.BytesIO()
    pickler = pickle.Pickler(file, protocol, buffer_callback=buffer_callback)
    pickler.dispatch_table = reducers
    pickler.dump(value)
    return file.getvalue()


def _dump_homeward(
    value: Any, reducers: _Reducers, protocol: int, buffer_callback: Callable[..., object]
) -> bytes:
    table = ChainMap(reducers, HomewardPickler.dispatch_table)
    file = io.BytesIO()
    kind = type("Pickler", (HomewardPickler,), {"dispatch_table": table})
    kind(file, protocol, buffer_callback).dump(value)
    return file.getvalue()


def _sharing_reducers(value: Any, dump: Callable[..., bytes]) -> _Reducers:
    """Return reducers that know which tensors of ``value`` share elements."""
    reducers = _Reducers()
    dump(value, reducers, 5, lambda buffer: False)
    return _Reducers(_shared(reducers.found))


class _Reducers(small_arrays.Reducers):
    """What a pickler looks up: by type, how an object is taken apart.

    Parameters:
        shared: memory that several tensors share, in order.

    Attributes:
        found: the tensors that were met, and where they lie.
    """

    def __init__(self, shared: Sequence[Shared] = ()) -> None:
        super().__init__()
        self[torch.Tensor] = self._reduce
        self[torch.UntypedStorage] = self._reduce_storage
        self[torch.TypedStorage] = _reduce_typed_storage
        self[Numbers] = _reduce_numbers
        self.found: list[tuple[Extent, torch.Tensor]] = []
        self._shared = shared
        self._starts = [memory.extent[0] for memory in shared]

    def __missing__(self, kind: type) -> Callable[[Any], Any]:
        if issubclass(kind, torch.Tensor):
            return self._reduce_subclass
        return super().__missing__(kind)

    def _reduce(self, tensor: torch.Tensor) -> Any:
        return self._reduce_dense(tensor) if _is_dense(tensor) else tensor.__reduce_ex__(5)

    def _reduce_subclass(self, tensor: torch.Tensor) -> Any:
        """As torch does it, but only the memory that is the tensor's own."""
        reduced = tensor.__reduce_ex__(5)
        if reduced[0] is not _rebuild_from_type_v2 or reduced[1][0] is not _rebuild_tensor_v2:
            return reduced
        plain = tensor.as_subclass(torch.Tensor)
        if not _is_dense(plain, with_attributes=True):
            return reduced
        make, arguments = self._reduce_dense(plain)
        return (*reduced[:1], (make, reduced[1][1], arguments, *reduced[1][3:]), *reduced[2:])

    def _reduce_dense(self, tensor: torch.Tensor) -> Any:
        if tensor.requires_grad and not tensor.is_leaf:
            raise RuntimeError(
                "a tensor that is the result of differentiable operations cannot leave its process, for its "
                "graph cannot: send tensor.detach()"
            )
        if tensor.requires_grad or tensor.is_conj() or tensor.is_neg():
            flags = CONJ * tensor.is_conj() | NEG * tensor.is_neg() | GRAD * tensor.requires_grad
            return self._reduce_any(_physical(tensor), flags)
        nbytes = tensor.nbytes
        if not nbytes or self._shared or not tensor.is_contiguous():
            return self._reduce_any(tensor, 0)
        start = tensor.data_ptr()
        extent = (start, start + nbytes)
        self.found.append((extent, tensor))
        return rebuild, (_buffer(extent, [tensor]), _NUMBERS[tensor.dtype], tuple(tensor.shape))

    def _reduce_any(self, tensor: torch.Tensor, flags: int) -> Any:
        size, stride = tuple(tensor.shape), tensor.stride()
        if not tensor.numel():
            return rebuild, (b"", _NUMBERS[tensor.dtype], size, stride, flags)
        extent = extent_of(tensor)
        shared = self._shared_at(extent)
        if shared is not None:
            offset_bytes = extent[0] - shared.extent[0]
            return rebuild_view, (shared, offset_bytes, _NUMBERS[tensor.dtype], size, stride, flags)
        self.found.append((extent, tensor))
        if has_gaps(tensor):
            tensor = without_gaps(tensor)
            extent, stride = extent_of(tensor), tensor.stride()
        return rebuild, (_buffer(extent, [tensor]), _NUMBERS[tensor.dtype], size, stride, flags)

    def _reduce_storage(self, storage: torch.UntypedStorage) -> Any:
        if storage.device.type != "cpu":
            return untyped, (torch.TypedStorage(wrap_storage=storage, dtype=torch.uint8, _internal=True),)
        if not storage.nbytes():
            return torch.UntypedStorage, (0,)
        extent = (storage.data_ptr(), storage.data_ptr() + storage.nbytes())
        shared = self._shared_at(extent)
        if shared is not None and shared.extent == extent:
            return itself, (shared,)
        owner = torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage)
        self.found.append((extent, owner))
        return storage_of, (_buffer(extent, [owner]),)

    def _shared_at(self, extent: Extent) -> Shared | None:
        start, stop = extent
        at = bisect_right(self._starts, start) - 1
        if at < 0 or stop > self._shared[at].extent[1]:
            return None
        return self._shared[at]


def _reduce_numbers(numbers: Numbers) -> tuple[Any, ...]:
    return rebuild, (bytearray(numbers), _NUMBERS[Numbers.dtypes[numbers.typecode]], (len(numbers),))


def _reduce_typed_storage(storage: torch.TypedStorage) -> Any:
    if storage.device.type != "cpu":
        return storage.__reduce__()
    return typed, (storage._untyped_storage, storage.dtype)


_SINGLY = _Reducers()  # one for all batches, for a worker makes one after the other


def _is_dense(tensor: torch.Tensor, *, with_attributes: bool = False) -> bool:
    """Whether it is memory, sizes and strides, and nothing else."""
    return (
        tensor.is_cpu
        and tensor.layout is torch.strided
        and not tensor.is_quantized
        and not tensor.is_nested
        and tensor._backward_hooks is None
        and (with_attributes or not tensor.__dict__)
        and not _has_names(tensor)
    )


def _physical(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor as it lies in memory, without its flags."""
    plain = tensor.detach()
    if plain.is_conj():
        plain = plain.conj()
    return torch._neg_view(plain) if plain.is_neg() else plain


def _buffer(extent: Extent, owners: list[torch.Tensor]) -> bytearray | pickle.PickleBuffer:
    """Return a copy of a little memory, or a buffer over memory of ``owners``, which it keeps alive."""
    start, stop = extent
    size_bytes = stop - start
    if size_bytes < SMALL_BYTES:
        return bytearray(ctypes.string_at(start, size_bytes))
    memory: Any = (ctypes.c_ubyte * size_bytes).from_address(start)
    memory.owners = owners
    return pickle.PickleBuffer(memory)


def _shared(found: Iterable[tuple[Extent, torch.Tensor]]) -> list[Shared]:
    """Return the memory that tensors have in common, in order."""
    return [
        Shared((group[0][0][0], max(stop for (_, stop), _ in group)), (tensor for _, tensor in group))
        for group in overlapping(sorted(found, key=lambda item: item[0]))
        if len(group) > 1 and share_elements([tensor for _, tensor in group])
    ]


def reduce_for_workers(tensor: torch.Tensor) -> Any:
    """Take a tensor of a dataset apart: every worker maps its memory, copy-on-write."""
    return _Reducers()._reduce_dense(tensor) if _is_dense(tensor) else NotImplemented


REDUCERS[torch.Tensor] = reduce_for_workers
