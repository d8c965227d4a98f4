"""The benchmarks measure what they say, and say what they could not measure."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from benchmarks import floor
from benchmarks.batches import stack
from benchmarks.catalog import LOADERS, WORKS, load_adapter, load_work, select
from benchmarks.digest import digest
from benchmarks.jobs import Job, Measurement, Problem, Run, schedule
from benchmarks.killing import killing
from benchmarks.loaders import CannotError
from benchmarks.processes import worker_pids
from benchmarks.stopwatch import CpuTimes, Stopwatch, pss_bytes
from benchmarks.summary import Row, summarise
from benchmarks.works.text import pad
from dataloader import DataLoader, ExitReason
from tests.processes import wait_until

pytestmark = pytest.mark.slow

CPU = CpuTimes(consumer_s=0.1, workers_s=0.2, other_s=0.3)
JOB = Job("small", "ours", turn=0, num_workers=2, quick=False)
MEASURED = Measurement(1.0, batches=10, samples=640, digest="same", cpu=CPU)
ROOT = Path(__file__).parent.parent
SAME_DATASET = {"first-jpeg", "jpeg-killed", "epochs/persistent", "epochs/fresh"}  # as another work's


def command(*arguments: str, python_path: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = os.environ | ({"PYTHONPATH": str(python_path)} if python_path else {})
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", "--quick", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )


def results(directory: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((directory / "results.json").read_text())
    return loaded


def run(loader: str, turn: int, duration_s: float, digest: str = "same") -> Run:
    measured = replace(MEASURED, duration_s=duration_s, digest=digest)
    return Run(replace(JOB, loader=loader, turn=turn), measured)


def test_a_run_leaves_a_table_and_results(tmp_path: Path) -> None:
    done = command(
        "--work", "small,epochs", "--loaders", "in-process", "--repeat", "2", "--out", str(tmp_path)
    )
    assert done.returncode == 0, done.stderr
    assert "in-process" in done.stdout
    found = results(tmp_path)
    assert found["machine"]["packages"]["numpy"] == np.__version__
    assert [row["work"] for row in found["rows"][::2]] == [
        "small",
        "epochs/persistent",
        "epochs/fresh",
    ]
    assert all(row["figures"]["median_s"] > 0 for row in found["rows"])
    assert [run["job"]["turn"] for run in found["runs"]] == [0, 0, 1, 1] * 3


def test_every_kind_of_measurement_is_done_in_the_worker_processes_too(tmp_path: Path) -> None:
    works = "epochs/fresh,first-jpeg,first-batch/forkserver"
    done = command("--work", works, "--loaders", "ours", "--out", str(tmp_path))
    assert done.returncode == 0, done.stdout
    rows = results(tmp_path)["rows"]
    assert [row["problem"] for row in rows] == [None] * 2 * 3
    of_ours = [row["figures"] for row in rows if row["loader"] == "ours"]
    assert all(figures["cpu"]["workers_s"] > 0 and figures["cpu"]["other_s"] >= 0 for figures in of_ours)
    assert all(figures["pss_bytes"] > 0 and figures["floor_ratio"] > 0 for figures in of_ours)


@pytest.mark.parametrize("name", [name for name in WORKS if name not in SAME_DATASET])
def test_loaders_make_equal_batches(name: str) -> None:
    try:
        work = replace(load_work(name), batch_size=4, batches=3, start_method="fork")
    except ModuleNotFoundError as error:
        pytest.skip(f"{error.name} is not installed")
    dataset = work.dataset(work.samples, np.asarray)
    ours, plain = (load_adapter(loader).open_loader(dataset, work, 2) for loader in ("ours", "in-process"))
    assert digest(ours) == digest(plain)


def test_workers_are_killed_while_the_block_runs() -> None:
    with DataLoader(range(4), num_workers=1, persistent_workers=True) as loader:
        list(loader)
        with killing(loader, every_s=0.01):
            assert wait_until(lambda: len(loader.reports) >= 2, timeout_s=10)
        assert {report.reason for report in loader.reports} == {ExitReason.KILLED}


def test_workers_of_another_loader_are_the_leaves_of_its_process_tree() -> None:
    parent = "import subprocess; subprocess.run(['sleep', '60'])"
    with subprocess.Popen([sys.executable, "-c", parent]) as process:
        below = psutil.Process(process.pid).children
        assert wait_until(below, timeout_s=10)
        worker = below()[0]
        assert worker.pid in worker_pids(object())
        assert process.pid not in worker_pids(object())
        worker.kill()


def test_a_missing_library_is_a_row_and_no_failure(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError('none here', name='torch')")
    done = command(
        "--work", "small", "--loaders", "torch,in-process", "--out", str(tmp_path), python_path=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "torch is not installed" in done.stdout
    without, measured, _ = results(tmp_path)["rows"]
    assert without["problem"]["kind"] == "missing"
    assert measured["figures"]["speed_ratio"] is None


def test_a_loader_that_fails_is_a_row_and_a_failure(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise RuntimeError('broken to the core')")
    done = command("--work", "small", "--loaders", "torch", "--out", str(tmp_path), python_path=tmp_path)
    assert done.returncode == 1
    assert "RuntimeError: broken to the core" in done.stdout


def test_an_unknown_work_is_an_error_that_names_the_known(tmp_path: Path) -> None:
    done = command("--work", "smal", "--out", str(tmp_path))
    assert done.returncode == 2
    assert "'smal'" in done.stderr
    assert "objects" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_number_of_workers_is_a_number(tmp_path: Path) -> None:
    done = command("--num-workers", "1,two", "--out", str(tmp_path))
    assert done.returncode == 2
    assert "'1,two'" in done.stderr


@pytest.mark.parametrize("name", ["torchdata", "grain", "spdl", "ray", "mpire", "loky"])
def test_a_peer_makes_the_same_batches(name: str, tmp_path: Path) -> None:
    if not find_spec(name):
        pytest.skip(f"{name} is not installed")
    done = command("--work", "text", "--loaders", f"{name},in-process", "--out", str(tmp_path))
    assert done.returncode == 0, done.stdout
    assert [row["problem"] for row in results(tmp_path)["rows"]] == [None] * 3


@pytest.mark.parametrize("name", ["torch-spawn", "grain", "loky"])
def test_a_loader_says_what_it_cannot_do(name: str) -> None:
    pytest.importorskip(name.partition("-")[0], reason=f"{name} is not installed")
    work = load_work("first-batch/fork")
    with pytest.raises(CannotError, match="fresh interpreters"):
        load_adapter(name).open_loader(work.dataset(work.samples, np.asarray), work, 2)


def test_every_name_has_its_module() -> None:
    folder = ROOT / "benchmarks"
    for package, names in (("loaders", LOADERS), ("works", WORKS)):
        modules = {path.stem for path in (folder / package).glob("*.py")} - {"__init__"}
        assert modules == {name.partition("/")[0].replace("-", "_") for name in names}


def test_select_keeps_the_order_of_the_wish_and_expands_groups() -> None:
    known = ("a", "b/x", "b/y")
    assert select(["b", "a", "b/x"], known) == ["b/x", "b/y", "a"]


def test_loaders_take_turns() -> None:
    jobs = schedule(["w"], ["a", "b"], turns=2, num_workers=[2], quick=False)
    taken = [(job.turn, job.loader) for job in jobs]
    assert taken == [(turn, name) for turn in (0, 1) for name in ("a", "b", "floor")]


def test_the_ratio_is_taken_pair_by_pair() -> None:
    durations = [(1.0, 2.0), (10.0, 30.0), (2.0, 8.0)]
    runs = [
        one
        for turn, (ours, torch) in enumerate(durations)
        for one in (run("ours", turn, ours), run("torch", turn, torch))
    ]
    ours, torch = summarise(runs)
    assert ours.figures
    assert torch.figures
    assert ours.figures.speed_ratio == pytest.approx(3.0)
    assert ours.figures.median_s == pytest.approx(0.2)
    assert ours.figures.samples_per_s == pytest.approx(320)
    assert torch.figures.speed_ratio == pytest.approx(1.0)


def test_the_floor_is_divided_by_pair_by_pair_and_makes_no_batches() -> None:
    floors = [
        Run(replace(JOB, loader="floor", turn=turn), Measurement(1.0 + turn, 10, 640)) for turn in (0, 1)
    ]
    ours, least = summarise([run("ours", 0, 2.0), run("ours", 1, 6.0), *floors])
    assert ours.figures
    assert least.figures
    assert ours.figures.floor_ratio == pytest.approx(2.5)
    assert least.figures.floor_ratio == pytest.approx(1.0)
    assert least.figures.cpu is None


def test_charts_are_drawn_of_what_was_measured_and_of_nothing_else(tmp_path: Path) -> None:
    charts = pytest.importorskip("benchmarks.charts", reason="matplotlib is not installed")
    quick, broken = (
        run("ours", 0, 1.0),
        Run(replace(JOB, loader="torch"), problem=Problem("failed", "it broke")),
    )
    for name, runs, expected in (
        ("nothing", [broken], set()),
        ("one number of workers", [quick, broken], {"throughput.png"}),
        ("two", [quick, replace(quick, job=replace(JOB, num_workers=4))], {"throughput.png", "scaling.png"}),
        ("times", [Run(JOB, replace(MEASURED, arrivals_s=[0.1, 0.5]))], {"throughput.png", "timeline.png"}),
    ):
        (tmp_path / name).mkdir()
        charts.draw_all(tmp_path / name, runs, summarise(runs))
        assert {path.name for path in (tmp_path / name).iterdir()} == expected


@pytest.mark.parametrize("name", ["images", "dict", "skewed", "text"])
def test_the_floor_takes_time(name: str) -> None:
    work = replace(load_work(name), batch_size=4, batches=2)
    assert floor.duration_s(work, num_workers=2) > 0


def test_the_time_of_a_worker_that_has_ended_is_not_lost() -> None:
    watch = Stopwatch()
    burn = "import time; [None for _ in iter(lambda: time.process_time() > 0.2, True)]"
    subprocess.run([sys.executable, "-c", burn], check=True)
    _, cpu = watch.stop(None)
    assert cpu.workers_s >= 0.19
    assert cpu.other_s == 0


def test_memory_is_that_of_all_processes_together() -> None:
    alone = pss_bytes()
    assert alone > 0
    with DataLoader(range(4), num_workers=1, persistent_workers=True) as loader:
        list(loader)
        assert pss_bytes() > alone


def test_other_batches_than_torch_made_are_no_result() -> None:
    ours, torch = summarise([run("ours", 0, 1.0, "other"), run("torch", 0, 2.0)])
    assert ours == Row("small", 2, "ours", problem=Problem("differs", "its batches are not those of torch"))
    assert torch.figures


@pytest.mark.parametrize(
    "other",
    [
        [np.arange(3)[::-1]],
        [np.arange(3, dtype=np.int32)],
        [np.arange(3).reshape(1, 3)],
        [[np.arange(3)]],
        [[0, 1, 2]],
        [np.arange(3), np.arange(3)],
    ],
)
def test_a_digest_tells_batches_apart(other: list[Any]) -> None:
    assert digest(other) != digest([np.arange(3)])


def test_a_digest_takes_tensors_for_arrays_and_tuples_for_lists() -> None:
    torch = pytest.importorskip("torch")
    assert digest([(torch.arange(3), 1)]) == digest([[np.arange(3), 1]])


def test_what_collates_without_a_loader_keeps_the_shape_of_a_sample() -> None:
    samples = [({"a": 1, "b": np.zeros(2)}, 2.0), ({"a": 3, "b": np.ones(2)}, 4.0)]
    expected = [{"a": np.array([1, 3]), "b": np.array([[0.0, 0.0], [1.0, 1.0]])}, np.array([2.0, 4.0])]
    assert digest([stack(samples)]) == digest([expected])


def test_texts_are_padded_to_the_longest() -> None:
    ids, lengths = pad([np.array([1, 2, 3]), np.array([4])])
    assert ids.tolist() == [[1, 2, 3], [4, 0, 0]]
    assert lengths.tolist() == [3, 1]
