"""Whom a death is charged to."""

from __future__ import annotations

import pytest

from dataloader.suspects import Death, charges, convicted, is_suspect
from supervisor.page import State
from supervisor.report import ExitReport
from supervisor.verdict import ExitReason


def death(
    reason: ExitReason = ExitReason.CRASHED,
    *,
    item: int | None = 3,
    state: State = State.SAMPLE,
    alone: bool = False,
) -> Death:
    return Death(ExitReport(worker=0, pid=1, reason=reason, state=state, item=item), alone)


@pytest.mark.parametrize(
    "reason", [ExitReason.CRASHED, ExitReason.EXITED, ExitReason.HUNG, ExitReason.EXCEPTION]
)
def test_what_a_sample_did_is_charged_to_it(reason: ExitReason) -> None:
    deaths = [death(reason)] * 3
    assert is_suspect(deaths[:1])
    assert convicted(deaths[:2], (), 3) == []
    assert convicted(deaths, (), 3) == [3]
    assert convicted(deaths, (3,), 3) == []


@pytest.mark.parametrize("reason", [ExitReason.KILLED, ExitReason.OOM_KILLED, ExitReason.MEMORY_LIMIT])
def test_what_may_be_chance_is_charged_to_who_was_alone(reason: ExitReason) -> None:
    assert charges([death(reason)] * 9, 3) == []
    assert len(charges([death(reason, alone=True)] * 9, 3)) == 9


def test_one_kill_from_outside_makes_no_suspect() -> None:
    killed = death(ExitReason.KILLED)
    assert not is_suspect([])
    assert not is_suspect([killed])
    assert is_suspect([killed] * 2)
    assert is_suspect([death(ExitReason.OOM_KILLED)])
    assert is_suspect([killed, death()])


@pytest.mark.parametrize(
    "of_batch", [death(state=State.COLLATE), death(item=None), death(item=-1), death(state=State.SENDING)]
)
def test_what_is_no_samples_is_the_batchs(of_batch: Death) -> None:
    assert convicted([of_batch] * 2, (), 2) == [None]


def test_each_sample_has_its_own_charges() -> None:
    deaths = [death(item=0), death(item=1), death(item=0), death(state=State.COLLATE)]
    assert convicted(deaths, (), 2) == [0]
    assert convicted(deaths, (), 1) == [0, 1, None]
    assert len(charges(deaths, 0)) == 2
