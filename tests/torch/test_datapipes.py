"""Torch's datapipes give what they give with torch's own loader."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.utils.data as data
from torch.utils.data.datapipes.iter import IterableWrapper
from torch.utils.data.datapipes.map import SequenceWrapper

from dataloader.torch import DataLoader

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's, of what is deprecated

FORK: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": "fork"}


def shuffled() -> Any:
    return IterableWrapper(range(30)).shuffle(buffer_size=5).sharding_filter()


def epochs(kind: Any, pipe: Any, **arguments: Any) -> list[Any]:
    torch.manual_seed(3)
    loader = kind(pipe, 4, **arguments)
    return [[batch.tolist() for batch in loader] for _ in range(2)]


@pytest.mark.parametrize(
    "arguments", [{}, FORK, {**FORK, "persistent_workers": True}], ids=["0", "2", "stay"]
)
def test_streams_are_sharded_and_seeded_as_torch_does(arguments: dict[str, Any]) -> None:
    ours = epochs(DataLoader, shuffled(), shuffle=True, **arguments)
    assert ours == epochs(data.DataLoader, shuffled(), shuffle=True, **arguments)
    assert [sorted(number for batch in epoch for number in batch) for epoch in ours] == [list(range(30))] * 2
    assert ours[0] != ours[1]


def test_map_style_pipes_are_datasets() -> None:
    pipe = SequenceWrapper(range(10)).map(str)
    assert list(DataLoader(pipe, 4, **FORK)) == list(data.DataLoader(pipe, 4))
