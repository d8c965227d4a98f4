"""The command, run for real on tiny datasets."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from dataloader.bench import command, plot
from dataloader.bench.figures import BatchFigures, Machine, Measured, Point, SampleFigures
from dataloader.bench.verdict import judge
from tests.bench.conftest import Write

pytestmark = pytest.mark.slow

JOB = """
import ctypes, threading

class Data:
    def __len__(self):
        return 8
    def __getitem__(self, index):
        print("loading", index)
        return index

class Broken(Data):
    def __getitem__(self, index):
        if index == 5:
            raise ValueError(f"file {index} is truncated")
        return index

class Deadly(Data):
    def __getitem__(self, index):
        return ctypes.string_at(0) if index == 5 else index

class Unpicklable(Data):
    def __init__(self):
        self.lock = threading.Lock()

dataset = Data()
"""
QUICK = ("--samples", 4, "--batch-size", 2, "--num-workers", "1", "--start-method", "fork")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(command.bench, [str(argument) for argument in arguments])


def test_a_file_is_measured_and_its_figures_are_written(write: Write, tmp_path: Path) -> None:
    write(JOB)
    outcome = run("job.py", *QUICK, "--num-workers", "1,0", "--json", "figures.json")
    assert outcome.exit_code == 0, outcome.output
    for words in ("job.py: 8 samples, 2 a batch, fork", "a sample", "num_workers=", "Bound by: "):
        assert words in outcome.stdout
    figures: dict[str, Any] = json.loads((tmp_path / "figures.json").read_text())
    assert figures["schema"] == 1
    assert (figures["target"], figures["length"], figures["batch_size"]) == ("job.py", 8, 2)
    assert [entry["num_workers"] for entry in figures["points"]] == [0, 1]
    assert all(entry["samples_per_s"] > 0 for entry in figures["points"])
    assert {slow["index"] for slow in figures["samples"]["slowest"]} <= set(range(8))
    assert figures["verdict"]["bound"] in ("samples", "collate", "transfer", "consumer")
    assert figures["verdict"]["num_workers"] in (0, 1)


def test_stdout_is_json_alone_whatever_samples_print(write: Write, tmp_path: Path) -> None:
    write(JOB)
    words = [sys.executable, "-m", "dataloader", "bench", "job.py", *map(str, QUICK), "--json"]
    root = Path(__file__).parent.parent.parent
    outcome = subprocess.run(
        words, capture_output=True, text=True, timeout=60, cwd=tmp_path, env={"PYTHONPATH": str(root)}
    )
    assert outcome.returncode == 0, outcome.stderr
    assert json.loads(outcome.stdout)["target"] == "job.py"
    assert "loading 5" in outcome.stderr
    assert "Bound by: " in outcome.stderr


def test_a_sample_that_raises_is_shown_with_its_traceback(write: Write) -> None:
    path = write(JOB)
    outcome = run("job.py:Broken", *QUICK[2:])
    assert outcome.exit_code == 1
    assert "Error: loading fails in worker 0" in outcome.stderr
    assert ", sample 5:" in outcome.stderr
    assert f'File "{path}", line' in outcome.stderr
    assert "ValueError: file 5 is truncated" in outcome.stderr


def test_the_death_of_a_worker_is_shown_with_its_report(write: Write) -> None:
    write(JOB)
    outcome = run("job.py:Deadly", *QUICK[2:])
    assert outcome.exit_code == 1
    assert "Error: a worker died." in outcome.stderr
    assert outcome.stderr.count("reason:     crashed") == 1
    assert ", sample 5, attempt 1" in outcome.stderr


def test_a_dataset_that_cannot_be_pickled_is_told_of_fork(write: Write) -> None:
    write(JOB)
    outcome = run("job.py:Unpicklable", *QUICK[:-1], "forkserver")
    assert outcome.exit_code == 1
    assert "dataset.lock" in outcome.stderr
    assert "--start-method fork" in outcome.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (["job.py:nothing"], 2, "Invalid value for TARGET: job.py has no 'nothing'"),
        (["job.py", "--num-workers", "1,two"], 2, "'1,two': write numbers of workers, such as 0,1,2,4"),
        (["job.py", "--json", "no/such/folder.json"], 2, "'no/such/folder.json' cannot be written"),
        (["job.py", "--plot", "picture.txt"], 2, "'picture.txt': write a name that ends in .png"),
        (["job.py", "--seconds", "0"], 2, "Invalid value for '--seconds'"),
        ([], 2, "Missing argument 'TARGET'"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_runs(
    write: Write, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, complaint: str
) -> None:
    write(JOB)
    monkeypatch.setattr(plot, "can_plot", lambda: True)
    outcome = run(*arguments)
    assert (outcome.exit_code, outcome.stdout) == (code, "")
    assert complaint in " ".join(outcome.stderr.split())


def test_an_error_in_the_job_is_shown(write: Write) -> None:
    write("import nothing_of_that_name")
    outcome = run("job.py")
    assert outcome.exit_code == 1
    assert "Error: running job.py raised" in outcome.stderr
    assert "No module named 'nothing_of_that_name'" in outcome.stderr


def test_ctrl_c_ends_it_with_one_line(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    write(JOB)
    monkeypatch.setattr(command, "measure", interrupted)
    outcome = run("job.py")
    assert outcome.exit_code == 130
    assert outcome.stdout.endswith("Interrupted.\n")


# ---- pictures ------------------------------------------------------------------------------------


def test_a_missing_matplotlib_is_named_with_the_line_that_installs_it(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(JOB)
    monkeypatch.setattr(plot, "find_spec", lambda name: None)
    outcome = run("job.py", "--plot", "picture.png")
    assert outcome.exit_code == 2
    assert 'pip install "supervised-dataloader[plots]"' in outcome.stderr


def test_a_picture_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    samples = SampleFigures(3, 0.1, 0.1, 0.1, 0.2, 1.0, 10, ())
    points = (Point(0, 0.1, 5, 50, 1.0, 1.0), Point(1, 0.1, 5, 50, 1.0, 0.1), Point(2))
    machine = Machine(cores=2, load=0.0, available_bytes=1 << 30)
    for batch in (BatchFigures(3, 10, 0.1, 0.1, 100), None):
        measured = Measured(machine, samples, batch, points)
        plot.plot(tmp_path / "picture.png", "a job", measured, judge(measured))
        assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
