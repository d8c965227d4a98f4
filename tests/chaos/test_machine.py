"""Whatever is done with a loader, in whatever order: each batch once, in order, with the right contents."""

from __future__ import annotations

import pytest

from dataloader import DataLoader
from dataloader.ledger import Job, Lease
from tests.chaos import machine
from tests.chaos.ownership import double_owners
from tests.datasets import LargeArrays

EXAMPLES = 10  # always the same; `python -m tests.chaos.machine` runs 300 new ones


@pytest.mark.slow
def test_programs_of_loader_actions_get_each_batch_once_and_in_order() -> None:
    machine.run(EXAMPLES, derandomize=True)


# ---- the check of owners can fail ----------------------------------------------------------------


def test_a_slot_with_two_owners_is_found() -> None:
    with DataLoader(LargeArrays(40), num_workers=1, multiprocessing_context="fork") as loader:
        iterator = iter(loader)
        batches = [next(iterator) for _ in range(5)]
        (pool, _), *_ = loader._live.pools
        slot = next(slot for slot in pool._slots if slot.has_view)
        (link,) = pool._links.values()
        assert double_owners(loader) == []
        job = Job(100, [])
        link.leases |= {1000: Lease(1000, job, slot), 1001: Lease(1001, job, None)}
        assert double_owners(loader) == [
            "batch 100 is leased 2 times",
            f"slot {slot.id} is lent while the user sees it",
        ]
        link.leases[1001] = Lease(1001, Job(101, []), slot)
        assert f"slot {slot.id} belongs to batches [100, 101]" in double_owners(loader)
        del link.leases[1000], link.leases[1001]
        del batches
