"""A batch of tensors that is made in pieces is the batch that torch's ``default_collate`` makes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import default_collate

from dataloader.arena import SMALL_BYTES
from dataloader.batch_pool import BatchPool
from dataloader.joining import Joiner
from dataloader.ledger import Job
from dataloader.torch import DataLoader
from supervisor.payload import PayloadError
from tests.datasets import Made
from tests.in_pieces import always_in_pieces
from tests.torch.test_rows import same_nest

SIZE = 18
BATCHES = 20
COUNT = SIZE * BATCHES
SIDE = int((SMALL_BYTES // 4) ** 0.5)  # of an image that is just large enough for a row
WORKERS: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": "fork", "batch_size": SIZE}


@pytest.fixture(autouse=True)
def _in_pieces() -> Iterator[None]:
    with always_in_pieces():
        yield


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each batch that was put together, whether all pieces lay in one slot."""
    shared: list[bool] = []
    join = Joiner.join

    def noted(self: Joiner, pool: BatchPool, job: Job) -> Any:
        batch = join(self, pool, job)
        shared.append(job.shared is not None and all(piece.slot is job.shared for piece in job.pieces))
        return batch

    monkeypatch.setattr(Joiner, "join", noted)
    return shared


def image(i: int, dtype: Any = torch.float32) -> Any:
    return (torch.arange(SIDE * SIDE).reshape(SIDE, SIDE) % 50 + i).to(dtype)


SAMPLES: dict[str, Callable[[int], Any]] = {
    "tensor": image,
    "tuple": lambda i: (image(i), i, i / 2, f"{i}"),
    "dict": lambda i: {"image": image(i), "label": i, "mask": image(i, torch.float64)},
    "brain float": lambda i: image(i, torch.bfloat16).repeat(2, 1),
    "small": lambda i: torch.tensor([i, i]),
    "bools": lambda i: (i % 2 == 0, np.float32(i)),
    "conjugated": lambda i: image(i, torch.complex64).conj(),
    "transposed": lambda i: image(i).t(),
    "arrays": lambda i: (image(i).numpy(), i),
    "arrays of a type that differs": lambda i: image(i, torch.int32 if i % SIZE > 9 else torch.int64).numpy(),
    "unsigned arrays": lambda i: image(i).numpy().astype(np.uint16).repeat(2, 0),
    "tensors and arrays": lambda i: image(i) if i // SIZE % 2 else image(i).numpy(),
    "one of another type": lambda i: (image(i, torch.float64 if i % 7 == 3 else torch.float32), i),
    "deeper": lambda i: {"a": [image(i), {"b": image(i)}]},
}


@pytest.mark.parametrize("make", SAMPLES.values(), ids=SAMPLES)
def test_it_is_the_same_batch(make: Callable[[int], Any], joined: list[bool]) -> None:
    with DataLoader(Made(make, COUNT), **WORKERS) as loader:
        for number, batch in enumerate(loader):
            expected = default_collate([make(i) for i in range(number * SIZE, (number + 1) * SIZE)])
            assert same_nest(batch, expected)
    assert len(joined) >= BATCHES // 2


@pytest.mark.parametrize("name", ["tensor", "dict", "transposed", "arrays"])
def test_pieces_share_a_slot(name: str, joined: list[bool]) -> None:
    with DataLoader(Made(SAMPLES[name], COUNT), **WORKERS) as loader:
        for _ in loader:
            pass
    assert sum(joined) >= BATCHES // 2


def reversed_stack(batch: Any, *, collate_fn_map: Any = None) -> Any:
    return torch.stack(list(reversed(batch)))


def register(worker: int) -> None:
    torch.utils.data._utils.collate.default_collate_fn_map[torch.Tensor] = reversed_stack


def test_what_workers_collate_in_a_way_of_their_own_is_made_by_one(joined: list[bool]) -> None:
    with DataLoader(Made(image, COUNT), worker_init_fn=register, **WORKERS) as loader:
        for number, batch in enumerate(loader):
            assert batch[-1, 0, 0] == number * SIZE
    assert joined == []


def test_what_the_user_collates_in_a_way_of_his_own_is_made_by_one(
    joined: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    collate_fns = torch.utils.data._utils.collate.default_collate_fn_map
    monkeypatch.setitem(collate_fns, torch.Tensor, reversed_stack)
    with DataLoader(Made(image, COUNT), **WORKERS) as loader:
        assert [int(batch[-1, 0, 0]) for batch in loader] == [*range(0, COUNT, SIZE)]
    assert joined == []


def test_a_function_of_the_users_that_is_named_like_torchs_is_none_of_torchs(
    joined: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    collate = torch.utils.data._utils.collate
    mine = functools.wraps(collate.collate_tensor_fn)(reversed_stack)
    monkeypatch.setitem(collate.default_collate_fn_map, torch.Tensor, mine)
    with DataLoader(Made(image, COUNT), **WORKERS) as loader:
        assert [int(batch[-1, 0, 0]) for batch in loader] == [*range(0, COUNT, SIZE)]
    assert joined == []


@pytest.mark.parametrize(
    "make",
    [lambda i: image(i).numpy()[::-1], lambda i: image(i).numpy()[:3, ::-1]],
    ids=["large", "small"],
)
def test_arrays_that_torch_refuses_are_refused(make: Callable[[int], Any]) -> None:
    with DataLoader(Made(make, COUNT), **WORKERS) as loader:
        iterator = iter(loader)
        for _ in range(BATCHES):
            with pytest.raises(ValueError, match="negative"):
                next(iterator)


def test_batches_lie_in_main_memory_whatever_the_default_device(joined: list[bool]) -> None:
    samples = Made(lambda i: (image(i), i, np.float32(i), i / 2), COUNT)
    with DataLoader(samples, **WORKERS) as loader:
        iterator = iter(loader)
        first = next(iterator)
        with torch.device("meta"):
            batches = [first, *iterator]
    assert {part.device.type for batch in batches for part in batch} == {"cpu"}
    assert joined


def test_what_has_a_graph_cannot_be_sent() -> None:
    loader = DataLoader(Made(lambda i: image(i).requires_grad_(), COUNT), **WORKERS)
    with loader, pytest.raises(PayloadError, match="graph cannot: send"):
        next(iter(loader))


def test_an_error_is_torchs() -> None:
    def make(i: int) -> Any:
        return image(i)[: SIDE - (i == 30)]

    with DataLoader(Made(make, COUNT), **WORKERS) as loader, pytest.raises(RuntimeError, match="equal size"):
        list(loader)
