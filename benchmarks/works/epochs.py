"""Many short epochs: how long a loader takes from the last batch of one to the first of the next."""

from __future__ import annotations

from benchmarks.works import Work
from benchmarks.works.first_batch import NumpySamples

WORKS = (
    Work("epochs/persistent", lambda length, _: NumpySamples(length), batch_size=32, batches=10, epochs=100),
    Work(
        "epochs/fresh",
        lambda length, _: NumpySamples(length),
        batch_size=32,
        batches=10,
        epochs=10,
        persistent_workers=False,
    ),
)
