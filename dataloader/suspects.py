"""Which sample a worker's death is charged to, and when a sample counts as poison.

    death in a sample        charged to the sample
    death in anything else   charged to the batch: collate_fn, __getitems__
    killed from outside, out of memory, above the memory limit
                             charged only if the batch was alone in its worker: it need not be its fault

A batch that is suspected is tried again in a worker that has nothing else. What has ended ``max_attempts``
workers is convicted. A kill from outside makes a suspect only the second time: most have nothing to do with
the batch, and to have a worker of its own delays it. Pure: nothing here sends or stores anything.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from supervisor.page import State
from supervisor.report import ExitReport
from supervisor.verdict import ExitReason

CHANCE = frozenset({ExitReason.KILLED, ExitReason.OOM_KILLED, ExitReason.MEMORY_LIMIT})


class Death(NamedTuple):
    """A worker's death with a batch in hand. ``alone``: the worker had nothing else."""

    report: ExitReport
    alone: bool

    @property
    def is_charged(self) -> bool:
        return self.alone or self.report.reason not in CHANCE

    @property
    def position(self) -> int | None:
        """Of the sample that it is charged to, in its batch; None: the batch."""
        item = self.report.item
        return item if self.report.state is State.SAMPLE and item is not None and item >= 0 else None


def is_suspect(deaths: Collection[Death]) -> bool:
    """Whether the batch is to be tried alone."""
    kills = sum(death.report.reason is ExitReason.KILLED for death in deaths)
    return len(deaths) > kills or kills > 1


def charges(deaths: Iterable[Death], position: int | None) -> list[ExitReport]:
    """Return the reports of the deaths that are charged to the sample at ``position``; None: to the batch."""
    return [death.report for death in deaths if death.is_charged and death.position == position]


def reports_at(deaths: Iterable[Death], position: int | None) -> list[ExitReport]:
    """Return the reports of all deaths at the sample at ``position``, charged to it or not."""
    return [death.report for death in deaths if death.position == position]


def convicted(
    deaths: Collection[Death], settled: Collection[int | None], max_attempts: int
) -> list[int | None]:
    """Return the positions that have ended ``max_attempts`` workers, but for those already dealt with."""
    positions = dict.fromkeys(death.position for death in deaths)
    return [
        position
        for position in positions
        if position not in settled and len(charges(deaths, position)) >= max_attempts
    ]
