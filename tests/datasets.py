"""Datasets and collate functions for tests, importable by fresh worker processes.

Imports little, because each of these processes imports it.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from dataloader import Dataset, default_collate

LARGE_BYTES = 80_000  # above what travels inline


def first_time(path: Path) -> bool:
    """Return True to one caller in all processes, and False to all others."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


@dataclass
class Augmented(Dataset[Any]):
    """Samples that use Python's and numpy's global generators, as an augmentation does."""

    length: int = 50

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        crop = [random.random() for _ in range(index % 3 + 1)]
        noise = np.random.random((3, 5)).astype(np.float32)
        return {"index": index, "crop": crop[-1], "noise": noise, "name": f"{index}.jpg"}


@dataclass
class LargeArrays(Dataset[NDArray[np.uint8]]):
    """Arrays that never travel inline, each filled with its index."""

    length: int
    nbytes: int = LARGE_BYTES

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> NDArray[np.uint8]:
        return np.full(self.nbytes, index % 251, np.uint8)


@dataclass
class Faulty(Dataset[int]):
    """Sample ``index`` is ``index``, but sample ``at`` calls ``fault`` first; with ``once``, one time."""

    length: int
    at: int
    fault: Callable[[], Any]
    once: Path | None = None

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        if index == self.at and (self.once is None or first_time(self.once)):
            self.fault()
        return index


@dataclass
class Recorded(Dataset[int]):
    """Sample ``index`` is ``index``; each loading of it leaves a file in ``folder``."""

    length: int
    folder: Path

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        (self.folder / f"{index}-{time.monotonic_ns()}").touch()
        return index

    def loads(self) -> list[int]:
        """Return the index of each loading so far."""
        return sorted(int(path.name.split("-")[0]) for path in self.folder.iterdir())


class Pid(Dataset[int]):
    """Every sample is the pid of who loads it."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return os.getpid()


@dataclass
class Memo(Dataset[NDArray[np.float64]]):
    """Makes all its data at the first access, with ``default_collate``, and keeps them."""

    length: int
    data: Any = None

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> NDArray[np.float64]:
        if self.data is None:
            self.data = default_collate([np.full(20_000, float(row)) for row in range(self.length)])
        sample: NDArray[np.float64] = self.data[index]
        return sample


class NotUnpickled(Dataset[int]):
    """Pickles; its unpickling calls ``fault``."""

    def __init__(self, fault: Callable[[], Any]) -> None:
        self.fault = fault

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return index

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__

    def __setstate__(self, state: dict[str, Any]) -> None:
        state["fault"]()


class TwoArguments(Exception):
    """An exception whose constructor takes more than its message."""

    def __init__(self, path: str, line: int) -> None:
        super().__init__(path, line)
        self.path = path
        self.line = line


def raise_two_arguments() -> NoReturn:
    raise TwoArguments("a.jpg", 17)


def exit_with_code_0() -> NoReturn:
    os._exit(0)


def die_by_sigkill() -> None:
    os.kill(os.getpid(), 9)


class Unpicklable:
    """What no pickler takes."""

    def __reduce__(self) -> NoReturn:
        raise TypeError("an Unpicklable cannot be pickled")


class Unloadable:
    """Pickles in a worker; cannot be rebuilt in the consumer."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (int, ("not a number",))


@dataclass
class Made(Dataset[Any]):
    """What a function makes of each index."""

    make: Callable[[int], Any]
    length: int

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.make(index)
