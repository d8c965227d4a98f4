"""A memory cgroup for each worker: made before it starts, removed when it is reaped, where that is allowed.

    supervisor: make ---> worker: join (see memory_cgroup) ---> supervisor: remove at the death, or sweep

What OOM kills such a group counts are those of its worker. The groups set no limit. What is left in one, such
as a daemon that the worker had started, is moved back in the end. Groups that a killed supervisor left are
removed by the next one that makes any.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

from supervisor.memory_cgroup import MemoryCgroup

CLOSE_S = 0.3
ORPHANED_S = 0.9  # when the workers have been killed, and nobody waits for us
POLL_S = 0.005


class OwnCgroups:
    """The groups of one supervisor's workers.

    Parameters:
        wanted: the user asked for them.
        warn: called once, with a sentence, where they cannot be had.
    """

    def __init__(self, wanted: bool, warn: Callable[[str], None]) -> None:
        self._wanted = wanted
        self._warn = warn
        self._around: MemoryCgroup | None = None
        self._numbers = itertools.count()
        self._living: list[MemoryCgroup] = []
        self._leaving: list[MemoryCgroup] = []

    def settle_in(self, around: MemoryCgroup | None) -> None:
        """Make the groups in or beside ``around``, the supervisor's own, from now on."""
        self._around = around
        if self._wanted and around is not None:
            self._leaving += around.stale_children()
            self.sweep()

    def make(self) -> MemoryCgroup | None:
        """Return a new group, or None where none is wanted or can be had."""
        if not self._wanted:
            return None
        try:
            if self._around is None:
                raise PermissionError("which memory cgroup we are in cannot be told")
            group = self._around.make_child(next(self._numbers))
        except OSError as error:
            self._do_without(str(error))
            return None
        self._living.append(group)
        return group

    def _do_without(self, why: str) -> None:
        self._wanted = False
        self._warn(f"own_cgroups=True: workers get no memory cgroup of their own ({why})")

    def check(self, group: MemoryCgroup | None) -> None:
        """Learn whether a worker that is ready had been let into its group: else it has removed it."""
        if group is not None and self._wanted and not group.folder.exists():
            self._do_without("they may not join one")

    def leave(self, group: MemoryCgroup | None) -> None:
        """Remove the group of a worker that was reaped, now or later."""
        if group is not None:
            self._living.remove(group)
            self._leaving.append(group)
            self.sweep()

    def sweep(self) -> None:
        """Remove what can be removed."""
        self._leaving = [group for group in self._leaving if not group.remove()]

    def close(self, wait_s: float = CLOSE_S) -> None:
        """Remove all groups, when all workers are dead or dying; wait for these no longer than ``wait_s``."""
        self._leaving += self._living
        self._living = []
        end_s = time.monotonic() + wait_s
        self.sweep()
        while self._leaving and time.monotonic() < end_s:
            time.sleep(POLL_S)
            self.sweep()
        for group in self._leaving:
            if self._around is not None:
                group.empty_into(self._around)
        self.sweep()
