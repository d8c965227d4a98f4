"""Windows over the samples of a dataset."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

from dataloader.datasets.fetching import DerivedDataset, checked_map_style, fetch_all
from dataloader.datasets.indices import checked_position
from dataloader.samplers import checked_count, checked_flag


class WindowedDataset(DerivedDataset[list[Any]]):
    """Lists of ``size`` consecutive samples of ``dataset``; one begins ``step`` samples after the other.

    Parameters:
        dataset: a map-style dataset.
        size: samples in a window, at least 1.
        step: from the start of a window to the start of the next, at least 1. Below ``size`` windows overlap;
            above it samples are left out between them.
        drop_last: leave out the samples behind the last whole window. Otherwise one window more, which is
            shorter, has them.

    Raises:
        ValueError, TypeError: naming the argument and what to write instead.

    The default collate makes a batch of lists field by field: ``MappedDataset(windows, numpy.stack)`` makes
    each window an array, and a batch of them one of shape (batch, size, ...).

    >>> list(WindowedDataset("abcde", 3)), list(WindowedDataset("abcde", 2, step=2, drop_last=False))
    ([['a', 'b', 'c'], ['b', 'c', 'd'], ['c', 'd', 'e']], [['a', 'b'], ['c', 'd'], ['e']])
    """

    def __init__(self, dataset: Any, size: int, step: int = 1, drop_last: bool = True) -> None:
        self.dataset = checked_map_style("dataset", dataset)
        self.size = checked_count("size", size, least=1)
        self.step = checked_count("step", step, least=1)
        self.drop_last = checked_flag("drop_last", drop_last)

    @property
    def sources(self) -> tuple[Any]:
        return (self.dataset,)

    def __getitem__(self, index: int) -> list[Any]:
        return fetch_all(self.dataset, self._span(index))

    def __getitems__(self, indices: Sequence[int]) -> list[list[Any]]:
        """Return several windows, by one call of the dataset's ``__getitems__`` where it has one."""
        spans = [self._span(index) for index in indices]
        samples = iter(fetch_all(self.dataset, [place for span in spans for place in span]))
        return [list(islice(samples, len(span))) for span in spans]

    def _span(self, index: int) -> range:
        start = checked_position(index, len(self)) * self.step
        return range(start, min(start + self.size, len(self.dataset)))

    def __len__(self) -> int:
        return count_windows(len(self.dataset), self.size, self.step, drop_last=self.drop_last)


def count_windows(samples: int, size: int, step: int, *, drop_last: bool) -> int:
    """Return how many windows there are.

    >>> count_windows(5, size=2, step=2, drop_last=True), count_windows(5, size=2, step=2, drop_last=False)
    (2, 3)
    """
    whole = max(0, (samples - size) // step + 1)
    reached = (whole - 1) * step + size if whole else 0
    return whole + (not drop_last and max(reached, whole * step) < samples)
