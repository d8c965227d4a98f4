"""A batch that several workers make in pieces is the batch that one of them would have made."""

from __future__ import annotations

import os
import random
import time
from collections import namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataloader import DataLoader, Dataset, ExitReason, RestartPolicy, WorkerDiedError, get_worker_info
from dataloader.arena import SMALL_BYTES
from dataloader.batch_pool import BatchPool
from dataloader.joining import Joiner
from dataloader.ledger import Job
from dataloader.pieces import layout
from tests.datasets import Made, first_time
from tests.equality import fingerprint
from tests.in_pieces import always_in_pieces

SIZE = 20
BATCHES = 12
COUNT = SIZE * BATCHES
LARGE = SMALL_BYTES // 4  # of float32, in a row that is just large enough
SETTINGS: dict[str, Any] = {"batch_size": SIZE, "seed": 3}
WORKERS: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": "fork"}
POLICY = RestartPolicy(backoff=0.0, max_restarts=100)


@pytest.fixture(autouse=True)
def _in_pieces() -> Iterator[None]:
    with always_in_pieces():
        yield


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """The batches that were put together, by number, and whether all pieces lay in one slot."""
    numbers: list[tuple[int, bool]] = []
    join = Joiner.join

    def noted(self: Joiner, pool: BatchPool, job: Job) -> Any:
        batch = join(self, pool, job)
        shares = job.shared is not None and all(piece.slot is job.shared for piece in job.pieces)
        numbers.append((job.number, shares))
        return batch

    monkeypatch.setattr(Joiner, "join", noted)
    return numbers


def image(i: int, dtype: Any = np.float32, count: int = LARGE) -> np.ndarray[Any, Any]:
    return np.random.default_rng(i).integers(0, 100, count).astype(dtype)


def batches_of(dataset: Any, **settings: Any) -> list[Any]:
    with DataLoader(dataset, **{**SETTINGS, **settings}) as loader:
        return [fingerprint(batch) for batch in loader]


def assert_as_in_process(dataset: Any, **settings: Any) -> None:
    assert batches_of(dataset, **WORKERS, **settings) == batches_of(dataset, **settings)


PLAIN: dict[str, Callable[[int], Any]] = {
    "numbers": lambda i: i,
    "tuple": lambda i: (i, i / 3, f"{i}", b"b", i % 2 == 0, 1j * i),
    "scalars": lambda i: np.float32(i),
    "small array": lambda i: image(i, count=10),
    "large array": image,
    "just too small for a row": lambda i: image(i, count=LARGE - 1),
    "image and label": lambda i: (image(i), i),
    "dict": lambda i: {"image": image(i), "label": i, "mask": image(i, np.uint8, 4 * LARGE)},
    "list": lambda i: [image(i, np.int64), [i, image(i)]],
    "deeper": lambda i: {"a": (image(i), {"b": image(i + 1)}), "c": "c"},
    "rows and deeper": lambda i: (image(i), {"b": image(i + 1)}),
    "rows, and much that is none": lambda i: (image(i), "x" * 50_000),
    "one array twice": lambda i: (image(i),) * 2,
    "not native": lambda i: image(i, ">f4"),
    "every other": lambda i: image(i, count=2 * LARGE)[::2],
    "read-only": lambda i: np.frombuffer(image(i).tobytes(), np.float32),
    "times": lambda i: image(i, "i8").view("M8[s]"),
    "objects": lambda i: np.array([i, None, "x"], dtype=object),
    "random": lambda i: (random.random(), np.random.random(LARGE)),
    "ints, and a float in one piece": lambda i: i if i % SIZE else 0.5,
    "another dtype in one piece": lambda i: image(i, np.float64 if i % SIZE > 15 else np.float32),
    "another dtype in one sample": lambda i: image(i, np.float64 if i % SIZE == 3 else np.float32),
    "another shape in each batch": lambda i: image(i, count=LARGE + i // SIZE * 16),
    "another layout by turns": lambda i: [image(i), image(i + 1, count=LARGE * (1 + i // SIZE % 2))],
    "large in some batches": lambda i: image(i, count=LARGE if i // SIZE % 3 else 8),
}


@pytest.mark.slow
@pytest.mark.parametrize("make", [pytest.param(make, id=name) for name, make in PLAIN.items()])
def test_it_is_the_same_batch(make: Callable[[int], Any], joined: list[Any]) -> None:
    assert_as_in_process(Made(make, COUNT))
    assert len(joined) >= BATCHES // 2


def test_pieces_share_a_slot(joined: list[tuple[int, bool]]) -> None:
    assert_as_in_process(Made(lambda i: (image(i), i), COUNT))
    assert sum(shares for _, shares in joined) >= BATCHES // 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_workers", "start_method"), [(1, "fork"), (2, "forkserver"), (2, "spawn"), (3, "fork"), (5, "fork")]
)
@pytest.mark.filterwarnings("ignore:num_workers=")
def test_so_it_is_with_however_many_workers(num_workers: int, start_method: str) -> None:
    dataset = Made(lambda i: (image(i) + np.random.random(), random.random()), COUNT)
    settings = {"num_workers": num_workers, "multiprocessing_context": start_method, "shuffle": True}
    assert batches_of(dataset, **settings) == batches_of(dataset, shuffle=True)


def test_out_of_order_there_are_the_same_batches(joined: list[Any]) -> None:
    dataset = Made(lambda i: (image(i), i), COUNT)
    assert sorted(batches_of(dataset, **WORKERS, in_order=False)) == sorted(batches_of(dataset))
    assert joined


# ---- what does not come in pieces ----------------------------------------------------------------

Pair = namedtuple("Pair", "image label")


@dataclass
class Record:
    """A sample of the user's own."""

    image: Any
    label: int


class Words(dict[str, Any]):
    """A mapping that may do anything when it is asked."""


WHOLE: dict[str, Callable[[int], Any]] = {
    "named tuple": lambda i: Pair(image(i), i),
    "dataclass": lambda i: Record(image(i), i),
    "mapping": lambda i: Words(image=image(i)),
    "subclass": lambda i: image(i).view(np.recarray),
    "one of them": lambda i: [i, Pair(i, i) if i % SIZE == SIZE - 1 else (i, i)],
}


@pytest.mark.slow
@pytest.mark.parametrize("make", [pytest.param(make, id=name) for name, make in WHOLE.items()])
def test_samples_that_are_not_plain_are_made_by_one_worker(
    make: Callable[[int], Any], joined: list[Any]
) -> None:
    assert_as_in_process(Made(make, COUNT))
    assert joined == []


@pytest.mark.parametrize("persistent", [True, False])
def test_what_cannot_come_in_pieces_is_not_tried_again(persistent: bool, tmp_path: Path) -> None:
    made = tmp_path / "made"

    def make(i: int) -> Any:
        with open(made, "a") as file:
            file.write(f"{i}\n")
        return Record(image(i), i)

    settings = {**SETTINGS, **WORKERS, "persistent_workers": persistent}
    with DataLoader(Made(make, COUNT), **settings) as loader:
        assert len(list(loader)) == BATCHES
        assert made.read_text().count("\n") <= COUNT + SIZE  # the first batch was tried in pieces
        made.write_text("")
        assert len(list(loader)) == BATCHES
        assert made.read_text().count("\n") == COUNT


class Key:
    """Equal to nothing but itself: what arrives of two pieces are two keys."""


KEY = Key()


def test_batches_that_never_fit_together_are_given_up(tmp_path: Path) -> None:
    made = tmp_path / "made"

    def make(i: int) -> Any:
        with open(made, "a") as file:
            file.write(f"{i}\n")
        return {KEY: i}

    with DataLoader(Made(make, 4 * COUNT), **SETTINGS, **WORKERS) as loader:
        for _ in loader:
            pass
    assert made.read_text().count("\n") <= 4 * COUNT + 2 * SIZE


@pytest.mark.slow
def test_a_slot_is_not_lent_again_while_a_failed_batch_is_written_into_it() -> None:
    """One piece of batch 6 ends its workers, while another takes its time."""

    def make(i: int) -> Any:
        batch, position = divmod(i, SIZE)
        if batch == 6 and position == 1:
            os._exit(1)
        if batch == 6 and position >= layout(SIZE)[1][0]:
            time.sleep(0.1)
        return image(i)

    policy = RestartPolicy(backoff=0.0, max_attempts=2)
    kept = []
    with DataLoader(Made(make, 3 * COUNT), restart=policy, **SETTINGS, **WORKERS) as loader:
        iterator = iter(loader)
        for number in range(3 * BATCHES):
            if number == 6:
                with pytest.raises(WorkerDiedError):
                    next(iterator)
                continue
            kept.append((number, next(iterator)))
            time.sleep(0.02)
            del kept[:-3]
            for n, batch in kept:
                assert np.array_equal(batch, [image(i) for i in range(n * SIZE, (n + 1) * SIZE)])


def collate(samples: list[Any]) -> Any:
    return samples


class Together(Dataset[Any]):
    """Loads a batch by one call."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> int:
        return index

    def __getitems__(self, indices: list[int]) -> list[tuple[int, int]]:
        return [(index, len(indices)) for index in indices]


def test_batches_of_the_users_own_making_are_whole(joined: list[Any]) -> None:
    assert_as_in_process(range(COUNT), collate_fn=collate)
    assert_as_in_process(Together())
    assert joined == []


# ---- what a batch is to its user -----------------------------------------------------------------


def test_a_batch_may_be_kept_and_written_to() -> None:
    kept = []
    dataset = Made(lambda i: (image(i), i), 3 * COUNT)
    with DataLoader(dataset, **SETTINGS, **WORKERS) as loader:
        for number, (images, labels) in enumerate(loader):
            assert images.flags.writeable
            assert labels.tolist() == [*range(number * SIZE, (number + 1) * SIZE)]
            assert np.array_equal(images, np.stack([image(i) for i in labels]))
            images[:] = -number
            kept.append(images)
    assert all((images == -number).all() for number, images in enumerate(kept))


def test_epochs_that_are_left_leave_nothing_in_the_next() -> None:
    expected = batches_of(Made(image, COUNT), seed=0)
    with DataLoader(
        Made(image, COUNT), batch_size=SIZE, seed=0, persistent_workers=True, **WORKERS
    ) as loader:
        for count in (1, 2, 5, 3, 1, BATCHES):
            batches = [fingerprint(batch) for batch, _ in zip(loader, range(count), strict=False)]
            assert batches == expected[:count]


def test_its_slots_are_used_again() -> None:
    with DataLoader(Made(image, 4 * COUNT), **SETTINGS, **WORKERS) as loader:
        for _ in loader:
            pass
        (pool, _), *_ = loader._live.pools
        assert len(pool._slots) <= 2 * len(layout(SIZE)) + 8


# ---- what goes wrong -----------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [{5}, {13}, {3, 17}, {12, 19}])
def test_the_first_sample_that_raises_is_raised(bad: set[int]) -> None:
    def make(i: int) -> Any:
        if i - 2 * SIZE in bad:
            raise LookupError(f"no {i}")
        return image(i)

    with DataLoader(Made(make, COUNT), **SETTINGS, **WORKERS) as loader:
        iterator = iter(loader)
        batches = [next(iterator), next(iterator)]
        with pytest.raises(LookupError, match=f"no {min(bad) + 2 * SIZE}") as caught:
            next(iterator)
        assert f"batch 2, sample {min(bad) + 2 * SIZE}" in str(caught.value.__cause__)
        batches += iterator
    assert [fingerprint(batch) for batch in batches] == batches_of(
        [image(i) for i in range(COUNT) if i // SIZE != 2]
    )


def error_of(dataset: Any, **settings: Any) -> tuple[type, str]:
    with pytest.raises((TypeError, ValueError)) as caught:
        batches_of(dataset, **settings)
    return type(caught.value), str(caught.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda i: image(i, count=LARGE + (i == 30)),
        lambda i: None if i == 30 else image(i),
        lambda i: {"a": i} if i == 30 else {"b": i},
        lambda i: "x" if i == 30 else i,
    ],
    ids=["another shape", "None", "another key", "another type"],
)
def test_errors_are_those_of_one_worker(make: Callable[[int], Any]) -> None:
    assert error_of(Made(make, COUNT), **WORKERS) == error_of(Made(make, COUNT))


def test_samples_are_skipped_in_every_piece(joined: list[Any]) -> None:
    bad = {20, 27, 39, 41, *range(60, 70), *range(80, 100)}

    def make(i: int) -> Any:
        if i in bad:
            raise LookupError(f"no {i}")
        return image(i), i

    with DataLoader(Made(make, COUNT), on_error="skip", **SETTINGS, **WORKERS) as loader:
        batches = [fingerprint(batch) for batch in loader]
        assert [error.index for error in loader.skipped] == sorted(bad)
    assert batches == batches_of(Made(make, COUNT), on_error="skip")
    assert joined


@pytest.mark.slow
def test_a_poison_sample_costs_its_batch_nothing_else(joined: list[Any]) -> None:
    def make(i: int) -> Any:
        if i in (5, 26, 38) and get_worker_info() is not None:
            os.abort()
        return image(i), i

    with DataLoader(Made(make, COUNT), on_error="skip", restart=POLICY, **SETTINGS, **WORKERS) as loader:
        labels = [int(label) for _, labels in loader for label in labels]
        assert sorted(error.index for error in loader.skipped) == [5, 26, 38]
        assert {report.sample for report in loader.reports if report.is_death} == {5, 26, 38}
    assert labels == [i for i in range(COUNT) if i not in (5, 26, 38)]
    assert joined


def test_a_poison_sample_is_named() -> None:
    def make(i: int) -> Any:
        if i == 33:
            os._exit(3)
        return image(i)

    with DataLoader(Made(make, COUNT), restart=POLICY, **SETTINGS, **WORKERS) as loader:
        with pytest.raises(WorkerDiedError, match="Sample 33 has ended") as caught:
            list(loader)
        reports = caught.value.reports
    assert {(report.batch, report.sample, report.reason) for report in reports} == {
        (1, 33, ExitReason.EXITED)
    }


def test_a_death_costs_a_piece(tmp_path: Path) -> None:
    made = tmp_path / "made"

    def make(i: int) -> Any:
        with open(made, "a") as file:
            file.write(f"{i}\n")
        if i == SIZE * 5 and first_time(tmp_path / "died"):
            os._exit(1)
        return image(i)

    assert len(batches_of(Made(make, COUNT), restart=POLICY, **WORKERS)) == BATCHES
    times = [*map(int, made.read_text().split())]
    again = {i for i in times if times.count(i) > 1}
    start, stop = layout(SIZE)[0]
    assert SIZE * 5 in again
    assert again <= {*range(SIZE * 5 + start, SIZE * 5 + stop)} | {*range(SIZE)}  # the first is on trial
