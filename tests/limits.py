"""A limit on descriptors, as the code under test reads it."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def descriptor_limit(limit: int) -> Iterator[None]:
    """Let RLIMIT_NOFILE seem to be ``limit``, however many descriptors this process has open."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resource, "getrlimit", lambda which: (limit, limit))
        yield
