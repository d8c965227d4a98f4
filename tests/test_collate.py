"""default_collate gives what numpy's own stacking gives, in a slot or not; what it cannot do it explains."""

from __future__ import annotations

from array import array
from collections import OrderedDict, UserDict, UserList, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dataloader import arena, default_collate
from dataloader.arena import Arena
from tests.equality import fingerprint


class Boxes(NamedTuple):
    corners: Any
    label: Any


@dataclass
class Point:
    x: Any
    y: Any


@dataclass(frozen=True)
class Derived:
    """Counts how often it is made; one field is not for __init__."""

    side: Any
    area: Any = field(init=False)
    made: ClassVar[int] = 0

    def __post_init__(self) -> None:
        type(self).made += 1
        object.__setattr__(self, "area", self.side**2)


class Named(dict[str, Any]):
    """A mapping with an attribute of its own."""

    name = ""


# ---- equal to plain numpy ------------------------------------------------------------------------


def stacked(samples: Sequence[Any]) -> Any:
    """Plain numpy stacking: the definition of what default_collate gives."""
    first = samples[0]
    if isinstance(first, str | bytes):
        return list(samples)
    if isinstance(first, Mapping):
        return type(first)((key, stacked([sample[key] for sample in samples])) for key in first)  # type: ignore[call-arg]
    if isinstance(first, Point):
        return Point(stacked([sample.x for sample in samples]), stacked([sample.y for sample in samples]))
    if isinstance(first, tuple | list):
        fields = [stacked([sample[i] for sample in samples]) for i in range(len(first))]
        return type(first)(*fields) if isinstance(first, Boxes) else type(first)(fields)
    if isinstance(first, np.ndarray):
        return np.stack(samples)
    return np.array(samples)


# A few letters of each width: a table of all of Unicode takes Hypothesis seconds to make.
TEXT = st.text(st.sampled_from("aé€😀"), max_size=5)
PLAIN_DTYPES = st.one_of(
    hnp.boolean_dtypes(),
    hnp.integer_dtypes(),
    hnp.unsigned_integer_dtypes(),
    hnp.floating_dtypes(),
    hnp.complex_number_dtypes(),
    hnp.datetime64_dtypes(max_period="D", min_period="ms"),
    hnp.timedelta64_dtypes(),
    hnp.byte_string_dtypes(max_len=5),
)
RECORDS = [np.dtype([("a", "i1"), ("b", ">f8")]), np.dtype([("a", "u2", (2,)), ("b", "?")])]
DTYPES = st.one_of(PLAIN_DTYPES, st.sampled_from(RECORDS))
NUMBERS = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.complex_numbers(),
)


def arrays_alike(draw: st.DrawFn) -> st.SearchStrategy[Any]:
    return hnp.arrays(draw(DTYPES), draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)))


def arrays_of_text(draw: st.DrawFn) -> st.SearchStrategy[Any]:
    return hnp.arrays("U5", draw(hnp.array_shapes(max_dims=2, max_side=3)), elements=TEXT)


def arrays_of_several_dtypes(draw: st.DrawFn) -> st.SearchStrategy[Any]:
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=2, max_side=3))
    kinds = st.sampled_from(["?", "i1", ">i2", "u4", "u8", "f2", ">f4", "f8", "c8"])
    return kinds.flatmap(lambda kind: hnp.arrays(kind, shape))


def numpy_scalars(draw: st.DrawFn) -> st.SearchStrategy[Any]:
    dtype = draw(PLAIN_DTYPES.filter(lambda dtype: dtype.kind != "S"))
    return hnp.arrays(dtype, 1).map(lambda array: array[0])


Kind = Callable[[st.DrawFn], st.SearchStrategy[Any]]
LEAVES: list[Kind] = [
    lambda _: st.booleans(),
    lambda _: st.integers(-(2**63), 2**63 - 1),
    lambda _: st.floats(),
    lambda _: st.complex_numbers(),
    lambda _: NUMBERS,
    lambda _: TEXT,
    lambda _: st.binary(max_size=5),
    numpy_scalars,
    arrays_alike,
    arrays_of_text,
    arrays_of_several_dtypes,
]
NESTS = ["leaf", "leaf", "dict", "ordered", "tuple", "list", "named", "dataclass"]


def nests(draw: st.DrawFn, depth: int) -> st.SearchStrategy[Any]:
    """Draw what a sample looks like; return what samples are drawn from."""
    kind = draw(st.sampled_from(NESTS)) if depth else "leaf"
    if kind == "leaf":
        leaf: Kind = draw(st.sampled_from(LEAVES))
        return leaf(draw)
    if kind in ("named", "dataclass"):
        made = Boxes if kind == "named" else Point
        return st.builds(made, nests(draw, depth - 1), nests(draw, depth - 1))
    fields = [nests(draw, depth - 1) for _ in range(draw(st.integers(0, 3)))]
    if kind == "tuple":
        return st.tuples(*fields)
    if kind == "list":
        return st.tuples(*fields).map(list)
    dicts = st.fixed_dictionaries(dict(zip(("image", 7, None), fields, strict=False)))
    return dicts.map(OrderedDict) if kind == "ordered" else dicts


@st.composite
def batches(draw: st.DrawFn) -> list[Any]:
    sample = nests(draw, depth=3)
    return draw(st.lists(sample, min_size=1, max_size=6))


@pytest.mark.slow
@given(batches())
def test_collating_is_plain_stacking(samples: list[Any]) -> None:
    assert fingerprint(default_collate(samples)) == fingerprint(stacked(samples))


@pytest.mark.slow
@given(batches(), st.integers(0, 4000))
def test_collating_into_a_slot_is_plain_stacking(samples: list[Any], room_bytes: int) -> None:
    """Whether all of it, a part or nothing fits in. (Arrays as small as these would not go there.)"""
    with pytest.MonkeyPatch.context() as patch, arena.use(Arena(memoryview(bytearray(room_bytes)))):
        patch.setattr(arena, "SMALL_BYTES", 1)
        assert fingerprint(default_collate(samples)) == fingerprint(stacked(samples))


def test_large_arrays_are_stacked_in_the_slot() -> None:
    samples = [{"image": np.full((100, 100, 3), i, np.uint8), "label": i} for i in range(4)]
    room = memoryview(bytearray(1 << 18))
    with arena.use(Arena(room)):
        batch = default_collate(samples)
    assert fingerprint(batch) == fingerprint(stacked(samples))
    assert np.may_share_memory(batch["image"], np.frombuffer(room, np.uint8))
    assert not np.may_share_memory(batch["label"], np.frombuffer(room, np.uint8))


LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "column by column": np.asfortranarray,
    "every other row": lambda array: array[::2],
    "backwards": lambda array: array[:, ::-1],
    "one row again and again": lambda array: np.broadcast_to(array[:1], array.shape),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_arrays_of_any_memory_layout_are_stacked(layout: str) -> None:
    samples = [LAYOUTS[layout](np.arange(24.0).reshape(4, 6) + i) for i in range(3)]
    assert fingerprint(default_collate(samples)) == fingerprint(stacked(samples))


def test_a_batch_is_a_copy() -> None:
    sample = np.zeros(3)
    batch = default_collate([sample])
    sample[:] = 1
    assert batch.tolist() == [[0.0, 0.0, 0.0]]


def test_object_arrays_keep_their_objects() -> None:
    thing = object()
    batch = default_collate([np.array([thing, None], object)] * 2)
    assert batch.dtype == object
    assert batch.shape == (2, 2)
    assert batch[1, 0] is thing


def test_a_dataclass_is_neither_made_anew_nor_changed() -> None:
    samples = [Derived(2), Derived(3)]
    made = Derived.made
    batch = default_collate(samples)
    assert (batch.side.tolist(), batch.area.tolist()) == ([2, 3], [4, 9])
    assert (type(batch), Derived.made, samples[0].side) == (Derived, made, 2)


@pytest.mark.parametrize(
    "make",
    [
        lambda **items: defaultdict(list, items),
        lambda **items: Named(items),
        lambda **items: UserDict(items),
        lambda **items: MappingProxyType(items),
    ],
    ids=["defaultdict", "a subclass", "UserDict", "a proxy"],
)
def test_mappings_keep_their_type(make: Any) -> None:
    samples = [make(x=1, y="a"), make(x=2, y="b")]
    batch = default_collate(samples)
    assert type(batch) is type(samples[0])
    assert (batch["x"].tolist(), batch["y"], list(batch)) == ([1, 2], ["a", "b"], ["x", "y"])
    assert samples[0]["x"] == 1


def test_mappings_keep_what_else_they_have() -> None:
    samples = [Named(x=1), Named(x=2)]
    samples[0].name = "first"
    assert default_collate(samples).name == "first"
    assert default_collate([defaultdict(list, x=1)])["new"] == []


@pytest.mark.parametrize(
    "make", [UserList, deque, lambda items: array("q", items)], ids=["UserList", "deque", "array"]
)
def test_sequences_keep_their_type_if_that_can_hold_batches(make: Any) -> None:
    batch = default_collate([make([1, 2]), make([3, 4])])
    assert [column.tolist() for column in batch] == [[1, 3], [2, 4]]
    assert type(batch) is (list if make([1]).__class__ is array else type(make([])))


def test_ranges_become_lists() -> None:
    assert fingerprint(default_collate([range(2), range(5, 7)])) == fingerprint(
        [np.array([0, 5]), np.array([1, 6])]
    )


# ---- what it gives, in figures -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("samples", "dtype"),
    [
        ([True, False], "bool"),
        ([1, 2], "int64"),
        ([True, 2], "int64"),
        ([2**63, 2**64 - 1], "uint64"),
        ([1.0, 2.0], "float64"),
        ([1, 2.5], "float64"),
        ([1, 2j], "complex128"),
        ([np.float32(1), np.float32(2)], "float32"),
        ([np.float32(1), np.float64(2)], "float64"),
        ([np.zeros(2, "i4"), np.zeros(2, "f4")], "float64"),
        ([np.array(1, "i8"), np.array(1.5, "f4")], "float64"),
        ([np.zeros(2, ">f4"), np.zeros(2, ">f4")], "float32"),
        ([np.array("a"), np.array("abc")], "<U3"),
        ([np.zeros(2), [1, 2]], "float64"),
        ([np.array(1.5), 1], "float64"),
    ],
)
def test_the_dtype_is_numpys(samples: list[Any], dtype: str) -> None:
    batch = default_collate(samples)
    assert batch.dtype == np.dtype(dtype)
    assert batch.dtype.isnative
    assert batch.shape == (2, *np.shape(samples[0]))


def test_nothing_is_rounded_to_the_first_samples_dtype() -> None:
    assert default_collate([np.array([1]), np.array([1.5])]).tolist() == [[1.0], [1.5]]


def test_fields_keep_the_order_of_the_first_sample() -> None:
    assert list(default_collate([{"b": 1, "a": 2}, {"a": 3, "b": 4}])) == ["b", "a"]


def test_a_list_among_tuples_is_a_sequence_of_fields() -> None:
    assert fingerprint(default_collate([(1, 2), [3, 4]])) == fingerprint((np.array([1, 3]), np.array([2, 4])))


# ---- errors --------------------------------------------------------------------------------------


class Opaque:
    pass


def test_an_error_names_the_field() -> None:
    boxes = [{"meta": [0, Point(1, np.zeros(2))]}, {"meta": [0, Point(1, np.zeros(3))]}]
    with pytest.raises(ValueError, match=r"\(3,\) in sample 1 in field \['meta'\]\[1\]\.y: pad them, or"):
        default_collate(boxes)


def test_an_error_names_the_samples_by_their_indices() -> None:
    with (
        arena.use(None, [7, "b", 9]),
        pytest.raises(ValueError, match=r"\(2,\) in sample 0 \(index 7\), \(3,\) in"),
    ):
        default_collate([np.zeros(2), np.zeros(2), np.zeros(3)])
    with (
        arena.use(None, [7, "b"]),
        pytest.raises(TypeError, match=r"None into a batch, as in sample 1 \(index 'b'\)"),
    ):
        default_collate([{"x": 1}, {"x": None}])
    with arena.use(None, [7, "b", 9]), pytest.raises(TypeError, match="as in sample 1: return"):
        default_collate([1, None])


@pytest.mark.parametrize(
    ("samples", "kind", "message"),
    [
        ([None, 1], TypeError, "cannot put None into a batch, as in sample 0: return numbers"),
        ([1, None], TypeError, "cannot put None into a batch, as in sample 1: return numbers"),
        ([Opaque()], TypeError, "cannot put tests.test_collate.Opaque objects into a batch"),
        ([{"a": Opaque()}], TypeError, "or pass a collate_fn"),
        ([{1}], TypeError, "builtins.set"),
        (
            [1, "a"],
            TypeError,
            "needs samples of one type: int in sample 0, str in sample 1: return",
        ),
        ([1, 2, b"a"], TypeError, "int in sample 0, bytes in sample 2"),
        ([1, [1]], TypeError, "int in sample 0, list in sample 1"),
        ([1, np.ones(1)], TypeError, "int in sample 0, ndarray in sample 1"),
        ([1.5, np.datetime64("2020")], TypeError, "float in sample 0, datetime64 in sample 1"),
        ([{"a": 1}, 5], TypeError, "dict in sample 0, int in sample 1"),
        ([(1,), (2,), 5], TypeError, "tuple in sample 0, int in sample 2"),
        ([[1], "a"], TypeError, "list in sample 0, str in sample 1"),
        ([1, 2**64], ValueError, "no 64-bit integer type holds: use float or str"),
        ([-1, 2**63], ValueError, "no 64-bit integer type holds"),
        ([10**400], ValueError, "no 64-bit integer type holds"),
        (
            [np.zeros(2), np.zeros(2), np.zeros((2, 1))],
            ValueError,
            r"different shapes: \(2,\) in sample 0, \(2, 1\) in sample 2: pad them, or pass a collate_fn",
        ),
        ([np.zeros(2), 5], ValueError, r"\(2,\) in sample 0, \(\) in sample 1"),
        (
            [{"a": 1}, {"b": 1}],
            ValueError,
            r"same keys in every sample: \['a'\] in sample 0, \['b'\] in",
        ),
        ([{"a": 1}, {"a": 1, "b": 1}], ValueError, r"\['a', 'b'\] in sample 1"),
        (
            [(1,), (1,), (1, 2)],
            ValueError,
            "of one length: 1 in sample 0, 2 in sample 2",
        ),
        ([], ValueError, "got an empty batch: let the batch_sampler give none"),
        ([Point(1, 2), {"x": 1}], TypeError, "Point in sample 0, dict in sample 1"),
        ([Point], TypeError, "cannot put builtins.type objects into a batch"),
    ],
)
def test_what_cannot_be_collated_is_explained(samples: list[Any], kind: type, message: str) -> None:
    with pytest.raises(kind, match=message):
        default_collate(samples)
