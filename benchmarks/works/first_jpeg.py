"""From iter() to the first batch of JPEGs, with workers that run already: how soon a batch is whole."""

from __future__ import annotations

from benchmarks.works import Work
from benchmarks.works.jpeg import Photos

WORKS = (
    Work(
        "first-jpeg",
        lambda length, _: Photos(length),
        batch_size=32,
        batches=10,
        measures="warm first batch",
    ),
)
