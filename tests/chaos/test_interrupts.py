"""An exception out of a signal handler, at any instruction of next(), loses nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.chaos import interrupts
from tests.chaos.interrupts import (
    BATCHES,
    IN_PIECES,
    IN_SLOTS,
    INLINE,
    LARGE_TASKS,
    AtRandom,
    Everywhere,
    Interrupt,
    Kind,
    Leave,
    Take,
    loader_of,
    take_by_for,
    take_by_next,
)
from tests.in_pieces import always_in_pieces
from tests.processes import belongings

KINDS = pytest.mark.parametrize(
    "kind", [INLINE, IN_SLOTS, IN_PIECES], ids=["inline", "in slots", "in pieces"]
)
STARTS = pytest.mark.parametrize("start_method", ["fork", "forkserver"])
ERRORS = pytest.mark.parametrize("error", [Interrupt, KeyboardInterrupt])
TAKES = pytest.mark.parametrize("take", [take_by_next, take_by_for])


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    before = belongings()
    yield
    assert belongings() == before


def interrupt_at_random(
    kind: Kind, start_method: str, error: type[BaseException], take: Take, kills_per_epoch: int = 0
) -> int:
    striker = AtRandom(error, seed=3)
    with always_in_pieces(kind.in_pieces), loader_of(kind, BATCHES, start_method) as loader:
        killed = interrupts.interrupt_at_random(loader, striker, 1000, take, kills_per_epoch)
    assert striker.landed.inside >= 1000
    return killed


@KINDS
@ERRORS
def test_a_thousand_interrupts_lose_nothing(kind: Kind, error: type[BaseException]) -> None:
    interrupt_at_random(kind, "forkserver", error, take_by_next)


@pytest.mark.slow
@KINDS
def test_a_thousand_interrupts_of_a_for_loop_lose_nothing(kind: Kind) -> None:
    interrupt_at_random(kind, "fork", Interrupt, take_by_for)


@pytest.mark.slow
@KINDS
@STARTS
@ERRORS
@TAKES
def test_interrupts_and_kills_together_lose_nothing(
    kind: Kind, start_method: str, error: type[BaseException], take: Take
) -> None:
    assert interrupt_at_random(kind, start_method, error, take, kills_per_epoch=20) >= 10


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "batches", "places"),
    [(INLINE, 150, 300), (IN_SLOTS, 150, 350), (IN_PIECES, 100, 400)],
    ids=["inline", "in slots", "in pieces"],
)
def test_an_interrupt_at_every_place_loses_nothing(kind: Kind, batches: int, places: int) -> None:
    striker = Everywhere(visits=2)
    with always_in_pieces(kind.in_pieces), loader_of(kind, batches, "fork") as loader:
        interrupts.interrupt_everywhere(loader, striker, epochs=2, kills_per_epoch=20)
    assert len(striker.strikes) >= places


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")  # the next one reaps it
def test_an_interrupt_at_every_place_of_a_revival_loses_nothing() -> None:
    striker = Everywhere(visits=1)
    with loader_of(INLINE, 100, "forkserver") as loader:
        assert len(list(loader)) == 100
        interrupts.interrupt_revivals(loader, striker, epochs=6)
        pids = [report.pid for report in loader.reports]
    assert len(pids) == len(set(pids)) == 6 * 3
    struck = {code.co_name for code, _ in striker.strikes}
    assert {"_bury_supervisor", "end_orphans", "kill", "_await_revival", "succeed", "spawn"} <= struck


@pytest.mark.slow
def test_an_interrupt_at_every_place_loses_no_task_too_large_for_a_message() -> None:
    striker = Everywhere(visits=1)
    with loader_of(LARGE_TASKS, 15, "fork") as loader:
        interrupts.interrupt_everywhere(loader, striker, epochs=2)
    assert len(striker.strikes) >= 230


@pytest.mark.slow
@pytest.mark.parametrize("leave", [interrupts.close, interrupts.begin_anew])
@pytest.mark.parametrize("kind", [IN_SLOTS, IN_PIECES], ids=["in slots", "in pieces"])
def test_a_loader_left_after_an_interrupt_anywhere_leaves_nothing(kind: Kind, leave: Leave) -> None:
    with always_in_pieces(kind.in_pieces):
        interrupts.leave_after_interrupts(kind, Everywhere(visits=1), leave, rounds=25)
