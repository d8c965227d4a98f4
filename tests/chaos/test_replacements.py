"""Replacing workers for ever leaves nothing but their reports."""

from __future__ import annotations

import pytest

from tests.chaos.replacements import replace_many

pytestmark = pytest.mark.slow

MAX_GROWTH_BYTES = 1_000_000  # `python -m tests.chaos.replacements` has 2,000 replacements


@pytest.mark.parametrize("start_method", ["fork", "forkserver"])
def test_hundreds_of_replacements_leave_only_their_reports(start_method: str) -> None:
    before, after = replace_many(start_method, settling=40, measured=120)
    assert after.counts == before.counts
    assert max(after.growth_since(before)) < MAX_GROWTH_BYTES
