"""What a process takes for granted and a fresh interpreter would not have: carried along and put on.

    sys.path, sys.argv, working directory, environment, log levels     before anything is imported
    warning filters                                                    in the worker, when all is imported

A supervisor lives on between two starts of its workers: it is brought these again at each start. What a
process has beyond them (log handlers, open files, modules' attributes) only a fork passes on.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import pickle
import sys
import warnings
from dataclasses import dataclass
from typing import Any, cast

import cloudpickle


@dataclass(frozen=True)
class Surroundings:
    """The surroundings of one process at one moment.

    Parameters:
        path, argv: of ``sys``.
        folder: the working directory; None where it no longer exists.
        environment: the environment variables.
        levels: the level of every logger, by name; the root's name is "root".
        disabled: the level up to which ``logging.disable`` silences all of them.
        authkey: by which processes of ``multiprocessing`` know each other; None where it is not in use.
        filters: the warning filters, each pickled: what they name can be imported only once the path is set.
    """

    path: tuple[str, ...]
    argv: tuple[str, ...]
    folder: str | None
    environment: dict[str, str]
    levels: dict[str, int]
    disabled: int
    authkey: bytes | None
    filters: tuple[bytes, ...]

    @classmethod
    def capture(cls) -> Surroundings:
        """Return those of this process, as they are now."""
        library = sys.modules.get("multiprocessing")
        return cls(
            path=tuple(sys.path),
            argv=tuple(sys.argv),
            folder=working_directory(),
            environment=dict(os.environ),
            levels=_log_levels(),
            disabled=logging.root.manager.disable,
            authkey=None if library is None else bytes(library.current_process().authkey),
            filters=tuple(_pickled_filters()),
        )

    def apply(self) -> None:
        """Put on all but the warning filters. A working directory that is gone leaves us where we are."""
        sys.path[:] = self.path
        sys.argv[:] = self.argv
        importlib.invalidate_caches()  # a folder on the path may be there only now
        if self.folder is not None:
            with contextlib.suppress(OSError):
                os.chdir(self.folder)
        self._set_environment()
        self._set_log_levels()
        if self.authkey is not None:
            importlib.import_module("multiprocessing").current_process().authkey = self.authkey

    def apply_filters(self) -> None:
        """Put on the warning filters, in place of those that the imported modules have set."""
        filters = []
        for pickled in self.filters:
            with contextlib.suppress(Exception):  # its category cannot be imported here, nor be raised
                filters.append(pickle.loads(pickled))
        warnings.resetwarnings()  # has every module's memory of past warnings dropped, too
        cast(list[Any], warnings.filters).extend(filters)

    def _set_environment(self) -> None:
        for name in os.environ.keys() - self.environment.keys():
            del os.environ[name]
        os.environ.update(self.environment)

    def _set_log_levels(self) -> None:
        for name, level in self.levels.items():
            logging.getLogger(name).setLevel(level)
        logging.disable(self.disabled)


def working_directory() -> str | None:
    """Return ours, None where it no longer exists."""
    try:
        return os.getcwd()
    except OSError:
        return None


def _log_levels() -> dict[str, int]:
    loggers = list(logging.root.manager.loggerDict.values())
    named = {logger.name: logger.level for logger in loggers if isinstance(logger, logging.Logger)}
    return {logging.root.name: logging.root.level, **named}


def _pickled_filters() -> list[bytes]:
    pickled = []
    for entry in list(warnings.filters):
        with contextlib.suppress(Exception):  # a category that cannot be pickled cannot be raised there
            pickled.append(cloudpickle.dumps(entry))
    return pickled
