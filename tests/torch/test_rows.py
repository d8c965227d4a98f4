"""Large tensors are written into the batch as each sample is made; it is as torch would have stacked them."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import default_collate

from dataloader.torch import DataLoader
from tests.datasets import Made
from tests.torch.test_tensors import same

COUNT = 36


def image(i: int, dtype: Any = torch.float32) -> Any:
    return (torch.arange(3 * 64 * 64).reshape(3, 64, 64) % 50 + i).to(dtype)


SAMPLES: dict[str, Callable[[int], Any]] = {
    "tensor": image,
    "tuple": lambda i: (image(i), i),
    "dict": lambda i: {"image": image(i), "label": i, "mask": image(i, torch.bool)},
    "half": lambda i: image(i, torch.bfloat16),
    "complex, conjugated": lambda i: image(i, torch.complex64).conj(),
    "channels last": lambda i: image(i)[None].contiguous(memory_format=torch.channels_last)[0],
    "arrays": lambda i: (image(i).numpy(), i),
    "a subclass": lambda i: torch.nn.Parameter(image(i), requires_grad=False),
    "small": lambda i: image(i)[:, :2],
    "one of another type": lambda i: (image(i, torch.float64 if i % 7 == 3 else torch.float32), i),
    "deeper": lambda i: {"a": [image(i), {"b": image(i)}]},
}


@pytest.mark.parametrize("make", SAMPLES.values(), ids=SAMPLES)
def test_batches_are_torchs(make: Callable[[int], Any]) -> None:
    """The first batches are made without a slot, the others with one."""
    with DataLoader(Made(make, COUNT), batch_size=4, num_workers=1, multiprocessing_context="fork") as loader:
        batches = list(loader)
    for i, batch in enumerate(batches):
        assert same_nest(batch, default_collate([make(4 * i + k) for k in range(4)]))


def same_nest(one: Any, other: Any) -> bool:
    if isinstance(other, dict):
        return one.keys() == other.keys() and all(same_nest(one[key], other[key]) for key in other)
    if isinstance(other, list):
        return len(one) == len(other) and all(map(same_nest, one, other))
    return same(one, other) if isinstance(other, torch.Tensor) else bool(one == other)


def of_another_shape(i: int) -> Any:
    return image(i)[:, : 64 - (i == 2)]


def test_tensors_that_differ_are_torchs_error() -> None:
    loader = DataLoader(
        Made(of_another_shape, COUNT), batch_size=4, num_workers=1, multiprocessing_context="fork"
    )
    with loader, pytest.raises(RuntimeError, match="each tensor to be equal size"):
        list(loader)


class Counting:
    """Samples that tell how many before them are alive."""

    def __init__(self) -> None:
        self.made: list[weakref.ref[Any]] = []

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        alive = sum(ref() is not None for ref in self.made)
        tensor = image(index)
        self.made.append(weakref.ref(tensor))
        return tensor, alive


def test_no_sample_outlives_the_next() -> None:
    with DataLoader(Counting(), batch_size=4, num_workers=1, multiprocessing_context="fork") as loader:
        assert max(int(alive.max()) for _, alive in loader) == 0


def keep_apart(batch: Any, *, collate_fn_map: Any = None) -> Any:
    return list(batch)


def test_who_collates_tensors_of_his_own_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(torch.utils.data._utils.collate.default_collate_fn_map, torch.Tensor, keep_apart)
    with DataLoader(
        Made(image, COUNT), batch_size=4, num_workers=1, multiprocessing_context="fork"
    ) as loader:
        for i, batch in enumerate(loader):
            assert all(same(one, image(4 * i + k)) for k, one in enumerate(batch))
