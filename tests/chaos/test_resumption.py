"""An epoch is left and taken up, by other numbers of workers, and whoever dies: the same batches."""

from __future__ import annotations

import pytest

from tests.chaos import resumption
from tests.chaos.resumption import Voyage
from tests.chaos.storm import Weather
from tests.chaos.test_storm import assert_every_end_is_reported_once


@pytest.mark.slow
@pytest.mark.parametrize("in_order", [True, False])
def test_an_epoch_that_is_taken_up_in_a_storm_has_the_same_batches(in_order: bool) -> None:
    epochs = 2 if in_order else 1
    weather = Weather("fork", persistent=in_order, epochs=epochs, batches=60, kills=9, in_order=in_order)
    voyage = Voyage(weather, parts=3)
    calm, rough = resumption.undisturbed(voyage), resumption.run(voyage)
    assert rough.digest == calm.digest
    assert rough.kills >= 6 * epochs  # the last of each part may find nobody
    assert_every_end_is_reported_once(rough)
    for outcome in (calm, rough):
        assert outcome.survivors == []
        assert outcome.left == (0, 0, 0)
