"""Which loaders and works there are, and where each lives.

Names alone: a module is imported only in the process that runs it, for its library may be missing.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import cast

from benchmarks.loaders import Adapter
from benchmarks.works import Work

LOADERS = (
    "ours",
    "ours-torch",
    "torch",
    "torch-spawn",
    "torchdata",
    "grain",
    "spdl",
    "ray",
    "mpire",
    "loky",
    "in-process",
)
WORKS = (
    "small",
    "objects",
    "images",
    "images-collate",
    "huge",
    "dict",
    "text",
    "jpeg",
    "audio",
    "skewed",
    "jpeg-killed",
    "epochs/persistent",
    "epochs/fresh",
    "first-jpeg",
    "first-batch/fork",
    "first-batch/forkserver",
    "first-batch/spawn",
    "first-batch-torch/fork",
    "first-batch-torch/forkserver",
    "first-batch-torch/spawn",
    "first-batch-1gb/fork",
    "first-batch-1gb/forkserver",
    "first-batch-1gb/spawn",
)


def select(wanted: Iterable[str], known: tuple[str, ...]) -> list[str]:
    """The known names that are wanted, in the order of the wish; ``group`` stands for every ``group/name``.

    Raises ValueError for a name that matches nothing.
    """
    return list(dict.fromkeys(name for wish in wanted for name in _matches(wish, known)))


def _matches(wish: str, known: tuple[str, ...]) -> list[str]:
    matches = [name for name in known if wish in (name, name.partition("/")[0])]
    if not matches:
        raise ValueError(f"there is no {wish!r}; there are: {', '.join(known)}")
    return matches


def load_adapter(name: str) -> Adapter:
    """Import a loader's adapter, and with it the loader."""
    return cast(Adapter, import_module(f"benchmarks.loaders.{_module(name)}"))


def load_work(name: str) -> Work:
    """Import a work, and with it what its dataset needs."""
    works: tuple[Work, ...] = import_module(f"benchmarks.works.{_module(name)}").WORKS
    return next(work for work in works if work.name == name)


def _module(name: str) -> str:
    return name.partition("/")[0].replace("-", "_")
