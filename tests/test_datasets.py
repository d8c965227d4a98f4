"""Datasets made of others: which samples they have, how they load them, what they say of wrong arguments."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataloader import (
    ChainDataset,
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    MappedDataset,
    SamplerDataset,
    ShuffledDataset,
    StackDataset,
    Subset,
    WindowedDataset,
    random_split,
)
from dataloader.datasets import fetch_all, loads_together


class Table(Dataset[int]):
    """Sample i is 10 i; several come by one call, which is noted."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.calls: list[list[int]] = []

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        if not -self.length <= index < self.length:
            raise IndexError(index)
        return index % self.length * 10

    def __getitems__(self, indices: Sequence[int]) -> list[int]:
        self.calls.append(list(indices))
        return [self[index] for index in indices]


class Stream(IterableDataset[int]):
    def __init__(self, *samples: int) -> None:
        self.samples = samples

    def __iter__(self) -> Any:
        return iter(self.samples)

    def __len__(self) -> int:
        return len(self.samples)


def samples_of(dataset: Any) -> list[Any]:
    return list(dataset)


def plus_one(sample: int) -> int:
    return sample + 1


DERIVED: dict[str, Callable[[Any], Any]] = {
    "mapped": lambda data: MappedDataset(data, plus_one),
    "subset": lambda data: Subset(data, [3, 1, 1]),
    "sampled": lambda data: SamplerDataset(data, 20, seed=0),
    "shuffled": lambda data: ShuffledDataset(data, seed=0),
    "part of a split": lambda data: random_split(data, [0.5, 0.5], seed=0)[0],
    "windowed": lambda data: WindowedDataset(data, 3, step=2, drop_last=False),
    "concatenated": lambda data: ConcatDataset([data, range(5)]),
    "stacked as tuples": lambda data: StackDataset(data, range(10)),
    "stacked as dicts": lambda data: StackDataset(a=data, b=range(10)),
    "nested": lambda data: MappedDataset(Subset(ConcatDataset([[1], data]), [0, 5, 9]), plus_one),
}
EACH = pytest.mark.parametrize("derive", DERIVED.values(), ids=DERIVED)


@EACH
def test_several_samples_are_those_that_come_one_by_one(derive: Any) -> None:
    derived, plain = derive(Table(10)), derive([10 * i for i in range(10)])
    indices = [0, len(derived) - 1, 1, -1]
    assert fetch_all(derived, indices) == [derived[index] for index in indices]
    assert fetch_all(derived, indices) == fetch_all(plain, indices) == [plain[index] for index in indices]
    assert fetch_all(derived, []) == []


@EACH
def test_indices_are_passed_on_in_one_call(derive: Any) -> None:
    table = Table(10)
    derived = derive(table)
    fetch_all(derived, [0, 1])
    assert len(table.calls) == 1
    assert all(type(index) is int for index in table.calls[0])
    assert loads_together(derived)


@EACH
def test_where_nothing_behind_loads_together_samples_come_singly(derive: Any) -> None:
    assert not loads_together(derive(range(10)))


@EACH
def test_an_index_out_of_range_is_an_index_error(derive: Any) -> None:
    derived = derive(Table(10))
    assert len(list(derived)) == len(derived)  # which ends at the first
    with pytest.raises(IndexError):
        derived[-len(derived) - 1]


def test_workers_load_the_same() -> None:
    everything: Any = ConcatDataset([derive(Table(10)) for derive in DERIVED.values()])
    with DataLoader(everything, None, num_workers=1, multiprocessing_context="fork") as loader:
        assert list(loader) == [everything[index] for index in range(len(everything))]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_failing_sample_of_a_mapped_table_is_the_only_one_lost(num_workers: int) -> None:
    def fail_at_50(sample: int) -> int:
        if sample == 50:
            raise ValueError("no 50 please")
        return sample

    mapped: Any = Subset(MappedDataset(Table(10), fail_at_50), range(10))
    arguments: Any = {"multiprocessing_context": "fork"} if num_workers else {}
    with DataLoader(mapped, 5, num_workers=num_workers, on_error="skip", **arguments) as loader:
        assert [batch.tolist() for batch in loader] == [[0, 10, 20, 30, 40], [60, 70, 80, 90]]
    assert [error.index for error in loader.skipped] == [5]


def test_a_users_subclass_is_asked_by_its_own_getitem() -> None:
    class Doubled(Subset[int]):
        def __getitem__(self, index: int) -> int:
            return 2 * super().__getitem__(index)

    class Together(Doubled):
        def __getitems__(self, indices: Sequence[Any]) -> list[int]:
            return [-self[index] for index in indices]

    assert fetch_all(Doubled(Table(5), [2, 3]), [0, 1]) == [40, 60]
    assert not loads_together(Doubled(Table(5), [2, 3]))
    assert fetch_all(Together([1, 2], [0, 1]), [0, 1]) == [-2, -4]
    assert loads_together(Together([1, 2], [0, 1]))


# ---- windows -------------------------------------------------------------------------------------


@given(st.integers(0, 30), st.integers(1, 8), st.integers(1, 8), st.booleans())
def test_windows_are_slices(samples: int, size: int, step: int, drop_last: bool) -> None:
    data = list(range(samples))
    slices = [data[start : start + size] for start in range(0, samples, step)]
    whole = [window for window in slices if len(window) == size]
    rest = [window for window in slices[len(whole) :] if set(window) - {i for w in whole for i in w}]
    windows = WindowedDataset(data, size, step, drop_last)
    assert samples_of(windows) == whole + ([] if drop_last else rest[:1])
    assert len(windows) == len(samples_of(windows))


@pytest.mark.parametrize(
    ("step", "windows"),
    [
        (1, [[0, 1, 2], [1, 2, 3], [2, 3, 4]]),
        (2, [[0, 1, 2], [2, 3, 4]]),
        (3, [[0, 1, 2], [3, 4]]),
        (4, [[0, 1, 2], [4]]),
        (5, [[0, 1, 2]]),
    ],
)
def test_one_shorter_window_at_most_has_the_rest(step: int, windows: list[list[int]]) -> None:
    assert samples_of(WindowedDataset(range(5), 3, step, drop_last=False)) == windows


def test_windows_can_be_made_arrays() -> None:
    (batch,) = DataLoader(MappedDataset(WindowedDataset(np.eye(4), 3), np.stack), batch_size=2)
    assert batch.shape == (2, 3, 4)


# ---- chance --------------------------------------------------------------------------------------


DRAWN: dict[str, Any] = {
    "shuffled": lambda **given: ShuffledDataset(range(50), **given),
    "sampled": lambda **given: SamplerDataset(range(50), **given),
    "sampled once": lambda **given: SamplerDataset(range(50), 20, replacement=False, **given),
    "split": lambda **given: random_split(range(50), [30, 20], **given)[1],
}


@pytest.mark.parametrize("make", DRAWN.values(), ids=DRAWN)
def test_what_is_drawn_follows_from_seed_or_generator(make: Any) -> None:
    drawn = samples_of(make(seed=3))
    assert drawn == samples_of(make(seed=3)) != samples_of(make(seed=4))
    assert samples_of(make(generator=random.Random(1))) == samples_of(make(generator=random.Random(1)))
    assert samples_of(make(generator=np.random.default_rng(1))) == samples_of(
        make(generator=np.random.default_rng(1))
    )
    assert samples_of(make()) != samples_of(make())
    with pytest.raises(ValueError, match=r"^seed=1 and generator="):
        make(seed=1, generator=random.Random())


def test_the_orders_are_final() -> None:
    assert samples_of(ShuffledDataset(range(8), seed=0)) == [3, 6, 4, 0, 7, 5, 2, 1]
    assert [samples_of(part) for part in random_split(range(8), [5, 3], seed=0)] == [
        [3, 6, 4, 0, 7],
        [5, 2, 1],
    ]
    assert samples_of(SamplerDataset(range(8), 6, seed=0)) == [1, 0, 7, 2, 3, 3]


def test_drawn_samples_come_once_or_several_times() -> None:
    assert sorted(samples_of(ShuffledDataset(range(50)))) == list(range(50))
    once = samples_of(SamplerDataset(range(10), 25, replacement=False))
    assert sorted(once[:10]) == sorted(once[10:20]) == list(range(10))
    assert len(once) == 25
    assert len(set(samples_of(SamplerDataset(range(10), replacement=True, seed=0)))) < 10
    with pytest.raises(ValueError, match=r"^num_samples=0: give at least 1"):
        SamplerDataset(range(3), 0)


@given(st.integers(0, 60), st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_fractions_share_everything_out(samples: int, weights: list[int]) -> None:
    fractions = [weight / sum(weights) for weight in weights]
    parts = split_in_silence(range(samples), fractions)
    assert sorted(i for part in parts for i in part) == list(range(samples))
    assert all(abs(len(part) - samples * share) <= 1 for part, share in zip(parts, fractions, strict=True))


def split_in_silence(dataset: Any, lengths: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return random_split(dataset, lengths, seed=0)


def test_the_lengths_of_a_split_are_torchs() -> None:
    torch_data = pytest.importorskip("torch.utils.data")
    for samples, fractions in [(10, [0.33, 0.33, 0.34]), (7, [0.5, 0.5]), (11, [0.1, 0.2, 0.3, 0.4])]:
        theirs = torch_data.random_split(range(samples), fractions)
        assert [len(part) for part in random_split(range(samples), fractions)] == [
            len(part) for part in theirs
        ]


def test_an_empty_part_is_a_warning() -> None:
    with pytest.warns(UserWarning, match=r"^lengths\[1\]=0: this part has no samples"):
        assert [len(part) for part in random_split(range(3), [3, 0])] == [3, 0]


# ---- streams -------------------------------------------------------------------------------------


def test_a_chain_is_iterated_anew_each_time() -> None:
    chain: ChainDataset[int] = ChainDataset([Stream(1, 2), Stream(), [3]])
    assert samples_of(chain) == samples_of(chain) == [1, 2, 3]
    assert len(chain) == 3
    with pytest.raises(TypeError, match="has no len"):
        len(ChainDataset([iter([1])]))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_chain_is_loaded_as_a_stream(num_workers: int) -> None:
    arguments: Any = {"multiprocessing_context": "fork"} if num_workers else {}
    chain: Any = ChainDataset([Stream(1, 2), Stream(3, 4, 5)])
    with DataLoader(chain, batch_size=2, num_workers=num_workers, **arguments) as loader:
        assert [batch.tolist() for batch in loader] == [[1, 2], [3, 4], [5]]


# ---- arguments -----------------------------------------------------------------------------------


WRONG: list[tuple[Any, tuple[Any, ...], type[Exception], str]] = [
    (MappedDataset, ([1], 3), TypeError, "function=3 cannot be called"),
    (MappedDataset, (Stream(1), plus_one), TypeError, "dataset=.*Stream.* has no __len__: give a map-style"),
    (ConcatDataset, ([],), ValueError, r"datasets=\[\]: give at least one"),
    (ConcatDataset, ([[1], Stream(1)],), TypeError, r"datasets\[1\]=.* has no __len__"),
    (StackDataset, (), ValueError, "0 datasets without a name and 0 with one"),
    (StackDataset, ([1], [1, 2]), ValueError, r"lengths .*'args\[1\]': 2.* differ"),
    (StackDataset, (Stream(1),), TypeError, r"args\[0\]=.* has no __len__"),
    (WindowedDataset, ([1], 0), ValueError, "size=0: give at least 1"),
    (WindowedDataset, ([1], 2, 1.5), TypeError, "step=1.5: give a whole number"),
    (WindowedDataset, ([1], 2, 1, "no"), TypeError, "drop_last='no': give True or False"),
    (ChainDataset, ([[1], 2],), TypeError, r"datasets\[1\]=2 cannot be iterated"),
    (random_split, ([1], []), ValueError, r"lengths=\[\]: give at least one"),
    (random_split, ([1, 2], [1, 2]), ValueError, r"lengths=\[1, 2\], whose sum is 3"),
    (random_split, ([1, 2], [0.5, 0.6]), ValueError, r"lengths=\[0.5, 0.6\], whose sum is 1.1"),
    (random_split, ([1, 2], [3, -1]), ValueError, r"lengths\[1\]=-1: give a number of at least 0"),
    (random_split, ([1, 2], ["1", 1]), TypeError, r"lengths\[0\]='1': give a whole number"),
]


@pytest.mark.parametrize(("make", "args", "kind", "message"), WRONG, ids=[message for *_, message in WRONG])
def test_a_wrong_argument_is_named(make: Any, args: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=f"^{message}"):
        make(*args)


def test_a_stack_is_all_of_one_kind() -> None:
    with pytest.raises(ValueError, match=r"^1 datasets without a name and 1 with one"):
        StackDataset([1], a=[1])
    with pytest.raises(ValueError, match=r"^lengths {'a': 1, 'b': 0} differ"):
        StackDataset(a=[1], b=[])
