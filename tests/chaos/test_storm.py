"""Whoever dies, and whenever: the same batches, in order, and nothing left over."""

from __future__ import annotations

import pytest

from tests.chaos import storm
from tests.processes import belongings, living_descendants, wait_until


@pytest.mark.parametrize("persistent", [True, False], ids=["persistent", "anew"])
@pytest.mark.parametrize("start_method", ["fork", "forkserver"])
def test_a_storm_changes_no_byte_and_leaves_nothing(start_method: str, persistent: bool) -> None:
    before = belongings()
    calm = storm.run(start_method, batches=300, epochs=2, persistent=persistent)
    rough = storm.run(
        start_method, batches=300, epochs=2, kills=60, within_s=calm.duration_s, persistent=persistent
    )
    assert rough.kills >= 10, "a storm that hardly killed shows nothing"
    assert rough.digest == calm.digest
    assert wait_until(lambda: not living_descendants(), timeout_s=2.0)
    assert belongings() == before


@pytest.mark.slow
@pytest.mark.parametrize("start_method", ["fork", "forkserver"])
def test_the_full_storm(start_method: str) -> None:
    calm = storm.run(start_method, batches=2000, epochs=3)
    rough = storm.run(start_method, batches=2000, epochs=3, kills=330, within_s=calm.duration_s)
    assert rough.kills >= 300
    assert rough.digest == calm.digest
    # How long it took is for `python -m tests.chaos.storm` on a quiet machine: here only
    # that nothing waited for a time out or a back-off.
    assert rough.duration_s < 10 * calm.duration_s
    assert len(rough.replaced_s) >= 100
