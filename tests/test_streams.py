"""Iterable datasets: order, ends, errors, deaths and warnings; in process, with toys, with workers."""

from __future__ import annotations

from typing import Any

import pytest

from dataloader.iterators import InProcessIterator, WorkerIterator
from dataloader.review import Review
from dataloader.sample_errors import OnError
from dataloader.stream_ledger import OwnStream, Streams, StreamSource
from dataloader.streams import StreamRecipe
from supervisor.verdict import ExitReason
from tests.streams import Lengths, Numbers, OwnIterator, StatefulNumbers
from tests.toy_pool import ToyPool, unwatched

ALL_KINDS = [Numbers, StatefulNumbers, OwnIterator]


def streams(workers: int, size: int, length: int | None = None) -> Streams:
    return Streams(workers, size, 0, "Test", length, set())


def recipe_of(dataset: Any, batch_size: int | None = 2, **options: Any) -> StreamRecipe:
    return StreamRecipe(dataset, list if batch_size else lambda sample: sample, batch_size, **options)


def in_process(recipe: StreamRecipe, *, on_error: OnError = "raise", epoch: int = 0) -> InProcessIterator:
    recipe.is_in_process = True
    return InProcessIterator(
        recipe.fresh(),
        OwnStream(streams(0, recipe.batch_size or 1)),
        seed=0,
        watch=unwatched(),
        review=Review(on_error, epoch),
    )


def with_toys(
    recipe: StreamRecipe,
    workers: int,
    *,
    deaths: dict[int, int] | None = None,
    prefetch: int = 2,
    in_order: bool = True,
    on_error: OnError = "raise",
    reason: ExitReason = ExitReason.KILLED,
) -> WorkerIterator:
    pool = ToyPool(recipe, workers, prefetch, deaths)
    pool.reason = reason
    return WorkerIterator(
        pool,
        StreamSource(streams(workers, recipe.batch_size or 1), prefetch, in_order=in_order),
        seed=0,
        window=workers * prefetch,
        in_order=in_order,
        keep_workers=True,
        watch=unwatched(),
        review=Review(on_error, 0, max_attempts=3),
    )


def turns(lengths: tuple[int, ...], size: int, *, drop_last: bool = False) -> list[list[int]]:
    """Return the batches of ``Lengths(lengths)`` in torch's order."""
    shards = []
    for stream, length in enumerate(lengths):
        numbers = range(100 * stream, 100 * stream + length)
        batches = [list(numbers[at : at + size]) for at in range(0, length, size)]
        shards.append([batch for batch in batches if len(batch) == size or not drop_last])
    rounds = max(map(len, shards))
    return [shard[turn] for turn in range(rounds) for shard in shards if turn < len(shard)]


# ---- order and ends ------------------------------------------------------------------------------


@pytest.mark.parametrize("lengths", [(4, 4), (7, 2, 0), (0, 0), (1, 9), (5,), (2, 6, 3, 1)], ids=str)
@pytest.mark.parametrize("prefetch", [1, 2, 3])
@pytest.mark.parametrize("drop_last", [False, True])
def test_streams_take_turns_and_one_that_has_ended_is_passed_over(
    lengths: tuple[int, ...], prefetch: int, drop_last: bool
) -> None:
    recipe = recipe_of(Lengths(lengths), drop_last=drop_last)
    iterator = with_toys(recipe, len(lengths), prefetch=prefetch)
    assert list(iterator) == turns(lengths, 2, drop_last=drop_last)
    assert list(iterator) == []


def test_a_stream_without_batches_gives_single_samples() -> None:
    assert list(with_toys(recipe_of(Lengths((3, 1)), batch_size=None), 2)) == [0, 100, 1, 2]
    assert list(in_process(recipe_of(Lengths((3,)), batch_size=None))) == [0, 1, 2]


@pytest.mark.parametrize("drop_last", [False, True])
def test_in_process_there_is_one_stream(drop_last: bool) -> None:
    recipe = recipe_of(Lengths((5,)), drop_last=drop_last)
    assert list(in_process(recipe)) == turns((5,), 2, drop_last=drop_last)


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_one_worker_gives_the_bytes_of_none(kind: Any) -> None:
    recipe = recipe_of(kind(9))
    assert list(in_process(recipe)) == list(with_toys(recipe, 1))
    assert list(in_process(recipe, epoch=1)) != list(in_process(recipe))


def test_several_streams_of_one_process_do_not_mix() -> None:
    recipe = recipe_of(Numbers(6))
    expected = list(in_process(recipe))
    first, second = in_process(recipe), in_process(recipe)
    assert [(next(first), next(second)) for _ in range(3)] == [(batch, batch) for batch in expected]


def test_out_of_order_a_stream_that_lags_holds_nobody_up() -> None:
    iterator = with_toys(recipe_of(Lengths((4, 20))), 2, in_order=False)
    pool = iterator._pool
    assert isinstance(pool, ToyPool)
    laggard = pool.toys.pop(0)
    fast = [next(iterator) for _ in range(9)]
    assert fast == turns((0, 20), 2)[:9]
    pool.toys[0] = laggard
    assert sorted(fast + list(iterator)) == sorted(turns((4, 20), 2))


def test_no_more_is_handed_out_than_the_window_allows() -> None:
    iterator = with_toys(recipe_of(Lengths((30, 2, 30))), 3, prefetch=2)
    pool = iterator._pool
    assert isinstance(pool, ToyPool)
    for _ in range(20):
        next(iterator)
        assert all(len(link.leases) <= 2 for link in pool._links.values())
        assert len(iterator._epoch.jobs) <= 3 * 2 + 1
