"""Exceptions of every shape, through the loader: how they arrive, and that the epoch goes on after each."""

from __future__ import annotations

import functools
import re
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from dataloader import DataLoader
from supervisor.exceptions import WorkerTraceback
from supervisor.payload import PayloadError
from tests import exception_shapes as shapes
from tests.datasets import LARGE_BYTES

pytestmark = pytest.mark.slow

HERE = "in process"
HOW = [HERE, "fork", "forkserver"]
WITH_WORKERS = HOW[1:]
PLACES: dict[str, dict[str, Any]] = {
    "__getitem__": {"dataset": shapes.InSample(), "collate_fn": list},
    "__getitems__": {"dataset": shapes.InSamples(), "collate_fn": list},
    "collate_fn": {"dataset": range(1000), "collate_fn": shapes.collate},
}
MAX_TEXT = 30_000


def loader(how: str, **arguments: Any) -> DataLoader:
    workers = {} if how == HERE else {"num_workers": 2, "multiprocessing_context": how}
    return DataLoader(**{**workers, **arguments})


class Outcomes(NamedTuple):
    """What an epoch gave: batches by number, exceptions by number, and how many workers died."""

    batches: dict[int, Any]
    errors: dict[int, BaseException]
    deaths: int


def run_epoch(loader: DataLoader, batches: int) -> Outcomes:
    outcomes = Outcomes({}, {}, 0)
    with loader:
        iterator = iter(loader)
        for number in range(batches):
            try:
                outcomes.batches[number] = next(iterator)
            except BaseException as error:
                outcomes.errors[number] = error
        with pytest.raises(StopIteration):
            next(iterator)
        return outcomes._replace(deaths=sum(report.is_death for report in loader.reports))


@functools.cache
def outcomes(how: str, place: str) -> Outcomes:
    """Return what comes of an epoch of batches of one, every second of which raises another shape."""
    names = shapes.NAMES if how != HERE else shapes.NAMES[: shapes.NAMES.index("KeyboardInterrupt")]
    batches = 2 * len(names) + 1
    return run_epoch(loader(how, sampler=range(batches), **PLACES[place]), batches)


def outcome(how: str, place: str, shape: str) -> BaseException:
    return outcomes(how, place).errors[2 * shapes.NAMES.index(shape) + 1]


def raised_by(fail: Callable[[], Any]) -> BaseException:
    try:
        fail()
    except BaseException as error:
        return error
    raise AssertionError("it raises nothing")


def traceback_of(error: BaseException) -> str:
    """Return the worker's traceback, without the line that says where it was."""
    assert isinstance(error.__cause__, WorkerTraceback)
    return error.__cause__.text.partition("\n")[2]


def in_every_place(how: list[str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("how", "place"), [(start, place) for start in how for place in PLACES])


# ---- each shape ----------------------------------------------------------------------------------


@in_every_place(HOW)
def test_the_epoch_goes_on_after_each(how: str, place: str) -> None:
    batches, errors, deaths = outcomes(how, place)
    assert batches == {number: [number] for number in range(0, 2 * len(errors) + 1, 2)}
    assert list(errors) == list(range(1, 2 * len(errors) + 1, 2))
    assert not deaths


@in_every_place(HOW)
@pytest.mark.parametrize("shape", shapes.ITSELF)
def test_it_arrives_as_itself(how: str, place: str, shape: str) -> None:
    error, expected = outcome(how, place, shape), raised_by(shapes.ITSELF[shape])
    assert type(error).__name__ == type(expected).__name__
    assert shape == "local class" or type(error) is type(expected)
    assert repr(error.args) == repr(expected.args)
    assert repr(vars(error)) == repr(vars(expected))
    assert shape == "no text" or str(error) == str(expected)


@in_every_place(WITH_WORKERS)
@pytest.mark.parametrize("shape", shapes.ALL)
def test_its_traceback_says_where_it_was(how: str, place: str, shape: str) -> None:
    error = outcome(how, place, shape)
    number = 2 * shapes.NAMES.index(shape) + 1
    what = {
        "__getitem__": f"sample {number}",
        "__getitems__": rf"samples \[{number}\]",
        "collate_fn": rf"made of samples \[{number}\]",
    }[place]
    text = str(error.__cause__)
    assert re.match(rf"\n\nin worker [01] \(pid \d+\), batch {number}, {what}:\n.*Traceback \(most ", text)
    assert "exception_shapes.py" in text
    assert len(text) < MAX_TEXT


@in_every_place(WITH_WORKERS)
def test_causes_and_contexts_are_in_its_traceback(how: str, place: str) -> None:
    text = traceback_of(outcome(how, place, "chained"))
    places = [
        text.index(part) for part in ("KeyError: 'the cause'", "direct cause", "ValueError: the context")
    ]
    places += [text.index(part) for part in ("During handling", "TypeError: the last")]
    assert places == sorted(places)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="CPython 3.10 has neither notes nor groups")
@in_every_place(WITH_WORKERS)
def test_notes_and_the_parts_of_a_group_are_in_its_traceback(how: str, place: str) -> None:
    noted, group = (traceback_of(outcome(how, place, shape)) for shape in ("notes", "ExceptionGroup"))
    assert "ValueError: with attributes\nof shard 7\n" in noted
    assert "KeyError: 'x'" in group
    assert "Reworded: a.jpg:3" in group


@pytest.mark.skipif(sys.version_info < (3, 11), reason="CPython 3.10 has no exception groups")
@in_every_place(WITH_WORKERS)
def test_the_parts_of_a_group_arrive_as_themselves(how: str, place: str) -> None:
    error: Any = outcome(how, place, "ExceptionGroup")
    key_error, more = error.exceptions
    assert type(key_error) is KeyError
    assert type(more.exceptions[0]) is shapes.Reworded
    assert vars(more.exceptions[0]) == {"path": "a.jpg", "line": 3}


@in_every_place(HOW)
@pytest.mark.parametrize("shape", shapes.ENDS_LOOPS)
def test_what_would_end_a_loop_or_the_program_is_a_runtime_error(how: str, place: str, shape: str) -> None:
    error = outcome(how, place, shape)
    number = 2 * shapes.NAMES.index(shape) + 1
    assert type(error) is RuntimeError
    assert str(error) == f"{shape} in {f'batch {number}' if how == HERE else 'a worker'}: why"
    if how == HERE:
        assert type(error.__cause__).__name__ == shape


@in_every_place(WITH_WORKERS)
def test_an_interrupt_in_a_worker_is_a_runtime_error(how: str, place: str) -> None:
    error = outcome(how, place, "KeyboardInterrupt")
    assert type(error) is RuntimeError
    assert str(error) == "KeyboardInterrupt in a worker: why"


@in_every_place(WITH_WORKERS)
@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (
            "lock",
            r"Locked in a worker: text\n\(.*: error\.held\['lock'\], a _thread\.lock, cannot be pickled",
        ),
        ("of one process", r"OfOneProcess in a worker: text\n\(.*: ValueError .*: of another process\)"),
        (
            "1 MB",
            r"ValueError in a worker: start x+\n\.\.\. \d+ bytes left out \.\.\.\nx+ end\n\(.*1,000,\d+ b",
        ),
    ],
    ids=lambda value: value if value in shapes.CANNOT_TRAVEL else "",
)
def test_what_cannot_travel_has_a_stand_in_that_says_why(
    how: str, place: str, shape: str, message: str
) -> None:
    error = outcome(how, place, shape)
    assert type(error) is RuntimeError
    assert re.match(message, str(error))
    assert len(str(error)) < MAX_TEXT


@in_every_place([HERE])
@pytest.mark.parametrize("shape", shapes.CANNOT_TRAVEL)
def test_in_process_nothing_has_to_travel(how: str, place: str, shape: str) -> None:
    expected = raised_by(shapes.CANNOT_TRAVEL[shape])
    assert type(outcome(how, place, shape)) is type(expected)
    assert str(outcome(how, place, shape)) == str(expected)


# ---- interrupts ----------------------------------------------------------------------------------


class Once:
    """A dataset whose sample 2 calls ``action``, the first time."""

    def __init__(self, action: Callable[[], Any]) -> None:
        self.actions = [action]

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> int:
        if index == 2 and self.actions:
            self.actions.pop()()
        return index


@pytest.fixture
def exits_on_signal() -> Iterator[None]:
    """As in a job that ends by ``sys.exit`` when it is told to."""
    previous = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(15))
    yield
    signal.signal(signal.SIGTERM, previous)


@pytest.mark.parametrize(
    ("action", "kind"),
    [
        (shapes.instance(KeyboardInterrupt), KeyboardInterrupt),
        (functools.partial(signal.raise_signal, signal.SIGTERM), SystemExit),
    ],
    ids=["KeyboardInterrupt", "SystemExit of a signal handler"],
)
def test_in_process_an_interrupt_is_itself_and_keeps_the_place(
    exits_on_signal: None, action: Callable[[], Any], kind: type[BaseException]
) -> None:
    iterator = iter(DataLoader(Once(action), collate_fn=list))
    assert [next(iterator), next(iterator)] == [[0], [1]]
    with pytest.raises(kind):
        next(iterator)
    assert list(iterator) == [[2], [3], [4]]


# ---- worker_init_fn ------------------------------------------------------------------------------


def calls(fail: Callable[[], Any], worker: int) -> None:
    fail()


@pytest.mark.parametrize("how", WITH_WORKERS)
@pytest.mark.parametrize("shape", ["several arguments", "chained", "frozen", "refuses to be pickled"])
def test_what_worker_init_fn_raises_is_raised_by_iter(how: str, shape: str) -> None:
    fail = shapes.ALL[shape]
    expected = raised_by(fail)
    with loader(how, dataset=range(4), worker_init_fn=functools.partial(calls, fail)) as loading:
        for _ in range(2):
            with pytest.raises(type(expected)) as caught:
                iter(loading)
            assert caught.value.args == expected.args
            assert vars(caught.value) == vars(expected)
            assert re.match(r"\n\nin worker [01] \(pid \d+\):\n", str(caught.value.__cause__))


@pytest.mark.parametrize("how", WITH_WORKERS)
@pytest.mark.parametrize("shape", [*shapes.ENDS_LOOPS, "KeyboardInterrupt"])
def test_what_would_end_the_program_in_worker_init_fn_is_a_runtime_error(how: str, shape: str) -> None:
    init = functools.partial(calls, shapes.ALL[shape])
    with (
        loader(how, dataset=range(4), worker_init_fn=init) as loading,
        pytest.raises(RuntimeError, match=rf"^{shape} in worker_init_fn: why$") as caught,
    ):
        iter(loading)
    assert f"{shape}: why" in traceback_of(caught.value)


# ---- samplers ------------------------------------------------------------------------------------


class Faltering:
    """Gives 0 to 5; draw number 3 raises, the first time."""

    def __init__(self, fail: Callable[[], Any]) -> None:
        self.faults = [fail]
        self.given = 0

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        if self.given == 3 and self.faults:
            self.faults.pop()()
        if self.given == 6:
            raise StopIteration
        self.given += 1
        return self.given - 1


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("shape", ["several arguments", "chained", "frozen", "BaseException", "SystemExit"])
def test_what_a_sampler_raises_is_raised_once_as_itself_and_the_place_is_kept(how: str, shape: str) -> None:
    """It was raised in this process: nothing stands in for it."""
    fail, expected = shapes.ALL[shape], raised_by(shapes.ALL[shape])
    near: dict[str, Any] = {} if how == HERE else {"num_workers": 1, "prefetch_factor": 1}
    batches: list[Any] = []
    with loader(how, dataset=range(6), sampler=Faltering(fail), collate_fn=list, **near) as loading:
        iterator = iter(loading)
        with pytest.raises(type(expected)) as caught:
            batches.extend(iterator)
        batches.extend(iterator)
    assert caught.value.args == expected.args
    assert batches == [[number] for number in range(6)]


# ---- batches that cannot travel ------------------------------------------------------------------


class OneIs:
    """Sample ``index`` is ``index``, but sample 2 is made by ``make``."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> Any:
        return self.make() if index == 2 else index


def error_of_batch_1(how: str, make: Callable[[], Any]) -> BaseException:
    """Return what comes for a batch with what ``make`` makes in it; all other batches are to come."""
    loading = loader(how, dataset=OneIs(make), batch_size=2, collate_fn=list)
    batches, errors, deaths = run_epoch(loading, 3)
    assert batches == {0: [0, 1], 2: [4]}
    assert not deaths
    return errors[1]


@pytest.mark.parametrize("how", WITH_WORKERS)
@pytest.mark.parametrize(
    ("make", "culprit"),
    [
        (shapes.lock_in_depth, r"batch\[0\]\.held\['lock'\], a _thread\.lock"),
        (shapes.lock_behind_arrays, r"batch\[0\]\[1\], a _thread\.lock"),
        (shapes.generator, r"batch\[0\], a builtins\.generator"),
        (shapes.lambda_with_lock, r"batch\[0\]'s variable lock, a _thread\.lock"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_batch_that_cannot_be_pickled_names_what_is_at_fault(how: str, make: Any, culprit: str) -> None:
    error = error_of_batch_1(how, make)
    assert type(error) is PayloadError
    assert re.match(
        rf"worker [01] cannot send batch 1: {culprit}, cannot be pickled \(TypeError: ", str(error)
    )
    text = traceback_of(error)
    assert text.startswith("TypeError: cannot pickle '") or "\nTypeError: cannot pickle '" in text
    assert "During handling" not in text


@pytest.mark.parametrize("how", WITH_WORKERS)
def test_a_batch_whose_pickling_exits_raises_for_itself_alone(how: str) -> None:
    error = error_of_batch_1(how, shapes.exits_when_pickled)
    assert type(error) is RuntimeError
    assert str(error) == "SystemExit in a worker: 3"


@pytest.mark.parametrize("how", WITH_WORKERS)
@pytest.mark.parametrize("kind", [ValueError, StopIteration, SystemExit, GeneratorExit, shapes.Fatal])
@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
def test_a_batch_that_cannot_be_unpickled_names_the_class(
    how: str, kind: type[BaseException], large: bool
) -> None:
    error = error_of_batch_1(how, functools.partial(shapes.OnceUnpickled, kind, LARGE_BYTES if large else 0))
    assert type(error) is PayloadError
    assert str(error) == (
        "batch 1 cannot be unpickled in this process: "
        f"{kind.__name__} from tests.exception_shapes.OnceUnpickled: not here"
    )
    assert type(error.__cause__) is kind


@pytest.mark.parametrize("how", WITH_WORKERS)
def test_a_class_that_is_not_to_be_found_is_named(how: str) -> None:
    error = error_of_batch_1(how, shapes.of_another_module)
    assert type(error) is PayloadError
    assert str(error).startswith(
        "batch 1 cannot be unpickled in this process: ModuleNotFoundError from pickle: "
    )
    assert "no_such_module" in str(error)


@pytest.mark.parametrize("how", WITH_WORKERS)
@pytest.mark.parametrize("what", [shapes.StrikesWhenUnpickled, shapes.raise_striking])
def test_an_interrupt_of_the_unpickling_keeps_the_place(how: str, what: Any, exits_on_signal: None) -> None:
    """Be it of a batch or of an exception."""
    with loader(how, dataset=OneIs(what), collate_fn=list) as loading:
        iterator = iter(loading)
        shapes.strikes.append(signal.SIGTERM)  # not before: workers are not to inherit it
        assert [next(iterator), next(iterator)] == [[0], [1]]
        with pytest.raises(SystemExit):
            next(iterator)
        if what is shapes.StrikesWhenUnpickled:
            assert type(next(iterator)[0]) is shapes.StrikesWhenUnpickled
        else:
            with pytest.raises(shapes.Striking):
                next(iterator)
        assert list(iterator) == [[3], [4]]


@pytest.mark.parametrize("how", WITH_WORKERS)
def test_however_many_samples_are_asked_for_together_the_error_stays_bounded(how: str) -> None:
    arguments = {"sampler": range(1, 80_001, 2), "batch_size": 40_000}
    with loader(how, **{**PLACES["__getitems__"], **arguments}) as loading:
        with pytest.raises(shapes.Reworded) as caught:
            next(iter(loading))
        assert not any(report.is_death for report in loading.reports)
    assert "batch 0, samples [1, 3, 5, 7, 9, 11, 13, 15, 17, 19, ...]:" in str(caught.value.__cause__)
    assert len(str(caught.value.__cause__)) < MAX_TEXT
