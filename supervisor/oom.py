"""What the supervisor knows of memory around its workers, and what of it bears on the death of one.

    read()       four times a second: the host's available memory, the cgroup's use, its count of OOM kills,
                 the kernel log; about 0.1 ms in all, and 20 us for each group that is a worker's own
    facts()      after a death by SIGKILL: the evidence that classify (see report) decides on

A group that several processes share tells how many were killed, but not who. So each kill explains one death:
it is numbered as the group counts, a death that is put down to it claims it, and of several who died together
the largest comes first, as with the kernel. A kill counts for a worker only if it was not counted yet when
the worker was last seen alive and well, one reading earlier even: the memory of a large one takes seconds to
be given back, in which it is neither alive nor reaped.

Non-goals: what to do about it (see loop, policy); memory limits of our own.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import psutil

from supervisor.kernel_log import KernelLog
from supervisor.memory_cgroup import MemoryCgroup, find
from supervisor.verdict import MemoryFacts, mib

EXITING = 0x4  # PF_EXITING
SIGKILL_BIT = 1 << 8
MAX_UNEXPLAINED = 100


class Kills:
    """The OOM kills of one group, numbered from 1 as its counter counts them, and which explain a death."""

    def __init__(self, group: MemoryCgroup | None) -> None:
        self._group = group
        self.claimed: set[int] = set()

    def count(self) -> int | None:
        return None if self._group is None else self._group.oom_kills()

    def holds_others_than(self, pid: int) -> bool:
        members = None if self._group is None else self._group.members()
        return members is None or not {pid}.issuperset(members)

    def unclaimed(self, after: int | None, now: int | None) -> list[int] | None:
        """Return which came later than number ``after`` and explain no death yet; None: not known."""
        if after is None or now is None:
            return None
        return [number for number in range(after + 1, now + 1) if number not in self.claimed]


class Reading(NamedTuple):
    """What there was to read while a worker was alive and well. None: not known."""

    kills: int | None  # counted by its group
    used_bytes: int | None = None  # under the least limit around us
    available_bytes: int | None = None  # on the machine
    alone: bool = True  # no other was in its group; it itself may not have joined yet


class Patient:
    """One worker, as far as memory goes.

    Parameters:
        pid: its process id.
        kills: those of its group.
        has_own: it was given a group of its own.
        gaps_before: what the kernel log had lost when it started.
    """

    def __init__(self, pid: int, kills: Kills, has_own: bool, gaps_before: int) -> None:
        self.pid = pid
        self.kills = kills
        self.has_own = has_own
        self.gaps_before = gaps_before
        self._readings = deque([Reading(kills.count())], maxlen=2)

    def seen_alive(self, reading: Reading) -> None:
        """Note that it was alive and well at this reading of the group that workers share."""
        if self.has_own:
            alone = not self.kills.holds_others_than(self.pid)
            reading = reading._replace(kills=self.kills.count(), alone=alone)
        if reading.kills != self._readings[-1].kills and is_dying(self.pid):
            return  # that kill may be its own, though it still has memory
        self._readings.append(reading)

    @property
    def is_alone(self) -> bool:
        """Whether a kill that came since can have been of no other."""
        return self.has_own and all(reading.alone for reading in self._readings)

    @property
    def kills_before(self) -> int | None:
        """How many had been counted when it had certainly not been killed yet."""
        return self._readings[0].kills

    @property
    def used_bytes(self) -> int | None:
        return self._readings[-1].used_bytes

    @property
    def available_bytes(self) -> int | None:
        """The least at its last readings."""
        known = [reading.available_bytes for reading in self._readings if reading.available_bytes is not None]
        return min(known, default=None)


class OomWatch:
    """The memory of one supervisor's workers, who share a group or have one each.

    Attributes:
        group: the one that the supervisor is in, and all workers without their own; None: not known.
    """

    def __init__(self) -> None:
        self._log = KernelLog()
        self._total_bytes = psutil.virtual_memory().total  # now: at a death there may be no descriptor left
        self._patients: dict[int, Patient] = {}
        self._unexplained: deque[tuple[int, int]] = deque(maxlen=MAX_UNEXPLAINED)  # peak, count at the death
        self._settle(None)

    def look_around(self) -> None:
        """Find out which group we are in, and our workers will be: before the first is made."""
        self._settle(find(os.getpid()))

    def _settle(self, group: MemoryCgroup | None) -> None:
        self.group = group
        self._tightest = None if group is None else group.tightest()
        self._shared = Kills(group)
        self._reading = Reading(None)

    def descriptors(self) -> list[int]:
        """All that a worker must not inherit."""
        return [] if self._log.fd is None else [self._log.fd]

    def read(self) -> None:
        """Take a reading."""
        self._log.read()
        used_bytes = None if self._tightest is None else self._tightest.used_bytes()
        self._reading = Reading(self._shared.count(), used_bytes, psutil.virtual_memory().available)

    def admit(self, pid: int, own: MemoryCgroup | None = None) -> None:
        """Look after a new worker; ``own``: a group that it alone is in."""
        self._log.read()
        self._log.forget(pid)
        kills = self._shared if own is None else Kills(own)
        self._patients[pid] = Patient(pid, kills, own is not None, self._log.gaps)

    def seen_alive(self, pid: int) -> None:
        """Note that a worker was alive and well at this reading."""
        self._patients[pid].seen_alive(self._reading)

    def explain(self, ended: dict[int, int], killed: Collection[int]) -> dict[int, MemoryFacts]:
        """Return the facts about workers that were found dead together, by pid.

        Parameters:
            ended: the peak memory of each, in bytes.
            killed: those that SIGKILL ended and not we.
        """
        patients = {pid: self._patients.pop(pid) for pid in ended}
        facts = {pid: self._surroundings(patients[pid], ended[pid]) for pid in ended}
        if killed:
            self._log.read()
        dying = sum(map(is_dying, self._patients)) if killed else 0
        for pid in sorted(killed, key=ended.__getitem__, reverse=True):
            facts[pid] = self._explain(patients[pid], facts[pid], dying)
        return facts

    def _surroundings(self, patient: Patient, peak_bytes: int) -> MemoryFacts:
        return MemoryFacts(
            peak_bytes=peak_bytes,
            limit_bytes=None if self._tightest is None else self._tightest.limit_bytes(),
            used_bytes=patient.used_bytes,
            available_bytes=patient.available_bytes,
            total_bytes=self._total_bytes,
        )

    def _explain(self, patient: Patient, facts: MemoryFacts, dying: int) -> MemoryFacts:
        kills = patient.kills
        named = self._log.names(patient.pid, patient.gaps_before)
        now = kills.count()
        unclaimed = kills.unclaimed(patient.kills_before, now)
        rivals = 0 if patient.has_own else dying + self._larger_dead(facts.peak_bytes, unclaimed)
        may_be_it = None if unclaimed is None else max(0, len(unclaimed) - rivals)
        if unclaimed and (named or (named is None and may_be_it)):
            kills.claimed.add(unclaimed[0])
        elif not patient.has_own and now is not None:
            self._unexplained.append((facts.peak_bytes, now))
        return replace(facts, named=named, oom_kills=may_be_it, alone=patient.is_alone)

    def _larger_dead(self, peak_bytes: int, unclaimed: list[int] | None) -> int:
        """Return how many larger workers died lately, after one of those kills, without explanation."""
        first = unclaimed[0] if unclaimed else 0
        return sum(peak > peak_bytes and count >= first for peak, count in self._unexplained) if first else 0


def is_dying(pid: int) -> bool:
    """Whether a process has been sent SIGKILL, or is on its way out."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return True
    return bool(int(words[6]) & EXITING or int(words[28]) & SIGKILL_BIT)


def what_would_help(facts: MemoryFacts, workers: int, worker_bytes: int, other_bytes: int) -> str:
    """Return the sentence that tells how many workers fit, and what all would need.

    Parameters:
        facts: about a worker that was killed for want of memory.
        workers: how many there are to be.
        worker_bytes: what one has of its own.
        other_bytes: what the consumer and the supervisor have.

    >>> facts = MemoryFacts(limit_bytes=1 << 30)
    >>> print(what_would_help(facts, workers=4, worker_bytes=300 << 20, other_bytes=200 << 20))
    4 such workers need more than 1,400 MiB; the cgroup's limit is 1,024 MiB: use 2 workers, or
    raise the limit.
    """
    room_bytes = facts.limit_bytes or facts.total_bytes
    need_bytes = other_bytes + workers * worker_bytes
    fit = max(0, room_bytes - other_bytes) // max(1, worker_bytes)
    room, raising = (
        ("the cgroup's limit is", "raise the limit")
        if facts.limit_bytes
        else ("the machine has", "use a machine with more")
    )
    need = f"{workers} such worker{'s' if workers > 1 else ''} need{'' if workers > 1 else 's'}"
    if fit >= workers:
        return f"{need} about {mib(need_bytes)}, and {room} {mib(room_bytes)}: something else takes the rest."
    fewer = f"use {fit} worker{'s' if fit > 1 else ''}" if fit else "let a sample or batch take less"
    return f"{need} more than {mib(need_bytes)}; {room} {mib(room_bytes)}: {fewer}, or {raising}."
