"""The small work without arrays: batches are lists of Python objects, which can only be pickled."""

from __future__ import annotations

from benchmarks.works import Work
from benchmarks.works.small import Pairs

WORKS = (Work("objects", lambda length, _: Pairs(length), batch_size=64, batches=10_000, collate_fn=list),)
