"""Every way to end a worker at every point of the protocol: the same batches, or the right error, and soon.

``python -m tests.chaos.sweep`` prints the figures.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import islice, product
from typing import Any

import numpy as np

from dataloader import DataLoader, ExitReason, ExitReport, WorkerDiedError
from tests.chaos import sabotage
from tests.chaos.sabotage import Plan, Sabotaged, Way, sabotaged
from tests.chaos.storm import POLICY, SIGKILL, SIGTERM, kill_if_alive
from tests.processes import living_descendants, wait_until

BATCH_SIZE = 2
BATCHES = 16
WAYS = (
    sabotage.SIGKILL,
    sabotage.SIGSEGV,
    sabotage.EXIT_0,
    sabotage.EXIT_3,
    sabotage.SYSTEM_EXIT,
    sabotage.VALUE_ERROR,
    sabotage.MEMORY_ERROR,
    sabotage.SIGSTOP,
)
# What is raised there is the batch's error.
CAUGHT = (sabotage.SAMPLE, sabotage.COLLATE, sabotage.PICKLING, sabotage.SLOT_MADE)


@dataclass
class Course:
    """What became of two epochs with a worker that ended.

    Attributes:
        epochs: the digest of each batch, None in place of one that was an error.
        errors: what was raised, in order.
        deaths: the loader's reports of ends that nobody asked for.
        ends: its reports of all ends.
        settled_s: seconds from the end until the error was raised, or all was as before.
        survivors: pids of processes that were left.
    """

    epochs: list[list[str | None]] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)
    deaths: list[ExitReport] = field(default_factory=list)
    ends: list[ExitReport] = field(default_factory=list)
    settled_s: float = float("inf")
    survivors: list[int] = field(default_factory=list)

    def take_epoch(self, loader: DataLoader) -> None:
        """Take an epoch, going on after errors."""
        self.finish_epoch(iter(loader), [])

    def finish_epoch(self, iterator: Iterator[Any], taken: list[str | None]) -> None:
        """Take the rest of an epoch whose first batches were ``taken``."""
        self.epochs.append(taken + self.take(iterator, None))

    def take(self, iterator: Iterator[Any], count: int | None) -> list[str | None]:
        """Take so many batches, or all."""
        return list(islice(self._taking(iterator), count))

    def _taking(self, iterator: Iterator[Any]) -> Iterator[str | None]:
        while True:
            try:
                batch = next(iterator)
            except StopIteration:
                return
            except WorkerDiedError:
                raise
            except Exception as error:
                self.errors.append(error)
                yield None
            else:
                yield _digest(batch)


def _digest(batch: Any) -> str:
    digest = hashlib.sha256()
    for part in batch[0]:
        digest.update(np.asarray(part).data)
    return digest.hexdigest()


# ---- when it is armed ----------------------------------------------------------------------------

Drive = Callable[[DataLoader, Plan, Course], None]


def at_the_first_start(loader: DataLoader, plan: Plan, course: Course) -> None:
    """What ends before any worker was ready is raised; the next ``iter()`` works."""
    plan.arm()
    try:
        iter(loader)
    except Exception as error:
        course.errors.append(error)
    settle(plan, course)
    course.take_epoch(loader)
    course.take_epoch(loader)


def at_the_start_of_a_replacement(loader: DataLoader, plan: Plan, course: Course) -> None:
    iterator = iter(loader)
    taken = course.take(iterator, 1)
    plan.arm()
    kill_if_alive(loader.workers()[0].pid)
    course.finish_epoch(iterator, taken)
    course.take_epoch(loader)
    settle(plan, course)


def in_an_epoch(loader: DataLoader, plan: Plan, course: Course) -> None:
    iterator = iter(loader)
    plan.arm()  # some tasks have been handed out, most have not
    course.finish_epoch(iterator, [])
    settle(plan, course)
    course.take_epoch(loader)


def between_epochs(loader: DataLoader, plan: Plan, course: Course) -> None:
    course.take_epoch(loader)
    plan.arm()
    for worker in loader.workers():
        os.kill(worker.pid, sabotage.POKE)
    wait_until(plan.struck, timeout_s=10.0)
    iterator = iter(loader)
    settle(plan, course)
    course.finish_epoch(iterator, [])


def at_the_end(loader: DataLoader, plan: Plan, course: Course) -> None:
    course.take_epoch(loader)
    course.take_epoch(loader)
    plan.arm()
    loader.close()
    settle(plan, course)


def settle(plan: Plan, course: Course) -> None:
    """Take the time; what was armed must have struck by now."""
    strike = plan.struck()
    if strike is not None:
        course.settled_s = time.monotonic() - strike.at_s


@dataclass(frozen=True)
class Stage:
    """A point of the protocol, and when it is armed."""

    point: str
    drive: Drive

    @property
    def name(self) -> str:
        return self.point + " of a replacement" * (self.drive is at_the_start_of_a_replacement)


STARTING = (sabotage.START_UP, sabotage.LOAD, sabotage.INIT)
WORKING = (
    sabotage.TASK,
    *CAUGHT,
    sabotage.SLOT_SENT,
    sabotage.RESULT,
)
STAGES = (
    *(
        Stage(point, drive)
        for point in STARTING
        for drive in (at_the_first_start, at_the_start_of_a_replacement)
    ),
    *(Stage(point, in_an_epoch) for point in WORKING),
    Stage(sabotage.IDLE, between_epochs),
    Stage(sabotage.PIPE_ENDED, at_the_end),
    Stage(sabotage.WINDING_UP, at_the_end),
)


def stages(start_method: str) -> list[Stage]:
    """Return what can be reached: ``fork`` unpickles nothing, fresh workers start unsabotaged."""
    absent = {"fork": sabotage.LOAD, "spawn": sabotage.START_UP}.get(start_method)
    return [stage for stage in STAGES if stage.point != absent]


# ---- one run -------------------------------------------------------------------------------------


def run(start_method: str, stage: Stage, way: Way) -> Course:
    """Run two epochs with workers, one of which ends.

    It is the only one at the first start: whether another was ready before decides what is to come of it.
    """
    course = Course()
    num_workers = 1 if stage.drive is at_the_first_start else 2
    with tempfile.TemporaryDirectory() as folder:
        plan = Plan(stage.point, way.name, folder)
        loader = loader_of(start_method, num_workers, **way.arguments)
        with sabotaged(plan), loader:
            stage.drive(loader, plan, course)
    course.ends = loader.reports
    course.deaths = [report for report in course.ends if report.is_death]
    wait_until(lambda: not living_descendants(), timeout_s=2.0)
    course.survivors = living_descendants()
    return course


def loader_of(start_method: str, num_workers: int, **arguments: Any) -> DataLoader:
    return DataLoader(
        Sabotaged(BATCHES * BATCH_SIZE),
        batch_size=BATCH_SIZE,
        shuffle=True,
        seed=1,
        num_workers=num_workers,
        multiprocessing_context=start_method if num_workers else None,
        persistent_workers=bool(num_workers),
        collate_fn=sabotage.collate,
        worker_init_fn=sabotage.init,
        restart=POLICY,
        **arguments,
    )


@cache
def expected_epochs() -> list[list[str]]:
    """Return the digests that each epoch's batches have when no worker is there to end."""
    loader = loader_of("none", num_workers=0)
    return [[_digest(batch) for batch in loader] for _ in range(2)]


# ---- what it must come to ------------------------------------------------------------------------


@dataclass(frozen=True)
class Fate:
    """What a way to end comes to at a point.

    Parameters:
        way: as which the worker's end is to be reported; None: it lives on.
        error: what the consumer is to see raised, or None.
    """

    way: Way | None
    error: type[BaseException] | None = None


def fate(stage: Stage, way: Way) -> Fate:
    """Say what is to come of it."""
    if way.raises is not None and stage.point in CAUGHT:
        return Fate(None, _error_of_the_batch(stage, way.raises))
    if way is sabotage.SYSTEM_EXIT and stage.point == sabotage.INIT:
        way = sabotage.by_exception(RuntimeError)  # or it would pass for an end of the worker's own will
    if stage.drive is not at_the_first_start:
        return Fate(way)
    return Fate(way, way.raises if way.reason is ExitReason.EXCEPTION else WorkerDiedError)


def _error_of_the_batch(stage: Stage, raised: type[BaseException]) -> type[BaseException] | None:
    if not issubclass(raised, Exception):
        return RuntimeError  # as itself it would end the program
    return (
        None if stage.point == sabotage.PICKLING else raised
    )  # there a second pickler is tried, which works


def complaints(stage: Stage, way: Way, course: Course, bound_s: float) -> list[str]:
    """Return what is wrong, a line each."""
    expected = fate(stage, way)
    return [
        *_complaints_about_errors(expected, course),
        *_complaints_about_batches(expected, course),
        *_complaints_about_reports(stage, way, expected, course),
        *([] if course.settled_s < bound_s else [f"it took {course.settled_s:.2f} s"]),
        *([] if not course.survivors else [f"processes left: {course.survivors}"]),
    ]


def _complaints_about_errors(expected: Fate, course: Course) -> Iterator[str]:
    wanted = [] if expected.error is None else [expected.error]
    if [type(error) for error in course.errors] != wanted:
        yield f"raised {course.errors}, not {wanted}"
    for error in course.errors:
        if isinstance(error, WorkerDiedError) and not (
            expected.way and expected.way.is_named_by(error.report)
        ):
            yield f"the error tells of another end: {error}"


def _complaints_about_batches(expected: Fate, course: Course) -> Iterator[str]:
    wanted = expected_epochs()  # an iter() that failed began none
    errors = int(expected.way is None and expected.error is not None)
    if len(course.epochs) != 2 or [len(epoch) for epoch in course.epochs] != [BATCHES] * 2:
        yield f"epochs of {[len(epoch) for epoch in course.epochs]} batches"
    differing = [
        batch
        for taken, right in zip(course.epochs, wanted, strict=False)
        for batch, digest in zip(taken, right, strict=False)
        if batch is not None and batch != digest
    ]
    missing = sum(epoch.count(None) for epoch in course.epochs)
    if differing or missing != errors:
        yield f"{len(differing)} batches differ, {missing} were errors"


def _complaints_about_reports(stage: Stage, way: Way, expected: Fate, course: Course) -> Iterator[str]:
    pids = Counter(report.pid for report in course.ends)
    if any(count > 1 for count in pids.values()):
        yield "an end was reported twice"
    deaths = list(course.deaths)
    if stage.drive is at_the_start_of_a_replacement:
        deaths = deaths[1:]  # of the one that is replaced
    if stage.drive is at_the_end and not deaths and _may_be_asked(way, course.ends):
        return
    wanted = [] if expected.way is None else [expected.way]
    if len(deaths) != len(wanted) or not all(map(Way.is_named_by, wanted, deaths)):
        yield "reported: " + "; ".join(f"{report.reason.value}, {report.ending}" for report in deaths)


def _may_be_asked(way: Way, ends: list[ExitReport]) -> bool:
    """Whether who ended when all are being stopped may pass for one that was.

    It exited with code 0, or a signal of the supervisor's came first, as it may on a busy machine.
    """
    return way is sabotage.EXIT_0 or any(report.signal in (SIGKILL, SIGTERM) for report in ends)


# ---- figures -------------------------------------------------------------------------------------


def figures(start_method: str, bound_s: float = 2.0) -> Iterator[str]:
    """Run the whole sweep; give its figures, a line each."""
    start_s = time.monotonic()
    settled_s: list[float] = []
    wrong: list[str] = []
    for stage, way in product(stages(start_method), WAYS):
        course = run(start_method, stage, way)
        settled_s.append(course.settled_s)
        wrong += [f"  {stage.name}, {way.name}: {c}" for c in complaints(stage, way, course, bound_s)]
    yield (
        f"{start_method}: {len(settled_s)} ends at {len(stages(start_method))} points, {len(wrong)} wrong; "
        f"settled within {max(settled_s):.2f} s; {time.monotonic() - start_s:.0f} s"
    )
    yield from wrong


def main() -> None:
    """Print the figures."""
    logging.getLogger("supervisor").setLevel(logging.ERROR)
    for start_method in ("fork", "forkserver", "spawn"):
        for line in figures(start_method, bound_s=10.0 if start_method == "spawn" else 2.0):
            print(line, flush=True)


if __name__ == "__main__":
    main()
