"""How many descriptors there may be, and how many there are."""

from __future__ import annotations

import gc
import resource
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.processes import open_descriptors


@contextmanager
def descriptor_limit(limit: int) -> Iterator[None]:
    """Let RLIMIT_NOFILE seem to be ``limit``, however many descriptors this process has open."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resource, "getrlimit", lambda which: (limit, limit))
        yield


def descriptors_without_garbage() -> dict[int, str]:
    """Return this process' descriptors, once nothing is left that a collector could close meanwhile."""
    gc.collect()
    return open_descriptors()
