"""What workers have around them, and what user code in them may do to it without disturbing anybody."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from dataloader import DataLoader, Dataset, ExitReason, RestartPolicy
from tests.processes import is_gone, open_descriptors, wait_until

pytestmark = pytest.mark.slow

METHODS = pytest.mark.parametrize("method", ["forkserver", "fork", "spawn"])
FRESH = pytest.mark.parametrize("method", ["forkserver", "spawn"])
LARGE = "x" * 100_000  # larger than a message may be


class Asking(Dataset[Any]):
    """Samples are what a function makes of their index."""

    def __init__(self, ask: Callable[[int], Any]) -> None:
        self.ask = ask

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return self.ask(index)


def asking(ask: Callable[[int], Any], method: str, **arguments: Any) -> DataLoader:
    arguments = {"batch_size": 2, "collate_fn": list, **arguments}
    return DataLoader(Asking(ask), num_workers=2, multiprocessing_context=method, **arguments)


def answers(loader: DataLoader) -> list[Any]:
    return [answer for batch in loader for answer in batch]


def ends(loader: DataLoader) -> set[ExitReason]:
    """Return how workers ended, all of them once the loader is closed."""
    return {report.reason for report in loader.reports}


def run_script(script: str, *options: Any, **settings: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script, *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **settings)


# ---- what is brought along -----------------------------------------------------------------------


class OwnWarning(UserWarning):
    pass


def surroundings(index: int = 0) -> dict[str, Any]:
    return {
        "path": list(sys.path),
        "argv": list(sys.argv),
        "folder": os.getcwd(),
        "environment": dict(os.environ),
        "levels": [logging.getLogger(name).level for name in ("", "supervisor", "own", "own.part")],
        "disabled": logging.root.manager.disable,
        "filters": list(warnings.filters),
    }


@pytest.fixture
def _levels_are_put_back() -> Iterator[None]:
    before = [(logging.getLogger(name), logging.getLogger(name).level) for name in ("", "supervisor", "own")]
    yield
    logging.disable(logging.NOTSET)
    for logger, level in before:
        logger.setLevel(level)


@METHODS
@pytest.mark.usefixtures("_levels_are_put_back")
def test_each_start_of_workers_brings_what_the_consumer_has_by_then(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DROPPED_LATER", "1")
    with asking(surroundings, method) as loader:
        assert all(answer == surroundings() for answer in answers(loader))
        monkeypatch.syspath_prepend(str(tmp_path / "library"))
        monkeypatch.setattr(sys, "argv", ["train.py", "--epochs", "3"])
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("ONE", LARGE)
        monkeypatch.setenv("OTHER", LARGE)
        monkeypatch.delenv("DROPPED_LATER")
        logging.disable(logging.DEBUG)
        for name, level in (("", logging.ERROR), ("supervisor", logging.CRITICAL), ("own", logging.INFO)):
            logging.getLogger(name).setLevel(level)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "of ours", OwnWarning)
            warnings.filterwarnings("error", category=BytesWarning, module="own", lineno=3)
            expected = surroundings()
            for answer in answers(loader):
                assert {
                    key: (answer[key], expected[key]) for key in expected if answer[key] != expected[key]
                } == {}


@FRESH
def test_modules_are_found_where_the_consumer_looks_for_them_by_now(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "later"
    monkeypatch.syspath_prepend(str(folder))
    with asking(abs, method) as loader:
        answers(loader)
        folder.mkdir()
        (folder / "written_later.py").write_text("def double(number):\n    return 2 * number\n")
        monkeypatch.syspath_prepend(str(folder))  # has this process look again, too
        loader.dataset.ask = __import__("written_later").double
        assert answers(loader) == [2 * index for index in range(8)]
    del sys.modules["written_later"]


@METHODS
def test_a_working_directory_that_is_gone_is_no_hindrance(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "one")
    (tmp_path / "one").rmdir()
    with asking(abs, method) as loader:
        assert answers(loader) == list(range(8))
        os.chdir(tmp_path / "other")
        (tmp_path / "other").rmdir()
        assert answers(loader) == list(range(8))


@FRESH
def test_a_module_that_warned_when_it_was_imported_does_not_fail_in_workers(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "import warnings\nwarnings.warn('an old module')\ndef same(number):\n    return number\n"
    (tmp_path / "warns_at_import.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        same = __import__("warns_at_import").same
    with warnings.catch_warnings(), asking(same, method) as loader:
        warnings.simplefilter("error")
        assert answers(loader) == list(range(8))
    del sys.modules["warns_at_import"]


@METHODS
def test_a_warning_that_is_an_error_here_is_one_in_workers(method: str) -> None:
    def warn(index: int) -> None:
        warnings.warn("of ours", OwnWarning, stacklevel=1)

    with warnings.catch_warnings(), asking(warn, method) as loader:
        warnings.simplefilter("error", OwnWarning)
        with pytest.raises(OwnWarning, match="of ours"):
            next(iter(loader))
        warnings.simplefilter("ignore", OwnWarning)
        assert answers(loader) == [None] * 8


@METHODS
def test_workers_may_use_what_a_manager_of_the_consumers_shares(method: str) -> None:
    with multiprocessing.Manager() as manager:
        shared = manager.dict({index: index**2 for index in range(8)})
        with asking(shared.__getitem__, method) as loader:
            assert answers(loader) == [index**2 for index in range(8)]


# ---- subprocesses, threads and pools -------------------------------------------------------------


def square(number: int) -> int:
    return number**2


def by_subprocess(index: int) -> int:
    script = f"print({index} ** 2)"
    return int(subprocess.run([sys.executable, "-Sc", script], capture_output=True, check=True).stdout)


def by_pool(index: int) -> int:
    with multiprocessing.Pool(1) as pool:
        return pool.apply(square, (index,))


def by_executor(kind: Callable[[int], Executor]) -> Callable[[int], int]:
    def ask(index: int) -> int:
        with kind(1) as executor:
            return executor.submit(square, index).result()

    return ask


WAYS = (by_subprocess, by_pool, by_executor(ProcessPoolExecutor), by_executor(ThreadPoolExecutor))


@METHODS
def test_a_worker_may_have_others_work_for_it(method: str) -> None:
    with asking(lambda index: [ask(index) for ask in WAYS], method) as loader:
        assert answers(loader) == [[index**2] * len(WAYS) for index in range(8)]
    assert ends(loader) == {ExitReason.CLOSED}


def begin_to_help(_: int) -> None:
    """Start a subprocess, a pool, an executor and a thread, and let all of them live on."""
    pool, executor = multiprocessing.Pool(1), ProcessPoolExecutor(1)
    executor.submit(square, 1).result()
    threads = ThreadPoolExecutor(1)
    threads.submit(time.sleep, 60)
    Asking.helpers = [pool, executor, threads, subprocess.Popen(["sleep", "60"])]  # type: ignore[attr-defined]


def pids_of_children(index: int) -> list[int]:
    return [child.pid for child in psutil.Process().children()]


def all_gone(pids: set[int]) -> bool:
    return wait_until(lambda: all(map(is_gone, pids)), timeout_s=5.0)


@METHODS
@pytest.mark.parametrize("end", ["worker killed, then closed", "supervisor killed"])
def test_what_a_worker_has_started_ends_with_it(end: str, method: str) -> None:
    with asking(pids_of_children, method, worker_init_fn=begin_to_help, persistent_workers=True) as loader:
        pids = {pid for found in answers(loader) for pid in found}
        assert len(pids) >= 6
        worker = loader.workers()[0].pid
        if end != "supervisor killed":
            ours = {child.pid for child in psutil.Process(worker).children()}
            os.kill(worker, signal.SIGKILL)
            assert all_gone(ours)
        else:
            os.kill(psutil.Process(worker).ppid(), signal.SIGKILL)
            if method == "fork":
                with pytest.raises(RuntimeError, match="supervisor process died"):
                    answers(loader)
            else:
                answers(loader)
            assert all_gone(pids)
    assert all_gone(pids)


# ---- directory, signals --------------------------------------------------------------------------


@METHODS
def test_a_worker_may_change_its_directory(method: str, tmp_path: Path) -> None:
    def move(index: int) -> str:
        folder = tmp_path / str(index)
        folder.mkdir(exist_ok=True)
        os.chdir(folder)
        return os.getcwd()

    before = os.getcwd()
    with asking(move, method) as loader:
        assert answers(loader) == [str(tmp_path / str(index)) for index in range(8)]
    assert os.getcwd() == before


OWN_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGALRM, signal.SIGCHLD)


@METHODS
def test_a_worker_may_handle_signals(method: str) -> None:
    def be_interrupted(index: int) -> bool:
        caught: list[int] = []
        for number in OWN_SIGNALS:
            signal.signal(number, lambda number, _: caught.append(number))
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)  # and goes on between the samples
        for number in OWN_SIGNALS[:2]:
            os.kill(os.getpid(), number)
        by_subprocess(index)
        return set(OWN_SIGNALS) <= set(caught)

    before = [signal.getsignal(number) for number in OWN_SIGNALS]
    with asking(be_interrupted, method) as loader:
        assert answers(loader) == [True] * 8
    assert ends(loader) == {ExitReason.CLOSED}
    assert [signal.getsignal(number) for number in OWN_SIGNALS] == before


@METHODS
def test_a_worker_may_bound_its_own_time(method: str) -> None:
    def take_too_long(index: int) -> int:
        def complain(*_: object) -> None:
            raise TimeoutError(f"sample {index}")

        signal.signal(signal.SIGALRM, complain)
        signal.setitimer(signal.ITIMER_REAL, 0.01 if index == 3 else 60.0)
        time.sleep(60 if index == 3 else 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        return index

    with asking(take_too_long, method) as loader:
        iterator = iter(loader)
        assert next(iterator) == [0, 1]
        with pytest.raises(TimeoutError, match="sample 3"):
            next(iterator)
        assert list(iterator) == [[4, 5], [6, 7]]
    assert ends(loader) == {ExitReason.CLOSED}


# ---- output and descriptors ----------------------------------------------------------------------

PRINTS = """
import os, signal, sys
from dataloader import DataLoader

class Prints:
    def __len__(self):
        return 8
    def __getitem__(self, index):
        print("sample", index)
        if index == 3 and not os.path.exists("killed"):
            open("killed", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return index

print("begin")
with DataLoader(Prints(), num_workers=2, multiprocessing_context=sys.argv[1]) as loader:
    list(loader)
print("end")
"""


@METHODS
def test_what_workers_print_arrives(method: str, tmp_path: Path) -> None:
    """Not twice, and what was printed before a death as well."""
    settings = {"PYTHONPATH": os.getcwd(), "PYTHONUNBUFFERED": ""}
    ended = run_script(PRINTS, method, cwd=tmp_path, env={**os.environ, **settings})
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert set(lines) == {"begin", "end", *(f"sample {index}" for index in range(8))}
    assert [lines.count(line) for line in ("begin", "end", "sample 3")] == [1, 1, 2]


class Unwritable:
    def write(self, text: str) -> int:
        raise RuntimeError("cannot be written to")

    def flush(self) -> None:
        raise RuntimeError("cannot be flushed")


def closed_stream() -> Any:
    stream = open(os.devnull, "w")  # noqa: SIM115 (it is closed)
    stream.close()
    return stream


STREAMS: dict[str, Callable[[], Any]] = {"none": lambda: None, "closed": closed_stream, "broken": Unwritable}


@pytest.mark.parametrize(
    ("stream", "method"),
    [("none", "fork"), ("closed", "fork"), ("broken", "fork"), ("broken", "forkserver"), ("broken", "spawn")],
)
def test_a_worker_may_replace_its_stdout(stream: str, method: str) -> None:
    def replace(index: int) -> int:
        sys.stdout = sys.stderr = STREAMS[stream]()
        return index

    before = sys.stdout, sys.stderr
    with asking(replace, method) as loader:
        assert answers(loader) == list(range(8))
    assert ends(loader) == {ExitReason.CLOSED}
    assert (sys.stdout, sys.stderr) == before


@METHODS
def test_output_goes_into_no_batch_where_a_worker_has_closed_its_standard_streams(method: str) -> None:
    has_closed: list[bool] = []  # each worker's own

    def close_and_write(index: int) -> Any:
        if not has_closed:
            os.closerange(0, 3)
            has_closed.append(True)
        for fd in (1, 2):
            with contextlib.suppress(OSError):
                os.write(fd, b"text")
        return np.full(20_000, index)

    arguments = {"collate_fn": None, "prefetch_factor": 1, "persistent_workers": True}
    with asking(close_and_write, method, **arguments) as loader:
        for _ in range(3):  # slots that are used again are mapped
            for number, batch in enumerate(loader):
                assert (batch == np.array([[2 * number], [2 * number + 1]])).all()


@pytest.mark.parametrize(
    ("seed", "method"),
    [(None, "fork"), (None, "forkserver"), (None, "spawn"), (0, "fork"), (1, "fork"), (2, "forkserver")],
)
def test_a_worker_that_closes_descriptors_is_at_worst_replaced(
    seed: int | None, method: str, tmp_path: Path
) -> None:
    """Without a seed all of them: its death is then certain."""

    def close_once(index: int) -> int:
        if index == 2:
            with contextlib.suppress(FileExistsError):
                (tmp_path / "closed").touch(exist_ok=False)
                found = [fd for fd in open_descriptors() if fd > 2]
                for fd in found if seed is None else random.Random(seed).sample(found, 3):
                    with contextlib.suppress(OSError):
                        os.close(fd)
        return index

    with asking(close_once, method, restart=RestartPolicy(backoff=0)) as loader:
        assert answers(loader) == list(range(8))
        assert seed is not None or any(report.is_death for report in loader.reports)


WITHOUT_STREAMS = """
import os, sys
from dataloader import DataLoader

report_fd = os.dup(1)
os.closerange(0, 3)
arguments = {"num_workers": 2, "collate_fn": list, "persistent_workers": True}
with DataLoader(range(8), multiprocessing_context=sys.argv[1], **arguments) as loader:
    for epoch in range(2):
        os.write(report_fd, repr(list(loader)).encode())
        print("into whatever has that number", file=sys.stderr)
"""


@METHODS
def test_a_consumer_may_have_no_standard_streams(method: str) -> None:
    ended = run_script(WITHOUT_STREAMS, method)
    assert ended.stdout == 2 * repr([[index] for index in range(8)])
