"""Has batches made in pieces however cheap they are: else ``dataloader.pace`` decides, by their cost."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from unittest import mock

from dataloader import pace


@contextlib.contextmanager
def always_in_pieces(wanted: bool = True) -> Iterator[None]:
    """From the second batch of an epoch on, or nearly; all those that can be."""
    if not wanted:
        yield
        return
    with mock.patch.multiple(pace, IN_PIECES_S=-1.0, JOIN_SHARE=float("inf")):
        yield
