"""Running a part of a test in a forked child."""

from __future__ import annotations

import os
import pickle
import traceback
import warnings
from collections.abc import Callable
from typing import Any


def fork() -> int:
    """Fork, without the warning of Python 3.12 and later that threads (numpy's, idle) do not come along."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def in_child(action: Callable[[], Any]) -> Any:
    """Return what ``action`` returns in a forked child, which ends without any of this process' clean-up."""
    read_fd, write_fd = os.pipe()
    pid = fork()
    if pid == 0:
        _act_and_exit(action, write_fd)
    os.close(write_fd)
    with open(read_fd, "rb") as file:
        answer = file.read()
    _, status = os.waitpid(pid, 0)
    assert status == 0, f"the child ended with status {status}"
    kind, content = pickle.loads(answer)
    assert kind == "returned", content
    return content


def _act_and_exit(action: Callable[[], Any], write_fd: int) -> None:
    code = 1
    try:
        try:
            answer = ("returned", action())
        except BaseException:
            answer = ("raised", traceback.format_exc())
        with open(write_fd, "wb") as file:
            file.write(pickle.dumps(answer))
        code = 0
    finally:
        os._exit(code)
