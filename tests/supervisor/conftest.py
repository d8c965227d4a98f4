"""Pools that several modules' tests use."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from supervisor.pool import WorkerPool
from tests.supervisor.toys import EAGER, START_METHODS, serve


@pytest.fixture(params=START_METHODS)
def start_method(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    """Two workers that echo, or end as asked, forked from this process."""
    with WorkerPool(2, start_method="fork", policy=EAGER) as pool:
        pool.start(serve)
        yield pool
