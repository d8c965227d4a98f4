"""Memory-mapped arrays on their way into fresh processes: by the name of their file, not by what is in it.

That holds as long as the file is there under its name. An array whose file is gone or replaced, or whose
changes are its own (mode "c"), is copied, like any other array.
"""

from __future__ import annotations

import mmap
import sys
from typing import Any, NamedTuple


class Mapping(NamedTuple):
    """A range of addresses of this process, and the file that it maps: None where that has no name now."""

    start: int
    stop: int
    path: str | None


def reduced(value: Any) -> Any:
    """Return how ``value`` is pickled by the name of its file; NotImplemented: as anything is."""
    if type(value).__name__ != "memmap":
        return NotImplemented
    numpy = sys.modules.get("numpy")
    if numpy is None or type(value) is not numpy.memmap or value.mode not in ("r", "r+", "w+"):
        return NotImplemented
    if value.dtype.hasobject or not value.size or not isinstance(value._mmap, mmap.mmap):
        return NotImplemented
    low, high = _bounds(value)
    path = path_at(low)
    if path is None:
        return NotImplemented
    start = value.offset - value.offset % mmap.ALLOCATIONGRANULARITY  # where the mapping begins, a view's too
    offset = start + low - numpy.frombuffer(value._mmap, numpy.uint8).ctypes.data
    mode = "r" if value.mode == "r" else "r+"
    first = value.__array_interface__["data"][0] - low
    return _open, (path, mode, offset, high - low, first, value.dtype, value.shape, value.strides)


def _open(
    path: str, mode: Any, offset: int, length: int, first: int, dtype: Any, shape: Any, strides: Any
) -> Any:
    import numpy as np

    whole = np.memmap(path, np.uint8, mode, offset, (length,))
    array = np.ndarray.__new__(np.memmap, shape, dtype, whole, first, strides)
    array.__array_finalize__(whole)  # which file it is of
    return array


def _bounds(array: Any) -> tuple[int, int]:
    """Return the address of the first byte of ``array``, and that after its last."""
    low = high = array.__array_interface__["data"][0]
    for length, stride in zip(array.shape, array.strides, strict=True):
        reach = (length - 1) * stride
        low, high = low + min(0, reach), high + max(0, reach)
    return low, high + array.itemsize


def path_at(address: int) -> str | None:
    """Return the path of the file that is mapped at ``address``; None where it has none, or none any more."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as lines:
        mapping = next((found for line in lines if _contains(found := parsed(line), address)), None)
    return None if mapping is None else mapping.path


def _contains(mapping: Mapping, address: int) -> bool:
    return mapping.start <= address < mapping.stop


def parsed(line: str) -> Mapping:
    """Return what a line of ``/proc/self/maps`` says.

    >>> parsed("7f00-7fff r--s 00000000 08:01 42    /data/a file.npy")
    Mapping(start=32512, stop=32767, path='/data/a file.npy')
    >>> parsed("7f00-7fff r--s 00000000 08:01 42    /data/gone.npy (deleted)").path is None
    True
    """
    addresses, _rights, _offset, _device, _inode, *rest = line.rstrip("\n").split(maxsplit=5)
    start, stop = (int(address, 16) for address in addresses.split("-"))
    path = rest[0].replace("\\012", "\n") if rest else ""
    is_file = path.startswith("/") and not path.endswith(" (deleted)")
    return Mapping(start, stop, path if is_file else None)
