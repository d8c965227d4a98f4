"""Have the kernel refuse system calls to this process and its children, as some containers do."""

from __future__ import annotations

import ctypes
import errno
import platform

NUMBERS = {
    "memfd_create": {"x86_64": 319, "aarch64": 279},
    "pidfd_open": {"x86_64": 434, "aarch64": 434},
}
NO_NEW_PRIVILEGES, SET_SECCOMP, FILTER_MODE = 38, 22, 2
LOAD_NUMBER, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, REFUSE = 0x7FFF0000, 0x00050000


class _Instruction(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_ushort),
        ("yes", ctypes.c_ubyte),
        ("no", ctypes.c_ubyte),
        ("k", ctypes.c_uint),
    )


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.POINTER(_Instruction)))


def refuse(*names: str, code: int = errno.EPERM) -> None:
    """Let the calls ``names`` fail with error ``code`` from now on, for good."""
    numbers = [NUMBERS[name][platform.machine()] for name in names]
    jumps = [_Instruction(JUMP_IF_EQUAL, len(numbers) - i, 0, number) for i, number in enumerate(numbers)]
    end = [_Instruction(RETURN, 0, 0, ALLOW), _Instruction(RETURN, 0, 0, REFUSE | code)]
    program = [_Instruction(LOAD_NUMBER, 0, 0, 0), *jumps, *end]
    instructions = (_Instruction * len(program))(*program)
    libc = ctypes.CDLL(None, use_errno=True)
    _check(libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0))
    _check(libc.prctl(SET_SECCOMP, FILTER_MODE, ctypes.byref(_Program(len(program), instructions)), 0, 0))


def _check(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), "the kernel takes no filter")
