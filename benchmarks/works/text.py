"""Ragged text: token ids, as many as it happens to be, padded to the longest of the batch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from benchmarks.works import Work

_VOCABULARY = 50_000


class Texts:
    """16 to 512 token ids, cut out of one long text."""

    def __init__(self, length: int) -> None:
        rng = np.random.default_rng(0)
        self._tokens = rng.integers(1, _VOCABULARY, size=1_000_000)
        self._lengths = rng.integers(16, 513, size=length)
        self._starts = rng.integers(0, len(self._tokens) - 512, size=length)

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, index: int) -> NDArray[np.int64]:
        start = self._starts[index]
        return self._tokens[start : start + self._lengths[index]]


def pad(texts: list[NDArray[np.int64]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The ids of a batch, with zeros after the shorter texts, and the length of each."""
    lengths = np.array([len(text) for text in texts])
    ids = np.zeros((len(texts), lengths.max()), np.int64)
    for row, text in zip(ids, texts, strict=True):
        row[: len(text)] = text
    return ids, lengths


WORKS = (Work("text", lambda length, _: Texts(length), batch_size=32, batches=2_000, collate_fn=pad),)
