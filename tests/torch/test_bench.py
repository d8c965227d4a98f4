"""``dataloader bench`` on torch's loaders, datasets and tensors."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import IterableDataset, TensorDataset, get_worker_info

from dataloader.bench.measure import Bounds, measure
from dataloader.bench.probe import size_of
from dataloader.bench.subject import Options, Subject
from dataloader.bench.target import TargetError, is_torch_loader
from dataloader.torch import DataLoader


class Stream(IterableDataset[Any]):
    """Is told by its worker_init_fn, as torch's documentation has it, what to give."""

    first = 0

    def __iter__(self) -> Iterator[Any]:
        return iter(torch.arange(self.first, 8))


def begin_at_four(worker: int) -> None:
    info: Any = get_worker_info()
    info.dataset.first = 4


NUMBERS: Any = range(100)


def batches(loader: Any) -> list[list[int]]:
    with loader:
        return [batch.tolist() for batch in loader]


def test_torch_s_loader_is_told_from_ours() -> None:
    assert is_torch_loader(TorchLoader(NUMBERS))
    assert not is_torch_loader(DataLoader([1]))
    assert not is_torch_loader([1])


def test_torch_s_loader_becomes_ours_and_draws_the_same_order_each_time() -> None:
    given: Any = TorchLoader(NUMBERS, batch_size=50, shuffle=True, num_workers=1)
    subject = Subject("given", given, Options(seed=1))
    first = batches(subject.loader(0))
    assert type(subject.loader(0)) is DataLoader
    assert batches(subject.loader(0)) == first
    assert sorted(chain(*first)) == list(range(100))
    assert first[0] != list(range(50))


def test_a_loader_that_iterates_in_a_way_of_its_own_is_refused() -> None:
    class Own(TorchLoader[Any]):
        def __iter__(self) -> Any:
            return iter([1])

    with pytest.raises(TargetError, match=r"iterates in a way of its own.*Or name its dataset"):
        Subject("own", Own(NUMBERS), Options())


def test_a_dataset_gives_tensors_where_torch_was_imported() -> None:
    loader: Any = Subject("numbers", NUMBERS, Options()).loader(0)
    assert all(isinstance(batch, torch.Tensor) for batch in loader)


def test_an_empty_dataset_is_refused_before_torch_s_sampler_does() -> None:
    with pytest.raises(TargetError, match="empty has no samples"):
        Subject("empty", TensorDataset(torch.zeros(0, 3)), Options())


def test_a_stream_is_measured_as_its_worker_init_fn_has_it() -> None:
    given = TorchLoader(Stream(), batch_size=2, num_workers=1, worker_init_fn=begin_at_four)
    subject = Subject("stream", given, Options(start_method="fork"))
    measured = measure(subject, (1,), Bounds(seconds=60, samples=4))
    assert measured.samples is not None
    assert measured.batch is not None
    assert subject.length is None
    # Four samples an epoch; the second epoch follows, and some of it is drawn ahead.
    assert {slow.index for slow in measured.samples.slowest} <= {0, 1, 2, 3}
    assert measured.batch.samples == 2
    assert measured.points[0].batches >= 1


def test_the_size_of_a_tensor_is_not_that_of_what_it_is_a_view_of() -> None:
    size_bytes = size_of((torch.zeros(1000, 4)[7], 1))
    assert size_bytes is not None
    assert 16 <= size_bytes <= 200
