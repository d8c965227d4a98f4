"""Who owns each slot, told from what a BatchPool writes first and derives nothing from: leases and results.

A slot belongs to the job whose lease lends it or whose result lies in it, until that is delivered; and then
to the user's arrays. Pieces of one job may share it. These checks hold at any moment between two calls, after
an interrupt too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from dataloader import DataLoader
from dataloader.batch_pool import BatchPool
from dataloader.ledger import Job, Lease
from dataloader.slots import Slot


def double_owners(loader: DataLoader) -> list[str]:
    """Return what is owned twice, a line each."""
    return [line for pool, _ in loader._live.pools for line in _double_owners(pool)]


def _double_owners(pool: BatchPool) -> Iterator[str]:
    leases = [lease for link in pool._links.values() for lease in link.leases.values()]
    for job, count in Counter(lease.job for lease in leases).items():
        if count > 1:
            yield f"batch {job.number} is leased {count} times"
    for slot in pool._slots:
        owners = _owners(slot, leases, list(pool._epoch.jobs.values()))
        if len(owners) > 1:
            yield f"slot {slot.id} belongs to batches {sorted(job.number for job in owners)}"
        if slot.has_view and any(lease.slot is slot and slot not in lease.job.slots() for lease in leases):
            yield f"slot {slot.id} is lent while the user sees it"


def _owners(slot: Slot, leases: list[Lease], jobs: list[Job]) -> set[Job]:
    lent = {lease.job.whole for lease in leases if lease.slot is slot}
    return lent | {job for job in jobs if slot in job.slots() and not job.delivered}
