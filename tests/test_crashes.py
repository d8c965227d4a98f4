"""Crashes in C: each is told with its Python stack and sample, without a core file or a word on stderr."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from dataloader import DataLoader, RestartPolicy, WorkerDiedError
from tests.datasets import first_time


def read_nowhere() -> None:
    ctypes.string_at(0)


def read_past_the_end_of_a_file() -> None:
    with tempfile.TemporaryFile() as file:
        file.truncate(mmap.PAGESIZE)
        memory = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        file.truncate(0)
        memory[0]


def divide_by_zero() -> None:
    signal.raise_signal(signal.SIGFPE)  # not every processor traps


def run_what_is_no_code() -> None:
    signal.raise_signal(signal.SIGILL)


def overflow_the_stack() -> None:
    """In C, where no RecursionError prevents it: this compiles a pattern of that many nested groups."""
    ctypes.CDLL(None).regcomp(ctypes.create_string_buffer(4096), b"(" * 5_000_000, 1)


CRASHES: dict[int, tuple[Callable[[], object], signal.Signals]] = {
    3: (read_nowhere, signal.SIGSEGV),
    7: (read_past_the_end_of_a_file, signal.SIGBUS),
    12: (divide_by_zero, signal.SIGFPE),
    17: (run_what_is_no_code, signal.SIGILL),
    22: (os.abort, signal.SIGABRT),
    29: (overflow_the_stack, signal.SIGSEGV),
}


class Crashing:
    """Numbers, some of which crash whoever loads them first."""

    def __init__(self, flags: Path) -> None:
        self.flags = flags

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> int:
        if index in CRASHES and first_time(self.flags / str(index)):
            self.crash(index)
        return index

    def crash(self, index: int) -> None:
        CRASHES[index][0]()


def load_and_tell(start_method: str) -> None:
    """Load everything, in the working directory, and print the reports."""
    policy = RestartPolicy(max_restarts=100, backoff=0.0)
    with DataLoader(
        Crashing(Path.cwd()),
        batch_size=4,
        num_workers=2,
        restart=policy,
        multiprocessing_context=start_method,
    ) as loader:
        assert [batch.tolist() for batch in loader] == [list(range(n, n + 4)) for n in range(0, 32, 4)]
        print(json.dumps([report.to_dict() for report in loader.reports if report.is_death]))


@pytest.mark.parametrize("start_method", ["fork", "forkserver"])
def test_every_crash_is_told_with_its_stack_and_sample(start_method: str, tmp_path: Path) -> None:
    script = (
        "import logging, resource; logging.disable()\n"
        "resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))\n"
        f"from tests.test_crashes import load_and_tell; load_and_tell({start_method!r})"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    deaths = {death["sample"]: death for death in json.loads(done.stdout)}
    assert set(deaths) == set(CRASHES)
    for sample, (crash, number) in CRASHES.items():
        death = deaths[sample]
        assert (death["reason"], death["confidence"], death["signal"]) == ("crashed", "proven", number)
        assert "in crash" in death["traceback"]
        assert "in __getitem__" in death["traceback"]
        assert crash is os.abort or f"in {crash.__name__}" in death["traceback"]
        assert death["batch"] == sample // 4
    assert {file.name for file in tmp_path.iterdir()} == {str(sample) for sample in CRASHES}, "a core file"


class CoreLimit:
    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> int:
        return resource.getrlimit(resource.RLIMIT_CORE)[0]


def test_whoever_wants_core_files_has_them() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    wanted = 4096 if hard == resource.RLIM_INFINITY else hard
    resource.setrlimit(resource.RLIMIT_CORE, (wanted, hard))
    try:
        with DataLoader(CoreLimit(), num_workers=1, multiprocessing_context="fork") as loader:
            assert [batch.tolist() for batch in loader] == [[wanted]]
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))


def test_a_crash_loop_tells_its_story(tmp_path: Path) -> None:
    class Fatal:
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> int:
            if first_time(tmp_path / "first"):
                os.abort()
            os._exit(3)

    policy = RestartPolicy(max_restarts=3, backoff=0.0, max_attempts=100)
    loader = DataLoader(Fatal(), num_workers=1, restart=policy, multiprocessing_context="fork")
    story = r"death number 4 within 60 s \(3 exited, 1 crashed in "
    with loader, pytest.raises(WorkerDiedError, match=story) as caught:
        list(loader)
    assert len(caught.value.reports) == 4
    text = str(caught.value)
    assert text.count("exited unexpectedly with exit code 3.\n  reason:     exited (proven") == 3
    assert "reason:     crashed" not in text, "only the last three are whole"
