"""The demo, run for real: workers die, the bytes stay."""

import itertools
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner, Result
from PIL import Image
from rich.progress import Progress

from dataloader import demo
from dataloader._made_photos import make_photo
from dataloader._photos import PhotoDataset

pytestmark = pytest.mark.slow

PHOTOS = 40
ENDS_WITHIN_S = 2

each_start_method = pytest.mark.parametrize("method", ["forkserver", "fork", "spawn"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for number in range(PHOTOS):
        (folder / f"{number}.jpg").write_bytes(make_photo(number))
    return folder


def run_demo(*arguments: object) -> Result:
    return CliRunner().invoke(demo.demo, [str(argument) for argument in arguments])


def digests(output: str) -> list[str]:
    return re.findall(r"[0-9a-f]{32}", output)


@each_start_method
def test_three_workers_die_and_no_byte_changes(folder: Path, method: str) -> None:
    outcome = run_demo(folder, "--batch-size", 2, "--start-method", method)
    assert outcome.exit_code == 0, outcome.output
    assert outcome.output.endswith("equal\n")
    with_deaths, undisturbed = digests(outcome.output)
    assert with_deaths == undisturbed
    victims = re.findall(r"SIGKILL to worker (\d) \(pid (\d+)\)", outcome.output)
    deaths = re.findall(r"│ (\d) +│ (\d+) +│ killed │ 9 .*│ [\d.]+ ms +│", outcome.output)
    assert len(victims) == 3
    assert deaths == victims


def test_the_digest_does_not_depend_on_workers(folder: Path) -> None:
    def digest(*arguments: object) -> str:
        return digests(run_demo(folder, "--batch-size", 8, "--no-kill", *arguments).output)[0]

    alone = digest("--num-workers", 0)
    assert digest("--num-workers", 3) == alone
    assert digest("--num-workers", 0, "--seed", 1) != alone


def test_without_kills_nobody_dies(folder: Path) -> None:
    outcome = run_demo(folder, "--batch-size", 8, "--no-kill")
    assert outcome.exit_code == 0, outcome.output
    assert "SIGKILL" not in outcome.output
    assert "deaths" not in outcome.output


def test_a_differing_batch_is_a_failure(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digested = demo._run

    def one_byte_differs(photos: PhotoDataset, settings: demo.Settings, progress: Progress) -> demo.Run:
        run = digested(photos, settings, progress)
        return run if settings.num_workers else replace(run, digest="0" * 32)

    monkeypatch.setattr(demo, "_run", one_byte_differs)
    outcome = run_demo(folder, "--batch-size", 8, "--no-kill")
    assert outcome.exit_code == 1
    assert outcome.output.endswith("Error: the batches differ from those of the undisturbed run.\n")


def test_the_digest_sees_every_epoch_and_every_photo(folder: Path, tmp_path: Path) -> None:
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    before = digests(run_demo(tmp_path, "--no-kill", "--num-workers", 0).output)
    Image.new("RGB", (500, 375)).save(tmp_path / "17.jpg")
    after = digests(run_demo(tmp_path, "--no-kill", "--num-workers", 0).output)
    assert before[0] != after[0]


@pytest.mark.parametrize(
    ("option", "complaint"),
    [
        ("--num-workers 0", "With --num-workers 0 there is no worker to kill: add --no-kill."),
        ("--num-workers -1", "Invalid value for '--num-workers'"),
        ("--batch-size 0", "Invalid value for '--batch-size'"),
        ("--start-method thread", "Invalid value for '--start-method'"),
        ("--batch-size 20", "40 photos, 20 a batch, are over before a worker is dead"),
    ],
)
def test_a_senseless_option_is_refused(folder: Path, option: str, complaint: str) -> None:
    outcome = run_demo(folder, *option.split())
    assert outcome.exit_code == 2
    assert complaint in outcome.output


def test_a_folder_without_photos_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    outcome = run_demo(tmp_path)
    assert outcome.exit_code == 2
    assert f"Invalid value for FOLDER: no JPEG (.jpg, .jpeg) in '{tmp_path}' or below." in outcome.output


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    outcome = run_demo(tmp_path / "nowhere")
    assert outcome.exit_code == 2
    assert "does not exist" in outcome.output


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_unreadable_photo_is_named(tmp_path: Path, num_workers: int) -> None:
    for number in range(4):
        (tmp_path / f"{number}.jpg").write_bytes(make_photo(number))
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"no JPEG")
    outcome = run_demo(tmp_path, "--no-kill", "--batch-size", 1, "--num-workers", num_workers)
    assert outcome.exit_code == 1
    assert f"Error: {broken} cannot be read as a JPEG" in outcome.output


def test_a_cache_that_cannot_be_written_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    outcome = run_demo()
    assert outcome.exit_code == 1
    assert "No place for made photos" in outcome.output
    assert "set XDG_CACHE_HOME" in outcome.output


class StartedDemo:
    """The demo in a process group of its own, as a shell would start it."""

    def __init__(self, *arguments: object, cache: Path | None = None) -> None:
        cache_home = {"XDG_CACHE_HOME": str(cache)} if cache else {}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "dataloader", "demo", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, **cache_home, "PYTHONUNBUFFERED": "1"},
        )

    def await_line(self, start: str) -> None:
        assert self.process.stdout
        assert any(line.startswith(start) for line in self.process.stdout)

    def press_ctrl_c(self) -> None:
        """Interrupt the group, and check that all of it ends at once, with one clean line."""
        descendants = psutil.Process(self.process.pid).children(recursive=True)
        os.killpg(self.process.pid, signal.SIGINT)
        stdout, stderr = self.process.communicate(timeout=ENDS_WITHIN_S)
        assert self.process.returncode == 130
        assert stdout.splitlines()[-1] == "Interrupted."
        assert "Traceback" not in stderr
        _, alive = psutil.wait_procs(descendants, timeout=1)
        assert alive == []


@pytest.fixture
def many_photos(folder: Path, tmp_path: Path) -> Path:
    """Enough for the demo to be at it for a while."""
    for copy, photo in itertools.product(range(20), folder.iterdir()):
        (tmp_path / f"{copy}-{photo.name}").hardlink_to(photo)
    return tmp_path


@each_start_method
def test_ctrl_c_amid_deaths(many_photos: Path, method: str) -> None:
    started = StartedDemo(many_photos, "--start-method", method, "--batch-size", 8)
    started.await_line("SIGKILL to worker")
    started.press_ctrl_c()


def test_ctrl_c_without_workers(many_photos: Path) -> None:
    started = StartedDemo(many_photos, "--no-kill", "--num-workers", 0)
    started.await_line("800 photos")
    started.press_ctrl_c()


def test_ctrl_c_while_photos_are_made(tmp_path: Path) -> None:
    started = StartedDemo(cache=tmp_path)
    while not list(tmp_path.rglob("*.jpg")):
        assert started.process.poll() is None
        time.sleep(0.01)
    started.press_ctrl_c()
    assert list(tmp_path.rglob("*.jpg")) == []
