"""Programs, and what is defined in them: no guard is needed, objects keep their class, an exit is quiet."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import is_gone, wait_until

pytestmark = pytest.mark.slow

GONE_WITHIN_S = 2.0
STARTS = pytest.mark.parametrize(
    ("method", "persistent"),
    [("forkserver", False), ("forkserver", True), ("fork", False), ("fork", True), ("spawn", False)],
)


def run(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        env={**os.environ, "PYTHONPATH": ":".join(sys.path)},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
    )


# ---- no guard ------------------------------------------------------------------------------------

# No empty line within a block, and one after each: so a REPL wants it.
PROGRAM = """
from dataloader import DataLoader
class Square:
    def __init__(self, value):
        self.value = value

class Squares:
    def __len__(self):
        return 10
    def __getitem__(self, index):
        return Square(index * index)

def show(batches):
    for batch in batches:
        assert all(type(square) is Square for square in batch)
        print([square.value for square in batch], flush=True)

loader = DataLoader(Squares(), batch_size=5, num_workers=2, collate_fn=lambda samples: samples[::-1])
show(loader)
"""
OUTPUT = "[16, 9, 4, 1, 0]\n[81, 64, 49, 36, 25]\n"

CELLS = """
import __main__
from code import InteractiveInterpreter

interpreter = InteractiveInterpreter(vars(__main__))
for cell in {cells!r}:
    interpreter.runsource(cell, "<cell>", "exec")
"""

# A second run of a cell makes new classes of the same names; a loader of the first knows only the old.
CELL_RUN_AGAIN = """
class Square:
    def __init__(self, value):
        self.value = -value

class Squares:
    def __len__(self):
        return 3
    def __getitem__(self, index):
        return Square(index * index)
"""
AFTER_THE_SECOND_RUN = """
show(DataLoader(Squares(), batch_size=3, num_workers=2, collate_fn=lambda samples: samples))
[old_square, *_], _ = old_loader
print(type(old_square) is OldSquare, type(old_square) is Square, old_square.value)
"""
KEPT_LOADER = """
OldSquare = Square
old_loader = DataLoader(Squares(), 5, num_workers=1, persistent_workers=True, collate_fn=list)
list(old_loader)
"""


@pytest.mark.parametrize("how", ["script", "-c", "stdin", "REPL", "cell"])
def test_a_program_needs_no_main_guard(how: str, tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    finished = {
        "script": lambda: run(str(script)),
        "-c": lambda: run("-c", PROGRAM),
        "stdin": lambda: run("-", stdin=PROGRAM),
        "REPL": lambda: run("-q", "-i", stdin=PROGRAM),
        "cell": lambda: run("-c", CELLS.format(cells=[PROGRAM])),
    }[how]()
    assert (finished.stdout, finished.returncode) == (OUTPUT, 0)
    assert finished.stderr.replace(">>> ", "").replace("... ", "").strip() == ""


def test_a_cell_that_is_run_again_defines_other_classes() -> None:
    cells = [PROGRAM, KEPT_LOADER, CELL_RUN_AGAIN, AFTER_THE_SECOND_RUN]
    finished = run("-c", CELLS.format(cells=cells))
    assert (finished.stderr, finished.returncode) == ("", 0)
    assert finished.stdout == OUTPUT + "[0, -1, -4]\nTrue False 0\n"


def test_a_test_needs_no_guard(tmp_path: Path) -> None:
    """As pytest imports it, under a name that no other process can import."""
    test = tmp_path / "test_squares.py"
    test.write_text("def test_squares():\n" + "".join(f"    {line}\n" for line in PROGRAM.splitlines()))
    finished = run("-m", "pytest", "-q", "--import-mode=importlib", "-p", "no:cacheprovider", "-s", str(test))
    assert finished.returncode == 0, finished.stdout
    assert OUTPUT in finished.stdout


# ---- classes -------------------------------------------------------------------------------------

KINDS = """
import enum, typing
from dataclasses import dataclass
from dataloader import DataLoader

class Base:
    label = "first"
    def describe(self):
        return f"{self.label} {type(self).__name__}"

@dataclass
class Point(Base):
    x: int

class Pair(typing.NamedTuple):
    left: int
    right: object

class Colour(enum.Enum):
    RED = 1

class Outer:
    class Inner(Base):
        pass

def local_class():
    class Local(Base):
        pass
    return Local

Local = local_class()

class Everything:
    def __len__(self):
        return 6
    def __getitem__(self, index):
        return Pair(index, [Point(index), Colour.RED, Outer.Inner(), Local()])

describe = Base.describe
loader = DataLoader(Everything(), 2, num_workers=2, persistent_workers=True, collate_fn=list)
for label in ("first", "second"):
    Base.label = label
    for batch in loader:
        for pair in batch:
            point, colour, inner, local = pair.right
            assert [type(pair), type(point), type(inner), type(local)] == [Pair, Point, Outer.Inner, Local]
            assert colour is Colour.RED
            assert isinstance(point, Base) and point == Point(pair.left)
            assert Base.describe is describe, "a batch has overwritten the class"
            assert inner.describe() == f"{label} Inner"
loader.close()
print("done")
"""


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_objects_come_back_as_the_very_class_and_leave_it_as_it_is(method: str) -> None:
    finished = run(
        "-c", KINDS.replace("collate_fn=list", f"collate_fn=list, multiprocessing_context={method!r}")
    )
    assert (finished.stderr, finished.stdout) == ("", "done\n")


NESTED = """
from dataloader import DataLoader

class Item:
    pass

class Inner:
    def __len__(self):
        return 2
    def __getitem__(self, index):
        return Item()

class Outer(Inner):
    def __init__(self, method):
        self.method = method
    def __getitem__(self, index):
        arguments = {"collate_fn": lambda samples: samples, "multiprocessing_context": self.method}
        with DataLoader(Inner(), num_workers=1, **arguments) as loader:
            items = [item for batch in loader for item in batch]
        assert all(type(item) is Item for item in items)
        return items

for method in ("forkserver", "fork"):
    with DataLoader(Outer(method), None, num_workers=1, collate_fn=lambda sample: sample) as loader:
        print([type(item) is Item for items in loader for item in items])
"""


def test_objects_of_a_loader_inside_a_worker_come_all_the_way_home() -> None:
    finished = run("-c", NESTED)
    assert (finished.stderr, finished.stdout) == ("", "[True, True, True, True]\n" * 2)


# ---- exit ----------------------------------------------------------------------------------------

LEFT_OPEN = """
import sys
from dataloader import DataLoader
import numpy as np

loader = DataLoader(np.zeros((50, 20_000)), num_workers=2, multiprocessing_context=sys.argv[1],
                    persistent_workers=sys.argv[2] == "True")
iterator = iter(loader)
batch = next(iterator)
print(*[worker.pid for worker in loader.workers()], flush=True)
"""

LEFT_TO_A_DAEMON_THREAD = """
import sys, threading, time
from dataloader import DataLoader

class Samples:
    def __len__(self):
        return 1_000_000
    def __getitem__(self, index):
        if index == 5 and sys.argv[2] == "waits":
            time.sleep(300)
        return index

def consume():
    for number, _ in enumerate(loader):
        if number == 4:
            begun.set()

loader = DataLoader(Samples(), num_workers=2, multiprocessing_context=sys.argv[1])
begun = threading.Event()
threading.Thread(target=consume, daemon=True).start()
begun.wait()
print(*[worker.pid for worker in loader.workers()], flush=True)
"""


def assert_ends_quietly(finished: subprocess.CompletedProcess[str]) -> None:
    assert (finished.stderr, finished.returncode) == ("", 0)
    assert len(finished.stdout.split()) == 2
    assert wait_until(lambda: all(is_gone(int(pid)) for pid in finished.stdout.split()), GONE_WITHIN_S)


@STARTS
def test_a_program_that_ends_in_the_middle_ends_cleanly(method: str, persistent: bool) -> None:
    assert_ends_quietly(run("-c", LEFT_OPEN, method, str(persistent)))


@pytest.mark.parametrize("method", ["forkserver", "fork"])
@pytest.mark.parametrize("thread", ["waits", "works"])
def test_a_program_may_end_while_a_daemon_thread_iterates(thread: str, method: str) -> None:
    assert_ends_quietly(run("-c", LEFT_TO_A_DAEMON_THREAD, method, thread))
