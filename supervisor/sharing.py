"""Values that processes share, inside an object on its way into fresh processes: they are never copied.

    lock, semaphore, event, condition, barrier      by the name of its semaphore
    Value, Array; queue, connection                 by a descriptor of its memory, or its pipe
    tensor of torch's in shared memory              by a descriptor of that
    SharedMemory, ShareableList, manager's proxy    by name

The standard library knows how: it asks the process that is being spawned to take descriptors along. While
an object is pickled, ``Brought`` stands for that process; while it is unpickled, ``arrived`` has them again.
What was made for processes that are forked has no name, and cannot be shared otherwise: NotShareable.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from functools import lru_cache
from types import ModuleType
from typing import Any

from supervisor.channel import MAX_DESCRIPTORS, close_all

MAX_SHARED = MAX_DESCRIPTORS - 3  # beside what a Start has of its own
_LIBRARIES = ("multiprocessing", "multiprocess")
_CData: type = ctypes.c_int.__mro__[-2]
_arrived: ContextVar[Sequence[int]] = ContextVar("arrived", default=())


class NotShareable(TypeError):
    """A value can be shared with no process but a forked one."""


class Brought:
    """Descriptors that a pickle needs; what the standard library takes for a process being spawned.

    Attributes:
        descriptors: duplicates, which belong to this object until somebody else takes them.
    """

    def __init__(self) -> None:
        self.descriptors: list[int] = []

    def duplicate_for_child(self, fd: int) -> int:
        if len(self.descriptors) == MAX_SHARED:
            raise NotShareable(
                f"more than {MAX_SHARED} descriptors cannot go along: put values into one Array or tensor"
            )
        self.descriptors.append(os.dup(fd))
        return len(self.descriptors) - 1

    def DupFd(self, number: int) -> _Descriptor:
        return _Descriptor(number)

    @contextlib.contextmanager
    def collecting(self) -> Iterator[None]:
        """Let what this thread pickles meanwhile put its descriptors here; close them if that fails."""
        contexts = [context for name in _LIBRARIES if (context := sys.modules.get(f"{name}.context"))]
        before = [context.get_spawning_popen() for context in contexts]
        try:
            for context in contexts:
                context.set_spawning_popen(self)
            yield
        except BaseException:
            self.close()
            raise
        finally:
            for context, popen in zip(contexts, before, strict=True):
                context.set_spawning_popen(popen)

    def identities(self) -> bytes:
        """Return what is equal where the descriptors are of the same things."""
        stats = [os.fstat(fd) for fd in self.descriptors]
        return repr([(stat.st_dev, stat.st_ino) for stat in stats]).encode()

    def close(self) -> None:
        close_all(self.descriptors)
        self.descriptors = []


class _Descriptor:
    """In a pickle, one of the descriptors that are brought along."""

    def __init__(self, number: int) -> None:
        self.number = number

    def detach(self) -> int:
        """Return a descriptor that is the caller's."""
        return os.dup(_arrived.get()[self.number])


@contextlib.contextmanager
def arrived(descriptors: Sequence[int]) -> Iterator[None]:
    """Let what is unpickled meanwhile find its ``descriptors``."""
    token = _arrived.set(descriptors)
    try:
        yield
    finally:
        _arrived.reset(token)


def reduced(value: Any) -> Any:
    """Return how ``value`` is pickled so that it is shared; NotImplemented: as anything is.

    Raises NotShareable.
    """
    library = _library_of(value)
    if library is None:
        return NotImplemented
    if library == "ctypes" and hasattr(value, "_wrapper"):  # it lies in a heap of shared memory
        return _registered(_library_of(value._wrapper), value)
    if library == "torch" and _is_in_shared_memory(value):
        _require_descriptors(sys.modules["torch.multiprocessing"])
        return _registered("multiprocessing", value)
    return _of_library(value, library) if library in _LIBRARIES else NotImplemented


def _library_of(value: Any) -> str | None:
    return _library(type(value))  # type: ignore[arg-type]


@lru_cache(maxsize=1024)  # it is asked about each of a dataset's million objects
def _library(kind: type) -> str | None:
    """Return the library that ``kind`` is of, if that has values which processes share."""
    if issubclass(kind, _CData):
        return "ctypes"
    library = kind.__module__.partition(".")[0]
    return library if library in (*_LIBRARIES, "torch") else None


def is_sharing(value: Any) -> bool:
    """Whether ``value`` is one of the libraries' that share: its parts say nothing to their user."""
    return (_library_of(value) or "") in _LIBRARIES


def _of_library(value: Any, library: str) -> Any:
    semaphore = getattr(value, "_semlock", None)
    if semaphore is not None and semaphore.name is None:
        raise NotShareable(
            f"it was made for forked processes: make it by {library}.get_context('forkserver')"
        )
    name = type(value).__name__
    if name in ("SharedMemory", "ShareableList"):
        return _attached(value, library)
    return _registered(library, value) if name in ("Arena", "Connection") else NotImplemented


def _registered(library: str | None, value: Any) -> Any:
    """Return what the reducer gives that is registered for processes being spawned."""
    reducer = sys.modules[f"{library}.reduction"].ForkingPickler._extra_reducers.get(type(value))
    return NotImplemented if reducer is None else reducer(value)


def _is_in_shared_memory(value: Any) -> bool:
    """Whether ``value`` is a tensor or a storage of torch's in shared memory: on an accelerator it is not."""
    owner = getattr(value, "_untyped_storage", value)  # what is typed warns that it is
    if isinstance(value, type) or not hasattr(owner, "is_shared"):
        return False
    with contextlib.suppress(RuntimeError, NotImplementedError):  # it has no storage
        return owner.device.type == "cpu" and bool(owner.is_shared())
    return False


def _require_descriptors(torch_multiprocessing: ModuleType) -> None:
    strategy = torch_multiprocessing.get_sharing_strategy()
    if strategy != "file_descriptor":
        raise NotShareable(
            f"torch shares tensors by {strategy}, which counts processes: call "
            "torch.multiprocessing.set_sharing_strategy('file_descriptor')"
        )


# ---- memory with a name --------------------------------------------------------------------------
# Who attaches to it tells its resource tracker, which removes the memory when nobody is left who would. A
# worker must not have a tracker of its own, which would do that at the worker's end.


def _attached(value: Any, library: str) -> Any:
    fd = sys.modules[f"{library}.resource_tracker"]._resource_tracker._fd
    if fd is None:
        return NotImplemented
    tracker = sys.modules[f"{library}.reduction"].DupFd(fd)
    return _attach, (library, tracker, *value.__reduce__())


def _attach(
    library: str, tracker: _Descriptor, attach: Callable[..., Any], arguments: tuple[Any, ...]
) -> Any:
    mine = importlib.import_module(f"{library}.resource_tracker")._resource_tracker
    if mine._fd is None:
        mine._fd = tracker.detach()
    return attach(*arguments)
