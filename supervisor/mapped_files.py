"""Memory-mapped arrays on their way into fresh processes: by the name of their file, not by what is in it.

That holds as long as the file is there under its name. An array whose file is gone or replaced, or that has
changes of its own (mode "c"), is copied, like any other array.
"""

from __future__ import annotations

import contextlib
import mmap
import sys
from collections.abc import Iterator
from itertools import takewhile
from typing import Any

_AGAIN = {"r": "r", "r+": "r+", "w+": "r+", "c": "c"}  # in which mode an array is mapped once more


def reduced(value: Any) -> Any:
    """Return how ``value`` is pickled by the name of its file; NotImplemented: as anything is."""
    if type(value).__name__ != "memmap":
        return NotImplemented
    numpy = sys.modules.get("numpy")
    if numpy is None or type(value) is not numpy.memmap or value.mode not in _AGAIN:
        return NotImplemented
    if value.dtype.hasobject or not value.size or not isinstance(value._mmap, mmap.mmap):
        return NotImplemented
    low, high = _bounds(value)
    path = path_at(low)
    if path is None or (value.mode == "c" and has_own_pages(low)):
        return NotImplemented
    start = value.offset - value.offset % mmap.ALLOCATIONGRANULARITY  # where the mapping begins, a view's too
    offset = start + low - numpy.frombuffer(value._mmap, numpy.uint8).ctypes.data
    file = (path, _AGAIN[value.mode], offset, high - low)
    first = value.__array_interface__["data"][0] - low
    return _open, (file, first, value.dtype, value.shape, value.strides)


def _open(file: tuple[str, Any, int, int], first: int, dtype: Any, shape: Any, strides: Any) -> Any:
    import numpy as np

    path, mode, offset, length = file
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
    for line in _lines("/proc/self/maps"):
        if is_of(line, address):
            return path_in(line)
    return None


def has_own_pages(address: int) -> bool:
    """Whether the mapping at ``address`` was written to, and keeps that to itself, or may have been."""
    lines = _lines("/proc/self/smaps")
    for line in lines:
        if not _is_fact(line) and is_of(line, address):
            facts = dict(fact.split(":") for fact in takewhile(_is_fact, lines))
            return any(facts.get(name, "0 kB").strip() != "0 kB" for name in ("Anonymous", "Swap"))
    return True


def _lines(path: str) -> Iterator[str]:
    """Give the lines of a file of the kernel's; none where it has no such file."""
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="surrogateescape") as lines:
        yield from lines


def _is_fact(line: str) -> bool:
    return line.partition(" ")[0].endswith(":")


def is_of(line: str, address: int) -> bool:
    """Whether a line of ``/proc/self/maps`` is about the mapping at ``address``.

    >>> is_of("7f00-7fff r--s 00000000 08:01 42    /data/a file.npy", 0x7f10)
    True
    """
    start, _, stop = line.partition(" ")[0].partition("-")
    return int(start, 16) <= address < int(stop, 16)


def path_in(line: str) -> str | None:
    """Return the file that a line of ``/proc/self/maps`` names; None where that has no name, or none now.

    >>> path_in("7f00-7fff r--s 00000000 08:01 42    /data/a file.npy")
    '/data/a file.npy'
    >>> path_in("7f00-7fff r--s 00000000 08:01 42    /data/gone.npy (deleted)") is None
    True
    """
    _range, _rights, _offset, _device, _inode, *rest = line.rstrip("\n").split(maxsplit=5)
    path = rest[0].replace("\\012", "\n") if rest else ""
    return path if path.startswith("/") and not path.endswith(" (deleted)") else None
