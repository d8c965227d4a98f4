"""Batches so small that nothing but the loader's own cost per batch is left."""

from __future__ import annotations

from benchmarks.works import Work


class Pairs:
    """(int, int) samples that cost nothing to make."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index, -index


WORKS = (Work("small", lambda length, _: Pairs(length), batch_size=64, batches=4_000),)
