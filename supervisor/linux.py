"""Linux system calls that some Python builds lack and some containers refuse.

Each function here has an answer for "not available", so that no caller needs a second code path for it:
nameless memory becomes an unlinked temporary file; a pidfd becomes None, and the caller falls back to
SIGCHLD and waitpid.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import sys
import tempfile
from itertools import chain, starmap

MEMORY_FILE_FLAGS = 1  # MFD_CLOEXEC
PIDFD_OPEN_NUMBER = 434  # the same on every architecture
SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG

_libc = ctypes.CDLL(None, use_errno=True)


def require_linux(what: str) -> None:
    """Raise RuntimeError where ``what`` cannot work because this is not Linux."""
    if sys.platform != "linux":
        raise RuntimeError(f"{what} needs Linux; this is {sys.platform}. Use num_workers=0 here.")


def create_memory_file(name: str) -> int:
    """Return a descriptor of shared memory that has no name, so that it cannot outlive its last holder.

    ``name`` only shows up in ``/proc/<pid>/fd``. Without ``memfd_create`` the memory is an unlinked file in
    the temporary directory, which is a disk and not the often tiny ``/dev/shm``.

    >>> fd = create_memory_file("example")
    >>> os.ftruncate(fd, 4096); os.fstat(fd).st_size
    4096
    >>> os.close(fd)
    """
    try:
        return _memfd_create(name)
    except OSError:
        fd, path = tempfile.mkstemp(prefix=f"{name}-")
        os.unlink(path)
        return fd


def own(fd: int) -> select.epoll:
    """Return an object that closes ``fd`` when it is dropped.

    It is an epoll object only because that is one whose deallocation closes a descriptor in C, without a
    warning and without a moment at which a signal handler could run. Where such a handler may strike between
    this call and the storing of its result, use ``keep``.

    >>> owner = own(create_memory_file("example")); fd = owner.fileno()
    >>> del owner
    >>> os.fstat(fd)
    Traceback (most recent call last):
    OSError: [Errno 9] Bad file descriptor
    """
    return select.epoll.fromfd(fd)


def create_owned_memory_file(name: str) -> select.epoll:
    """Return the owner of a new memory file: it is owned before a signal handler can run."""
    if hasattr(os, "memfd_create"):
        with contextlib.suppress(OSError):
            return next(map(select.epoll.fromfd, map(os.memfd_create, (name,), (MEMORY_FILE_FLAGS,))))
    return own(create_memory_file(name))


def create_owned_pipe() -> tuple[select.epoll, select.epoll]:
    """Return the owners of a new pipe, of the end to read and the end to write: as safe as the above."""
    reader, writer = map(select.epoll.fromfd, chain.from_iterable(starmap(os.pipe, ((),))))
    return reader, writer


def keep(fd: int, owners: list[select.epoll]) -> None:
    """Put an owner of ``fd`` into ``owners``, unless there is one. Made and stored within one C call."""
    if not owners:
        owners.extend(map(select.epoll.fromfd, (fd,)))


def _memfd_create(name: str) -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name, MEMORY_FILE_FLAGS)
    if not hasattr(_libc, "memfd_create"):
        raise OSError("this C library has no memfd_create")
    return _checked(_libc.memfd_create(name.encode(), MEMORY_FILE_FLAGS))


def fill_standard_descriptors() -> None:
    """Let 0, 1 and 2 be the null device where they are closed.

    What takes such a number next is written to by the next print, warning or C library: a pipe or a batch.
    """
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # it gets the lowest free number


def open_pidfd(pid: int) -> int | None:
    """Return a descriptor that becomes readable when process ``pid`` ends, or None where there are none.

    Raises ProcessLookupError if there is no such process (not even an unreaped one).
    """
    try:
        if hasattr(os, "pidfd_open"):
            return os.pidfd_open(pid)
        return _checked(_libc.syscall(PIDFD_OPEN_NUMBER, pid, 0))
    except ProcessLookupError:
        raise
    except OSError:
        return None


def die_with_parent(signal_number: int) -> None:
    """Ask the kernel to send us ``signal_number`` when the *thread* that made us ends; 0: nothing.

    For workers, whose parent has one thread: a supervisor made by a thread of the user's would end with that
    thread.
    """
    _checked(_libc.prctl(SET_PARENT_DEATH_SIGNAL, signal_number, 0, 0, 0))


def _checked(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def unshared_bytes() -> int:
    """Return how much memory this process has and shares with no file; -1 where that cannot be read."""
    try:
        with open("/proc/self/statm", "rb") as file:
            _, resident, shared, *_ = map(int, file.read().split())
    except OSError:
        return -1
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")
