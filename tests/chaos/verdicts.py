"""Known causes of death, again and again, and whether each report names them.

``python -m tests.chaos.verdicts`` prints the figures of 25 runs of each cause with each start method.
"""

from __future__ import annotations

import logging
import os
import random
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from unittest import mock

from dataloader import DataLoader, ExitReport
from tests.cgroups import limited_cgroup, require_kernel_log
from tests.chaos import sabotage
from tests.chaos.sabotage import Plan, Strike, Way, sabotaged
from tests.chaos.storm import kill_if_alive
from tests.chaos.sweep import BATCHES, Course, expected_epochs, loader_of
from tests.processes import await_death, wait_until

RUNS = 25
GROUP_BYTES = 64 << 20
LONGEST_DELAY_S = 0.01  # from when a worker is in the sample until a signal is sent


@dataclass(frozen=True)
class Cause:
    """A cause of death in a sample or in the start-up of a replacement, and what is to be told of it.

    Parameters:
        way: how it ends, and as what that is to be reported.
        point: where.
        told: what the report's traceback is to hold.
        sent: the signal that somebody else sends it then.
    """

    way: Way
    point: str = sabotage.SAMPLE
    told: str = ""
    sent: int | None = None

    @property
    def name(self) -> str:
        return self.way.name if self.point == sabotage.SAMPLE else f"{self.way.name}, {self.point}"

    @property
    def is_in_a_replacement(self) -> bool:
        return self.point in (sabotage.START_UP, sabotage.INIT)


CAUSES = (
    Cause(sabotage.WAITS_FOR_SIGKILL, sent=sabotage.WAITS_FOR_SIGKILL.signal),
    Cause(sabotage.WAITS_FOR_SIGTERM, sent=sabotage.WAITS_FOR_SIGTERM.signal),
    Cause(sabotage.SEGFAULT, told="Segmentation fault"),
    Cause(sabotage.ABORT, told="Aborted"),
    Cause(sabotage.HANG, told="in reach"),
    Cause(sabotage.SIGSTOP),
    Cause(sabotage.MEMORY_LIMIT),
    Cause(sabotage.OOM_KILL),
    Cause(sabotage.EXIT_0),
    Cause(sabotage.EXIT_3),
    Cause(sabotage.SYSTEM_EXIT, sabotage.START_UP),
    Cause(sabotage.VALUE_ERROR, sabotage.INIT, told="ValueError: sabotage"),
)


@dataclass
class Judgement:
    """What was reported in one run.

    Attributes:
        deaths: the reports of this run.
        strike: whom it struck.
        same: the batches were those of a run without a death.
    """

    deaths: list[ExitReport]
    strike: Strike | None
    same: bool

    def complaints(self, cause: Cause) -> list[str]:
        """Return what is wrong, a line each."""
        if self.strike is None:
            return ["nothing was struck"]
        if len(self.deaths) != 1 + cause.is_in_a_replacement:
            return [f"{len(self.deaths)} deaths"]
        report = self.deaths[-1]
        named = cause.way.is_named_by(report) and cause.told in report.traceback
        found = (report.pid, report.sample) == self.strike[:2]
        return [
            *([] if named else [f"not named: {report}"]),
            *([] if found else [f"{self.strike} reported as pid {report.pid}, sample {report.sample}"]),
            *([] if self.same else ["the batches differ"]),
        ]


def judge(start_method: str, cause: Cause, runs: int, seed: int = 0) -> Iterator[Judgement]:
    """Let workers of one loader end by ``cause``, once in each of ``runs`` epochs."""
    moments = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder, little_memory(cause):
        plan = Plan(cause.point, cause.way.name, folder)
        with sabotaged(plan), loader_of(start_method, 2, **cause.way.arguments) as loader:
            for _ in range(runs):
                yield _one_run(loader, cause, plan, moments)


@contextmanager
def little_memory(cause: Cause) -> Iterator[None]:
    """Have a memory cgroup for who is to run out of it; skip where there is none, or no kernel log."""
    if cause.way is not sabotage.OOM_KILL:
        yield
        return
    require_kernel_log()  # the worker leaves the supervisor's group, whose counter then tells nothing
    with limited_cgroup(GROUP_BYTES) as folder, mock.patch.dict(os.environ, {sabotage.GROUP: str(folder)}):
        yield


def _one_run(loader: DataLoader, cause: Cause, plan: Plan, moments: random.Random) -> Judgement:
    before = len(loader.reports)
    loader.set_epoch(0)
    course, iterator = Course(), iter(loader)
    taken = course.take(iterator, moments.randrange(BATCHES // 2))
    plan.arm()
    with Sender(plan, cause.sent, moments.uniform(0.0, LONGEST_DELAY_S)):
        if cause.is_in_a_replacement:
            kill_if_alive(moments.choice(loader.workers()).pid)
        course.finish_epoch(iterator, taken)
    strike = _await_strike(plan)
    iter(loader)  # which hears of all deaths
    return Judgement(loader.reports[before:], strike, course.epochs == expected_epochs()[:1])


def _await_strike(plan: Plan) -> Strike | None:
    """Wait for the end of whom it strikes: the others may have finished the epoch before."""
    wait_until(plan.struck, timeout_s=10.0)
    strike = plan.struck()
    if strike is not None:
        await_death(strike.pid)
    return strike


class Sender:
    """Sends a signal to the worker that is struck, from a thread, ``delay_s`` later; nothing for None."""

    def __init__(self, plan: Plan, number: int | None, delay_s: float) -> None:
        self._plan = plan
        self._number = number
        self._delay_s = delay_s
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> None:
        if self._number is not None:
            self._thread.start()

    def __exit__(self, *_: object) -> None:
        if self._number is not None:
            self._thread.join()

    def _run(self) -> None:
        assert self._number is not None
        if wait_until(self._plan.struck, timeout_s=10.0):
            time.sleep(self._delay_s)
            strike = self._plan.struck()
            assert strike is not None
            os.kill(strike.pid, self._number)


# ---- figures -------------------------------------------------------------------------------------


def figures(start_method: str, runs: int = RUNS) -> Iterator[str]:
    """Judge every cause; give the figures, a line each."""
    start_s = time.monotonic()
    right = 0
    for cause in CAUSES:
        wrong = [judgement.complaints(cause) for judgement in judge(start_method, cause, runs)]
        right += wrong.count([])
        yield from (f"  {cause.name}: {complaint}" for complaints in wrong for complaint in complaints)
    total = len(CAUSES) * runs
    yield (
        f"{start_method}: {len(CAUSES)} causes, {runs} runs each: {right} of {total} named right; "
        f"{time.monotonic() - start_s:.0f} s"
    )


def main() -> None:
    """Print the figures."""
    logging.getLogger("supervisor").setLevel(logging.ERROR)
    for start_method in ("fork", "forkserver"):
        for line in figures(start_method):
            print(line, flush=True)


if __name__ == "__main__":
    main()
