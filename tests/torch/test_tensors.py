"""Tensors on their way from a worker: they arrive as they were, and own no more than their elements."""

from __future__ import annotations

import copy
import gc
import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.utils import data

from dataloader import arena, wire
from dataloader._torch.tensors import SharingError, dumps
from dataloader._torch.worker import TorchServer, collate_into_slots
from dataloader.arena import Arena
from dataloader.slots import SlotPool
from supervisor.payload import Payload, PayloadError

KB = 1024
LARGE = 40_000  # elements; above what travels inline
DTYPES = sorted(
    {
        dtype
        for dtype in vars(torch).values()
        if isinstance(dtype, torch.dtype) and not str(dtype).startswith(("torch.q", "torch.bits"))
    },
    key=str,
)


def sent(batch: Any, slots: SlotPool | None = None) -> Any:
    """Return what arrives of ``batch``."""
    data, fd = wire.encode_batch(0, batch, Arena(memoryview(b"")), TorchServer.dumps)
    result = wire.decode_results(data)[0]
    slot = None if fd is None else (SlotPool(2) if slots is None else slots).adopt(fd, result.made_bytes)
    return wire.open_batch(0, result, slot, copy=False)


def of_dtype(dtype: Any, count: int) -> Any:
    """Return elements of any bits that every dtype has."""
    size = torch.empty(1, dtype=dtype).element_size()
    return (torch.arange(count * size) % 2).to(torch.uint8).view(dtype)


def same(one: Any, other: Any) -> bool:
    return (
        type(one) is type(other)
        and one.dtype == other.dtype
        and one.shape == other.shape
        and one.requires_grad == other.requires_grad
        and bool(one.is_conj() == other.is_conj() and one.is_neg() == other.is_neg())
        and one.untyped_storage().nbytes() <= max(1, one.numel()) * one.element_size()
        and torch.equal(one.detach(), other.detach())
    )


# ---- what they are -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("count", [12, LARGE])
@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_every_dtype_arrives_bit_by_bit(dtype: Any, count: int) -> None:
    tensor = of_dtype(dtype, count).view(4, -1)
    arrived = sent({"x": tensor})["x"]
    assert (arrived.dtype, arrived.shape, arrived.stride()) == (dtype, tensor.shape, tensor.stride())
    assert torch.equal(arrived.view(torch.uint8), tensor.view(torch.uint8))
    assert arrived.untyped_storage().nbytes() == tensor.untyped_storage().nbytes()


@pytest.mark.parametrize("size", [(), (0,), (3, 0, 2), (1,), (1, 1, 1), (200, 300)])
def test_every_shape_arrives(size: tuple[int, ...]) -> None:
    assert same(sent(torch.full(size, 7.0)), torch.full(size, 7.0))
    assert sent(torch.full(size, 7.0)).stride() == torch.full(size, 7.0).stride()


@pytest.mark.parametrize("count", [1, 40])
def test_strides_are_kept_and_gaps_are_not(count: int) -> None:
    base = torch.arange(count * 2 * 3 * 4 * 100).view(count * 2, 3, 4, 100)
    for dense in (base.mT, base.permute(3, 1, 0, 2), base.to(memory_format=torch.channels_last), base[1:]):
        arrived = sent(dense)
        assert same(arrived, dense)
        assert arrived.stride() == dense.stride()
    for gaps in (base[:, 1], base[::2, :, 1:3], base[..., 5], base.mT[:, :, 1:]):
        assert same(sent(gaps), gaps)
    wide = torch.arange(3.0).view(3, 1).expand(3, 50_000)
    assert sent(wide).stride() == (1, 0)
    assert sent(wide).untyped_storage().nbytes() == 12
    windows = torch.arange(50_000).unfold(0, 3, 1)
    assert sent(windows).untyped_storage().nbytes() == 400_000
    assert same(sent(windows), windows)


def test_flags_are_kept() -> None:
    numbers = torch.randn(LARGE, dtype=torch.complex64)
    for tensor in (numbers.conj(), numbers.conj().imag, numbers[::2].conj(), numbers.real):
        assert same(sent(tensor), tensor)
        assert same(sent([tensor, tensor.clone()])[1], tensor.clone())
    parameter = torch.nn.Parameter(torch.randn(3))
    arrived = sent([torch.ones(LARGE, requires_grad=True), parameter])
    assert [tensor.requires_grad for tensor in arrived] == [True, True]
    assert type(arrived[1]) is torch.nn.Parameter


def test_what_has_a_graph_is_refused() -> None:
    with pytest.raises(PayloadError, match=r"batch\[0\].*send tensor\.detach\(\)"):
        sent([torch.ones(3, requires_grad=True) * 2])


@pytest.mark.filterwarnings("ignore")
def test_other_kinds_arrive() -> None:
    dense = torch.eye(300)
    sparse = [dense.to_sparse(), dense.to_sparse_csr(), dense.to_sparse_csc()]
    for one, other in zip(sent(sparse), sparse, strict=True):
        assert one.layout == other.layout
        assert torch.equal(one.to_dense(), dense)
    quantised = torch.quantize_per_tensor(torch.randn(300, 300), 0.1, 3, torch.quint8)
    assert torch.equal(sent(quantised).int_repr(), quantised.int_repr())
    assert sent(quantised).q_scale() == 0.1
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(30_000)])
    assert [part.tolist() for part in sent(nested).unbind()] == [[1.0] * 2, [1.0] * 30_000]
    assert sent(torch.empty(3, device="meta")).is_meta
    packed = torch.nn.utils.rnn.pack_sequence([torch.arange(3), torch.arange(2)])
    assert torch.equal(sent(packed).data, packed.data)


class Photo(torch.Tensor):  # type: ignore[misc,name-defined]
    """A subclass with a state of its own."""


def test_subclasses_and_attributes_arrive_and_own_no_more_than_they_need() -> None:
    photo = torch.arange(10.0 * LARGE)[:LARGE].as_subclass(Photo)
    photo.path = "a.jpg"
    arrived = sent([photo])[0]
    assert (type(arrived), arrived.path) == (Photo, "a.jpg")
    assert same(arrived, photo)
    plain = torch.zeros(3)
    plain.label = "b"
    assert sent(plain).label == "b"


@dataclass
class Sample:
    x: Any
    name: str


def test_tensors_within_any_object_travel_out_of_band() -> None:
    sample = Sample({"deep": [(torch.arange(LARGE),)]}, "a")
    data, _ = wire.encode_batch(0, [sample], Arena(memoryview(b"")), TorchServer.dumps)
    assert len(data) < KB
    assert torch.equal(sent([sample])[0].x["deep"][0][0], torch.arange(LARGE))


def test_a_class_that_the_consumer_does_not_have_travels_by_value() -> None:
    class Local:
        pass

    local = Local()
    local.x = local.y = torch.arange(LARGE)  # type: ignore[attr-defined]
    arrived = sent(local)
    assert arrived.x is arrived.y
    assert torch.equal(arrived.x, local.x)  # type: ignore[attr-defined]


def test_what_cannot_be_pickled_is_named() -> None:
    with pytest.raises(PayloadError, match=r"batch\['f'\]"):
        sent({"x": torch.ones(3), "f": (i for i in range(3))})


# ---- what they own -------------------------------------------------------------------------------


@pytest.mark.parametrize("kilobytes", [1, 100])
def test_a_part_of_a_large_tensor_owns_its_part(kilobytes: int) -> None:
    data = torch.arange(KB * KB, dtype=torch.uint8)
    for tensor in sent([data[: kilobytes * KB], data[-kilobytes * KB :]]):
        assert tensor.untyped_storage().nbytes() == kilobytes * KB
        file = io.BytesIO()
        torch.save(tensor, file)
        assert len(file.getvalue()) < (kilobytes + 2) * KB
        assert copy.deepcopy(tensor).untyped_storage().nbytes() == kilobytes * KB
        assert not tensor.is_shared()
        tensor += 1  # it is writable


def test_neighbours_and_columns_do_not_share() -> None:
    data = torch.arange(4.0 * LARGE).view(4, LARGE)
    for parts in (list(data), list(data.T[:4]), [data[:, ::2], data[:, 1::2]]):
        arrived = sent(parts)
        assert all(map(same, arrived, parts))
        assert len({tensor.untyped_storage().data_ptr() for tensor in arrived}) == len(parts)


@pytest.mark.parametrize("count", [8, LARGE])
def test_views_of_one_storage_still_share_it(count: int) -> None:
    base = torch.zeros(2, count)
    batch = [base, base.T, base[1], base.view(torch.int32), base[:, ::2], base.as_subclass(Photo)]
    arrived = sent(batch)
    arrived[0][1, 0] = 1.0
    assert [tensor.flatten()[at].item() for tensor, at in zip(arrived[1:5], (1, 0, count), strict=False)] == [
        1.0,
        1.0,
        0x3F800000,
    ]
    assert arrived[4][1, 0] == 1.0
    assert len({tensor.untyped_storage().data_ptr() for tensor in arrived[:5]}) == 1
    assert arrived[0].untyped_storage().nbytes() == base.untyped_storage().nbytes()
    with pytest.raises(SharingError):
        dumps(batch, 5, buffer_callback=lambda buffer: None)


def test_overlapping_columns_share() -> None:
    data = torch.zeros(LARGE, 4)
    first, second = sent([data[:, :2], data[:, 1:3]])
    first[0, 1] = 1.0
    assert second[0, 0] == 1.0


def test_one_tensor_twice_is_one() -> None:
    tensor = torch.ones(LARGE)
    first, second = sent([tensor, tensor])
    assert first is second


def test_storages_arrive_and_are_shared() -> None:
    tensor = torch.arange(LARGE)
    arrived, storage = sent([tensor, tensor.untyped_storage()])
    assert storage.nbytes() == 8 * LARGE
    arrived[0] = 7
    assert storage[0] == 7


def test_a_slot_is_free_when_its_last_view_is_dead() -> None:
    slots = SlotPool(2)
    batch = sent({"x": torch.ones(LARGE), "y": torch.zeros(LARGE), "small": torch.ones(3)}, slots)
    (slot,) = slots
    row, kept, array = batch["x"][3:5], copy.deepcopy(batch["y"]), batch["small"].numpy()
    assert slot.has_view
    del batch
    assert slot.has_view
    del row
    gc.collect()
    assert not slot.has_view
    assert (kept.sum(), array.sum()) == (0, 3)


def test_no_cache_of_torch_holds_a_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    slots = SlotPool(2)
    tensor = sent(torch.ones(LARGE), slots)
    (slot,) = slots
    tensor.share_memory_()
    assert not slot.has_view
    assert tensor.is_shared()
    assert tensor.sum() == LARGE


def test_what_arrives_is_in_main_memory_whatever_the_default_device() -> None:
    batch = [torch.ones(3), torch.ones(LARGE), torch.ones(2, 0), torch.zeros(LARGE, 4)]
    batch.append(batch[3][:, :2])
    with torch.device("meta"):
        assert [tensor.device.type for tensor in sent(batch)] == ["cpu"] * 5


def test_a_datasets_tensors_are_mapped_by_workers() -> None:
    large = torch.arange(LARGE * 10)
    dataset = data.TensorDataset(large[: LARGE * 5], torch.arange(LARGE * 5))
    payload = Payload.pack({"dataset": dataset, "small": torch.ones(3, requires_grad=True)})
    assert len(payload.spans) == 3
    assert payload.spans[0][1] < 4 * KB
    one, other = payload.load(), payload.load()
    one["dataset"].tensors[0][0] = 7
    assert (one["small"].requires_grad, large[0], other["dataset"].tensors[0][0]) == (True, 0, 0)
    assert torch.equal(other["dataset"].tensors[1], dataset.tensors[1])
    assert other["dataset"].tensors[0].untyped_storage().nbytes() == LARGE * 5 * 8
    assert "dataloader._torch.rebuilding" in payload.modules
    payload.close()


# ---- written in place ----------------------------------------------------------------------------


@pytest.fixture
def in_a_worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Arena]:
    """Let torch think that this is a worker, with a slot."""
    from torch.utils.data import _utils

    before = dict(_utils.collate.default_collate_fn_map)
    monkeypatch.setattr(torch.UntypedStorage, "_new_shared", torch.UntypedStorage._new_shared)
    dataset: Any = [1]
    info = _utils.worker.WorkerInfo(id=0, num_workers=1, seed=0, dataset=dataset)
    monkeypatch.setattr(_utils.worker, "_worker_info", info)
    monkeypatch.setattr(torch.UntypedStorage, "_new_using_fd_cpu", None)
    collate_into_slots(dict(before))
    slot = Arena(memoryview(bytearray(1 << 20)))
    with arena.use(slot, range(4)):
        yield slot
    _utils.collate.default_collate_fn_map.clear()
    _utils.collate.default_collate_fn_map.update(before)


def test_large_samples_are_stacked_in_the_slot(in_a_worker: Arena) -> None:
    samples = [{"x": torch.full((3, 100, 100), float(i)), "y": torch.tensor(i)} for i in range(4)]
    batch = torch.utils.data.default_collate(samples)
    assert torch.equal(batch["x"], torch.stack([sample["x"] for sample in samples]))
    assert batch["y"].tolist() == [0, 1, 2, 3]
    assert in_a_worker.used_bytes == 4 * 3 * 100 * 100 * 4
    data, fd = wire.encode_batch(0, batch, in_a_worker, TorchServer.dumps)
    assert fd is None
    assert [offset for offset, _, _ in wire.decode_results(data)[0].spans] == [0]


def test_arrays_are_stacked_in_the_slot_as_tensors(in_a_worker: Arena) -> None:
    batch = torch.utils.data.default_collate([np.full((100, 100), i) for i in range(4)])
    assert (batch.dtype, batch.shape) == (torch.int64, (4, 100, 100))
    assert in_a_worker.used_bytes == batch.nbytes


def test_what_asks_torch_for_shared_memory_gets_the_slots(in_a_worker: Arena) -> None:
    samples = [torch.full((100, 100), float(i)) for i in range(4)]
    batch = torch.utils.data._utils.collate.collate_tensor_fn(samples)
    assert torch.equal(batch, torch.stack(samples))
    assert in_a_worker.used_bytes == batch.nbytes
    small = torch.utils.data._utils.collate.collate_tensor_fn([torch.ones(3)] * 2)
    assert small.tolist() == [[1.0] * 3] * 2


BATCHES: dict[str, list[Any]] = {
    "other shapes": [torch.ones(3), torch.ones(4)],
    "other large shapes": [torch.ones(LARGE), torch.ones(LARGE + 1)],
    "other dtypes": [torch.ones(LARGE), torch.ones(LARGE, dtype=torch.float64)],
    "a number": [torch.ones(2), 3],
    "a number among large ones": [torch.ones(LARGE), 3],
    "an array among large ones": [torch.ones(LARGE), np.ones(LARGE, np.float32)],
    "a float": [1, 2.5],
    "a bool": [1, True],
    "bools": [True, False],
    "a large int": [1, 2**70],
    "an unsigned int": [2**63, 1],
    "an int": [1.5, 2],
    "a str": [1, "a"],
    "None": [1.5, None],
    "scalars": [np.float32(1), np.float32(2)],
    "arrays of str": [np.array(["a"]), np.array(["b"])],
    "other keys": [{"a": 1}, {"b": 2}],
    "other lengths": [[1, 2], [3]],
    "sparse": [torch.eye(3).to_sparse()] * 2,
    "nothing": [None, None],
    "strs": ["a", "b"],
    "bytes": [b"a", b"b"],
    "bfloat16": [torch.ones(3, dtype=torch.bfloat16)] * 2,
    "conjugated": [torch.ones(LARGE, dtype=torch.complex64).conj()] * 2,
    "transposed": [torch.ones(200, 300).mT] * 2,
    "empty": [torch.ones(2, 0)] * 2,
    "scalar tensors": [torch.tensor(1), torch.tensor(2)],
}


@pytest.mark.parametrize("name", BATCHES)
def test_the_result_or_the_error_is_torchs(name: str, request: pytest.FixtureRequest) -> None:
    def outcome() -> Any:
        try:
            return torch.utils.data.default_collate(BATCHES[name])
        except Exception as error:
            return type(error), str(error)

    expected = outcome()
    request.getfixturevalue("in_a_worker")
    given = outcome()
    if isinstance(expected, torch.Tensor):
        assert (given.dtype, given.shape, given.stride()) == (
            expected.dtype,
            expected.shape,
            expected.stride(),
        )
        assert torch.equal(given, expected)
    else:
        assert given == expected


def test_what_the_user_replaced_is_the_users(in_a_worker: Arena) -> None:
    def pad(batch: Any, *, collate_fn_map: Any = None) -> Any:
        return torch.nn.utils.rnn.pad_sequence(batch, batch_first=True)

    originals = {torch.Tensor: pad, int: lambda batch, *, collate_fn_map=None: sum(batch)}
    collate_into_slots({**torch.utils.data._utils.collate.default_collate_fn_map, **originals})
    batch = torch.utils.data.default_collate([(torch.ones(1), 1), (torch.ones(2), 2)])
    assert (batch[0].tolist(), batch[1]) == ([[1.0, 0.0], [1.0, 1.0]], 3)


def test_a_tensor_in_a_slot_is_read_from_where_it_lies() -> None:
    memory = memoryview(bytearray(1 << 20))
    area = Arena(memory)
    room = area.take(400_000)
    assert room is not None
    tensor = torch.frombuffer(room, dtype=torch.float32)
    tensor.fill_(3.0)
    data, fd = wire.encode_batch(0, [tensor.view(100, -1)], area, TorchServer.dumps)
    assert (fd, area.used_bytes) == (None, 400_000)
    assert wire.decode_results(data)[0].spans == ((0, 400_000, False),)
