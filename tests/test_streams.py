"""Iterable datasets: order, ends, errors, deaths and warnings; in process, with toys, with workers."""

from __future__ import annotations

import copy
import json
import logging
import os
import signal
import time
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataloader import DataLoader, IterableDataset, RestartPolicy, get_worker_info
from dataloader.in_process_iterator import InProcessIterator
from dataloader.pace import Pace
from dataloader.review import Review
from dataloader.sample_errors import OnError
from dataloader.stream_ledger import OwnStream, StreamEpoch, Streams, StreamSource
from dataloader.stream_recipe import StreamRecipe
from dataloader.worker_iterator import WorkerIterator
from supervisor.channel import MessageLost
from supervisor.report import WorkerDiedError
from supervisor.verdict import ExitReason
from tests.streams import Lengths, Numbers, OwnIterator, StatefulLengths, StatefulNumbers, Unshared
from tests.toy_pool import Interrupt, Interrupter, ToyPool, interrupt, unwatched

pytestmark = pytest.mark.slow

ALL_KINDS = [Numbers, StatefulNumbers, OwnIterator]


def streams(workers: int, size: int, length: int | None = None) -> Streams:
    return Streams(workers, size, 0, "Test", length, set())


def recipe_of(dataset: Any, batch_size: int | None = 2, **options: Any) -> StreamRecipe:
    return StreamRecipe(dataset, list if batch_size else lambda sample: sample, batch_size, **options)


def in_process(recipe: StreamRecipe, *, on_error: OnError = "raise", epoch: int = 0) -> InProcessIterator:
    recipe.is_in_process = True
    return InProcessIterator(
        copy.deepcopy(recipe).fresh(),
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
    max_attempts: int = 3,
) -> WorkerIterator:
    pool = ToyPool(recipe, workers, prefetch, deaths)
    pool.reason = reason
    return WorkerIterator(
        pool,
        StreamSource(streams(workers, recipe.batch_size or 1), prefetch, in_order=in_order),
        seed=0,
        pace=Pace(workers, prefetch),
        in_order=in_order,
        keep_workers=True,
        watch=unwatched(),
        review=Review(on_error, 0, max_attempts),
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


@pytest.fixture
def handler() -> Iterator[None]:
    previous = signal.signal(signal.SIGUSR1, interrupt)
    yield
    signal.signal(signal.SIGUSR1, previous)


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


# ---- deaths --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ALL_KINDS)
@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("deaths", [{0: 0}, {1: 0, 2: 1}, {2: 0, 3: 0, 4: 1}, {6: 1}], ids=str)
def test_a_stream_goes_on_with_the_same_bytes(kind: Any, deaths: dict[int, int], in_order: bool) -> None:
    recipe = recipe_of(kind(27))
    expected = list(with_toys(recipe, 2))
    iterator = with_toys(recipe, 2, deaths=deaths, in_order=in_order)
    pool = iterator._pool
    assert isinstance(pool, ToyPool)
    come = list(iterator)
    assert (come if in_order else sorted(come)) == (expected if in_order else sorted(expected))
    assert len(pool.reports) == len(deaths)


@st.composite
def weathers(draw: st.DrawFn) -> dict[str, Any]:
    """Uneven streams, and deaths of their workers."""
    lengths = tuple(draw(st.lists(st.integers(0, 9), min_size=1, max_size=4)))
    deaths = st.dictionaries(st.integers(0, 12), st.integers(0, len(lengths) - 1), max_size=5)
    return {
        "dataset": draw(st.sampled_from([Lengths, StatefulLengths]))(lengths),
        "size": draw(st.integers(1, 4)),
        "drop_last": draw(st.booleans()),
        "in_order": draw(st.booleans()),
        "prefetch": draw(st.integers(1, 3)),
        "deaths": draw(deaths),
    }


@settings(max_examples=60, deadline=None)
@given(weathers())
def test_whoever_dies_the_batches_are_those_of_torchs_order(weather: dict[str, Any]) -> None:
    dataset = weather["dataset"]
    recipe = recipe_of(dataset, weather["size"], drop_last=weather["drop_last"])
    options = {name: weather[name] for name in ("deaths", "prefetch", "in_order")}
    come = list(with_toys(recipe, len(dataset.lengths), **options))
    expected = turns(dataset.lengths, weather["size"], drop_last=weather["drop_last"])
    if weather["in_order"]:
        assert come == expected
    for stream in range(len(dataset.lengths)):  # each stream's come in its order, whatever the others do
        assert [batch for batch in come if batch[0] // 100 == stream] == [
            batch for batch in expected if batch[0] // 100 == stream
        ]


def test_drawing_again_is_logged_once_with_its_cost(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "dataloader"):
        list(with_toys(recipe_of(Numbers(40)), 2, deaths={4: 0}))
    begun, done = caplog.messages
    assert begun.startswith("worker 0 begins its stream anew, and draws ")
    assert done.startswith("stream 0 was drawn again up to batch ")
    assert "samples in" in done
    caplog.clear()
    with caplog.at_level(logging.INFO, "dataloader"):
        list(with_toys(recipe_of(StatefulNumbers(40)), 2, deaths={4: 0}))
        list(with_toys(recipe_of(OwnIterator(40)), 2, deaths={4: 0}))
    assert caplog.messages == []


def test_results_that_a_dead_worker_had_sent_are_used() -> None:
    iterator = with_toys(recipe_of(Numbers(24)), 2, deaths={3: 0}, prefetch=3)
    pool = iterator._pool
    assert isinstance(pool, ToyPool)
    list(iterator)
    made = sorted(number for toy in pool.hired for number in toy.made if number < 12)
    assert made == list(range(12))


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_a_result_that_did_not_arrive_is_made_again(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = recipe_of(kind(40))
    expected = list(with_toys(recipe, 2))
    iterator = with_toys(recipe, 2)
    pool = iterator._pool
    assert isinstance(pool, ToyPool)
    unpack = pool._unpack
    lost: list[Any] = []

    def lose(raw: Any) -> Any:
        if len(lost) < 3 and len(pool.hired[0].made) > 2:
            lost.append(raw)
            raise MessageLost("its descriptors")
        return unpack(raw)

    monkeypatch.setattr(pool, "_unpack", lose)
    assert list(iterator) == expected
    assert len(lost) == 3


def test_a_state_too_large_for_a_message_travels_all_the_same() -> None:
    class Large(StatefulNumbers):
        def state_dict(self) -> dict[str, Any]:
            return {**super().state_dict(), "buffer": b"x" * 300_000}

    recipe = recipe_of(Large(20))
    expected = list(with_toys(recipe, 2))
    assert list(with_toys(recipe, 2, deaths={2: 0, 3: 1})) == expected


def test_a_stream_that_is_another_when_it_is_iterated_anew_is_an_error() -> None:
    class Shrinking(IterableDataset[int]):
        length = 20

        def __iter__(self) -> Iterator[int]:
            Shrinking.length -= 15
            return iter(range(Shrinking.length + 15))

    iterator = with_toys(recipe_of(Shrinking()), 1, deaths={4: 0})
    come = []
    with pytest.raises(RuntimeError, match=r"the stream cannot go on after \d+ samples") as caught:
        come += list(iterator)
    assert "iterated anew, the dataset gave only 5 samples" in str(caught.value.__cause__)
    assert list(iterator) == []


def test_a_position_at_which_workers_die_is_poison_and_ends_its_stream() -> None:
    recipe = recipe_of(Numbers(16))
    iterator = with_toys(recipe, 2, deaths={2: 0}, reason=ExitReason.CRASHED, max_attempts=1)
    pool = iterator._pool
    assert isinstance(pool, ToyPool)
    come: list[Any] = []
    with pytest.raises(WorkerDiedError, match=r"Sample 0 of stream 0 has ended 1 worker\b.*stream ends here"):
        come.extend(iterator)
    come.extend(iterator)
    numbers = [number for batch in come for number, *_ in batch]
    assert sorted(number for number in numbers if number % 2) == [1, 3, 5, 7, 9, 11, 13, 15]
    assert [number for number in numbers if number % 2 == 0] == [0, 2, 4, 6]
    (report,) = pool.reports
    assert (report.batch, report.sample) == (4, 0)
    assert pool.hired[2].made == []  # nobody tries what is behind it


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dataset", "workers", "deaths", "in_order", "first"),
    [
        (Numbers(10), 2, {2: 1}, True, 1),
        (StatefulNumbers(9), 2, {1: 0, 2: 0}, True, 7),
        (Lengths((6, 1, 3)), 3, {2: 1}, False, 13),
        (Numbers(5), 0, {}, True, 3),
        (StatefulNumbers(5), 0, {}, True, 5),
        (OwnIterator(5), 0, {}, True, 11),
    ],
    ids=["numbers", "stateful", "uneven, out of order", "own numbers", "own stateful", "own iterator"],
)
def test_an_interrupt_at_some_place_loses_nothing(
    handler: None, dataset: Any, workers: int, deaths: dict[int, int], in_order: bool, first: int
) -> None:
    def run(at: int | None) -> tuple[list[Any], str]:
        interrupter = Interrupter(at)
        iterator: Any
        if workers:
            iterator = with_toys(recipe_of(dataset), workers, deaths=deaths, in_order=in_order)
            iterator._pool.interrupter = interrupter
        else:
            iterator = in_process(recipe_of(dataset))
        taken = []
        while True:
            try:
                with interrupter.watching():
                    batch = next(iterator)
            except Interrupt:
                continue
            except StopIteration:
                break
            taken.append(batch)
        assert iterator._watch.tally.delivered.batches == len(taken), interrupter.place
        epoch = iterator._epoch
        assert isinstance(epoch, StreamEpoch)
        progress = epoch.progress()
        assert sum(checkpoint.samples for checkpoint in progress.checkpoints) == sum(map(len, taken))
        assert all(progress.ended), interrupter.place
        return (taken if in_order else sorted(taken)), interrupter.place

    expected, _ = run(None)
    at = first
    while True:
        taken, place = run(at)
        if not place:
            return
        assert taken == expected, place
        at += 149 if workers else 11


# ---- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_in_the_stream_comes_as_itself_and_the_stream_goes_on_where_it_can(workers: int) -> None:
    recipe = recipe_of(OwnIterator(12, raises_at=(3, 4)))
    iterator = with_toys(recipe, workers) if workers else in_process(recipe)
    come, errors = taken_with_errors(iterator)
    assert [error.args for error in errors] == [(3,), (4,)]
    lost_with_them = {2} if not workers else {1}  # what was drawn for the same batch, as in torch
    assert sorted(come) == sorted(set(range(12)) - {3, 4} - lost_with_them)


def taken_with_errors(iterator: Any) -> tuple[list[int], list[Exception]]:
    come: list[int] = []
    errors: list[Exception] = []
    while True:
        try:
            batch = next(iterator)
        except StopIteration:
            return come, errors
        except LookupError as error:
            errors.append(error)
            continue
        come += [number for number, *_ in batch]


def test_a_generator_that_raises_has_ended() -> None:
    def fail(number: int) -> None:
        if number == 2:
            raise LookupError(number)

    iterator = with_toys(recipe_of(Lengths((6, 6), fail)), 2)
    come: list[Any] = []
    with pytest.raises(LookupError):
        come.extend(iterator)
    come.extend(iterator)
    assert come == [[0, 1], [100, 101], [102, 103], [104, 105]]


def test_after_an_error_a_death_loses_nothing_more() -> None:
    recipe = recipe_of(OwnIterator(24, raises_at=(4,)))
    expected = taken_with_errors(with_toys(recipe, 2))[0]
    for wait in range(8):
        come, errors = taken_with_errors(with_toys(recipe, 2, deaths={wait: 0}))
        assert (come, len(errors)) == (expected, 1), wait


class NoState(OwnIterator):
    """Its iterators go on after an exception, and do not know where they are."""

    def __iter__(self) -> Any:
        iterator = super().__iter__()
        iterator.state_dict = None  # type: ignore[assignment, method-assign]
        return iterator


def test_without_a_state_a_death_after_an_error_loses_nothing_either() -> None:
    recipe = recipe_of(NoState(24, raises_at=(4,)))
    expected = taken_with_errors(with_toys(recipe, 2))[0]
    for wait in range(8):
        come, errors = taken_with_errors(with_toys(recipe, 2, deaths={wait: 0}))
        assert (come, len(errors)) == (expected, 1), wait


def test_a_dataset_that_cannot_be_iterated_says_so_once_for_each_stream() -> None:
    class Broken(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            raise LookupError("no such file")

    for iterator in (with_toys(recipe_of(Broken()), 1), in_process(recipe_of(Broken()))):
        with pytest.raises(LookupError, match="no such file"):
            next(iterator)
        assert list(iterator) == []


def test_an_error_in_collate_comes_instead_of_its_batch_alone() -> None:
    def collate(samples: list[int]) -> list[int]:
        return samples if samples[0] != 2 else [1 // 0]

    recipe = StreamRecipe(Lengths((6,)), collate, 2)
    for iterator in (with_toys(recipe, 1), in_process(recipe)):
        assert next(iterator) == [0, 1]
        with pytest.raises(ZeroDivisionError):
            next(iterator)
        assert list(iterator) == [[4, 5]]


# ---- skipping ------------------------------------------------------------------------------------


class FailingGenerator(StatefulNumbers):
    """A generator that raises at some numbers; its state is past them then."""

    raises_at = (2, 3, 6)

    def __iter__(self) -> Iterator[Any]:
        for sample in super().__iter__():
            if sample[0] in self.raises_at:
                raise LookupError(sample[0])
            yield sample


@pytest.mark.parametrize("kind", [FailingGenerator, lambda length: OwnIterator(length, (2, 3, 6))])
@pytest.mark.parametrize("deaths", [{}, {2: 0}, {3: 0}], ids=str)
def test_a_sample_that_raises_is_skipped(kind: Any, deaths: dict[int, int]) -> None:
    recipe = recipe_of(kind(11), may_skip=True)
    for workers in (0, 1) if not deaths else (1,):
        if workers:
            iterator: Any = with_toys(recipe, 1, deaths=deaths, on_error="skip")
        else:
            iterator = in_process(recipe, on_error="skip")
        come = [[number for number, *_ in batch] for batch in iterator]
        assert come == [[0, 1], [4, 5], [7], [8, 9], [10]]
        assert [error.index for error in iterator._watch.tally.skipped] == [2, 3, 6]


def test_what_cannot_be_passed_is_raised_whatever_is_asked_for() -> None:
    class Stuck(StatefulNumbers):
        def __iter__(self) -> Iterator[Any]:
            while self.position < self.length:
                if self.position == 3:
                    raise LookupError("for ever")
                yield self.position
                self.position += 1

    for iterator in (
        with_toys(recipe_of(Stuck(9), may_skip=True), 1, on_error="skip"),
        in_process(recipe_of(Stuck(9), may_skip=True), on_error="skip"),
    ):
        assert [next(iterator), next(iterator)] == [[0, 1], [2]]  # 3 is skipped, and comes again
        with pytest.raises(RuntimeError, match=r"cannot be drawn from past sample \d.*LookupError"):
            next(iterator)
        assert list(iterator) == []


def test_a_state_that_cannot_be_had_is_an_error_that_names_it() -> None:
    class Broken(StatefulNumbers):
        def state_dict(self) -> dict[str, Any]:
            if self.position > 2:
                raise OSError("no such cursor")
            return super().state_dict()

    for may_skip in (False, True):
        recipe = recipe_of(Broken(9), may_skip=may_skip)
        on_error: Any = "skip" if may_skip else "raise"
        for iterator in (with_toys(recipe, 1, on_error=on_error), in_process(recipe, on_error=on_error)):
            assert len(next(iterator)) == 2
            with pytest.raises(RuntimeError, match=r"cannot go on after 2 samples: its state_dict"):
                next(iterator)
            assert list(iterator) == []


@pytest.mark.parametrize("kind", [Numbers, OwnIterator])
def test_skipping_needs_a_dataset_with_a_state(kind: Any) -> None:
    with pytest.raises(ValueError, match=r"^on_error='skip' with an iterable dataset that has no exact"):
        DataLoader(kind(9), on_error="skip")
    DataLoader(StatefulNumbers(9), on_error="skip")


def test_a_lost_worker_is_not_done_without() -> None:
    with pytest.raises(ValueError, match="shrink_on_oom=True\\) with an iterable dataset"):
        DataLoader(Numbers(9), num_workers=1, restart=RestartPolicy(shrink_on_oom=True))


# ---- warnings ------------------------------------------------------------------------------------


def test_more_than_the_stated_length_is_warned_of_each_time() -> None:
    loader = DataLoader(Unshared(4), batch_size=2, num_workers=2, multiprocessing_context="fork")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "workers 0 and 1 give the same")
        assert len(list(loader)) == 4  # nobody had asked for the length
        assert len(loader) == 2
        with loader:
            iterator = iter(loader)
            assert len([next(iterator), next(iterator)]) == 2
            for count in (6, 8):
                with pytest.raises(UserWarning, match=rf"Unshared was reported to be 4 .* {count} samples"):
                    next(iterator)
                assert next(iterator).tolist() == [2, 3]  # what the warning stood in for
            assert list(iterator) == []


@pytest.mark.parametrize("kind", [Unshared, Numbers, lambda length: Lengths((length, length, length))])
def test_a_stream_that_nobody_shared_out_is_warned_of(kind: Any) -> None:
    iterator = with_toys(recipe_of(kind(8)), 3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        list(iterator)
    told = [str(warning.message) for warning in caught]
    if kind is not Unshared:
        assert told == []
        return
    (message,) = told
    assert message.startswith("workers 0 and 2 give the same data: each of the 3 workers iterates")
    assert "get_worker_info()" in message


class SameButAsks(IterableDataset[int]):
    """Gives the same in each worker on purpose: it knows of the others."""

    def __iter__(self) -> Iterator[int]:
        get_worker_info()
        return iter([1, 2, 3])


@pytest.mark.filterwarnings("error")
def test_what_knows_of_the_other_workers_is_not_warned_of() -> None:
    assert len(list(with_toys(recipe_of(SameButAsks()), 2))) == 4
    assert list(with_toys(recipe_of(Unshared(0)), 2)) == []
    assert len(list(with_toys(recipe_of(Unshared(3)), 1))) == 2


# ---- loaders -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"shuffle": True}, "^shuffle=True with an iterable dataset"),
        ({"sampler": [1]}, r"^sampler=\[1\] with an iterable dataset"),
        ({"batch_sampler": [[1]]}, r"^batch_sampler=\[\[1\]\] with an iterable dataset"),
        ({"batch_size": None, "drop_last": True}, "^drop_last=True and batch_size=None"),
    ],
    ids=str,
)
def test_arguments_that_make_no_sense_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DataLoader(Numbers(9), **arguments)


def test_a_stream_has_no_parts() -> None:
    loader = DataLoader(Unshared(9))
    with pytest.raises(TypeError, match=r"is iterable, and has no samples by number"):
        loader.slice(0, 3)
    with pytest.raises(TypeError, match=r"is iterable, and has no samples by number"):
        loader.split(2)


def test_the_length_is_what_the_dataset_says() -> None:
    assert len(DataLoader(Unshared(7), batch_size=2)) == 4
    assert len(DataLoader(Unshared(7), batch_size=2, drop_last=True)) == 3
    assert len(DataLoader(Unshared(7), batch_size=None)) == 7
    with pytest.raises(TypeError):
        len(DataLoader(Numbers(7)))


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_persistent_workers_begin_their_streams_anew(kind: Any) -> None:
    with DataLoader(
        kind(26), 2, num_workers=2, persistent_workers=True, multiprocessing_context="fork", seed=1,
        collate_fn=list, shuffle=False,
    ) as loader:  # fmt: skip
        epochs = [list(loader) for _ in range(2)]
        iterator = iter(loader)
        pid = loader.workers()[1].pid
        left_early = [next(iterator) for _ in range(3)]
        del iterator
        loader.set_epoch(1)
        first = iter(loader)
        come = [next(first) for _ in range(2)]
        os.kill(pid, 9)
        come += list(first)
    numbers = [[[sample[0] for sample in batch] for batch in batches] for batches in (*epochs, left_early)]
    assert numbers[0] == numbers[1]
    assert numbers[2] == numbers[0][:3]
    assert epochs[0] != epochs[1]
    assert come == epochs[1]


def test_several_iterators_have_streams_of_their_own() -> None:
    with DataLoader(
        Numbers(12), 3, num_workers=2, multiprocessing_context="fork", seed=1, collate_fn=list
    ) as loader:
        first, second = iter(loader), iter(loader)
        both = [(next(first), next(second)) for _ in range(4)]
        assert [[number for number, *_ in batch] for batch, _ in both] == [
            [number for number, *_ in batch] for _, batch in both
        ]
        assert list(first) == list(second) == []


class Sleepy(Numbers):
    """Takes a while for each sample."""

    def __iter__(self) -> Iterator[Any]:
        for sample in super().__iter__():
            time.sleep(0.02)
            yield sample


def test_drawing_again_may_take_longer_than_a_batch_may() -> None:
    with DataLoader(
        Sleepy(60), 4, num_workers=1, timeout=0.6, collate_fn=list, multiprocessing_context="fork"
    ) as loader:
        iterator = iter(loader)
        come = [next(iterator) for _ in range(12)]  # 48 samples are drawn again, for a second
        os.kill(loader.workers()[0].pid, signal.SIGKILL)
        come += list(iterator)
        assert [number for batch in come for number, *_ in batch] == list(range(60))
        assert [report.reason.name for report in loader.reports if report.is_death] == ["KILLED"]


class Growing(StatefulNumbers):
    """Keeps memory for each sample."""

    def __iter__(self) -> Iterator[Any]:
        kept = []
        for sample in super().__iter__():
            kept.append(np.ones(1 << 18))
            time.sleep(0.01)
            yield sample


@pytest.mark.slow
def test_a_worker_that_leaves_between_batches_is_followed_on_its_stream() -> None:
    with DataLoader(
        Growing(240),
        2,
        num_workers=2,
        worker_memory_limit="30MB",
        collate_fn=list,
        multiprocessing_context="fork",
    ) as loader:
        come = [number for batch in loader for number, *_ in batch]
        assert sorted(come) == list(range(240))
        assert any(report.reason is ExitReason.MEMORY_LIMIT for report in loader.reports)


def test_ranks_draw_other_random_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    def batches() -> list[Any]:
        return list(DataLoader(Numbers(6), 2, collate_fn=list, seed=1))

    alone = batches()
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    assert batches() == alone
    monkeypatch.setenv("RANK", "1")
    assert batches() != alone
    assert [[number for number, *_ in batch] for batch in batches()] == [[0, 1], [2, 3], [4, 5]]


# ---- state ---------------------------------------------------------------------------------------


def loader_of(dataset: Any, workers: int, seed: int | None = 3) -> DataLoader:
    method = "fork" if workers else None
    return DataLoader(
        dataset, 3, num_workers=workers, collate_fn=list, multiprocessing_context=method, seed=seed
    )


def resumed(loader: DataLoader, state: Any) -> list[Any]:
    """Return what is left for a loader like this that is given ``state``, as it is written to a file."""
    dataset = type(loader.dataset)(loader.dataset.length)
    with loader_of(dataset, loader.num_workers, seed=None) as other:
        other.load_state_dict(json.loads(json.dumps(state)))
        return list(other)


@pytest.mark.parametrize("kind", ALL_KINDS)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_is_resumed_byte_for_byte(kind: Any, workers: int) -> None:
    with loader_of(kind(25), workers) as loader:
        before = loader.state_dict()
        whole = list(loader)
        assert resumed(loader, before) == whole
    for count in (1, 4, len(whole)) if workers else range(1, len(whole) + 1):
        with loader_of(kind(25), workers) as loader:
            iterator = iter(loader)
            come = [next(iterator) for _ in range(count)]
            assert come + resumed(loader, loader.state_dict()) == whole


def test_what_was_left_cannot_be_shared_out_to_other_workers() -> None:
    loader = loader_of(Numbers(25), 0)
    iterator = iter(loader)
    come = [next(iterator)]
    two = loader_of(Numbers(25), 2)
    with pytest.raises(ValueError, match=r"with num_workers=0, and num_workers=2 now.*between two epochs"):
        two.load_state_dict(loader.state_dict())
    with loader_of(Numbers(25), 1) as one:  # as one stream it is the same
        one.load_state_dict(loader.state_dict())
        come += list(one)
    assert come[1:] == list(iterator)
    assert come == list(loader_of(Numbers(25), 0))
    with two:
        two.load_state_dict(loader.state_dict())
        assert sorted(number for batch in two for number, *_ in batch) == list(range(25))


@pytest.mark.parametrize("damage", [{"streams": 5}, {"streams": {}}, {"streams": {"streams": [{}]}}], ids=str)
def test_a_damaged_state_is_refused(damage: dict[str, Any]) -> None:
    loader = loader_of(Numbers(25), 0)
    next(iter(loader))
    with pytest.raises(ValueError, match=r"^state_dict\['streams'\]"):
        loader.load_state_dict({**loader.state_dict(), **damage})


def test_a_stream_cannot_be_taken_back() -> None:
    loader = loader_of(Numbers(25), 0)
    next(iter(loader))
    with pytest.raises(ValueError, match="_num_yielded was changed from 1 to 0, and an iterable dataset"):
        loader.load_state_dict({**loader.state_dict(), "_num_yielded": 0})


def test_a_state_of_the_dataset_needs_a_dataset_that_takes_it() -> None:
    loader = loader_of(StatefulNumbers(25), 0)
    next(iter(loader))
    with pytest.raises(ValueError, match=r"has a state of the dataset, and Numbers has no load_state_dict"):
        loader_of(Numbers(25), 0).load_state_dict(loader.state_dict())
