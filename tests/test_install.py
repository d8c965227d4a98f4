"""The built package, beside the other package on PyPI that is imported as ``supervisor``."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.network]

ROOT = Path(__file__).parent.parent
USE_OURS = """
import supervisor.pool
from dataloader import DataLoader

def shout(pipe, context):
    while (message := pipe.receive()) is not None:
        pipe.send(message.data.upper())

with supervisor.pool.WorkerPool(1) as pool:
    pool.start(shout)
    pool.workers[0].pipe.send(b"hello")
    print(pool.receive(0).data.decode())
print([batch.tolist() for batch in DataLoader(range(4), batch_size=2, num_workers=1)])
print(supervisor.pool.__file__)
"""
USE_THEIRS = """
import supervisor.options, supervisor.states
print(supervisor.options.VERSION, supervisor.states.ProcessStates.RUNNING)
"""


def run(*command: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*map(str, command)], cwd=cwd, capture_output=True, text=True, timeout=100)


def pip(*arguments: object) -> subprocess.CompletedProcess[str]:
    return run(sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments)


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Ours and theirs."""
    folder = tmp_path_factory.mktemp("wheels")
    if pip("download", "--no-deps", "--dest", folder, "supervisor==4.3.0").returncode:
        pytest.skip("no package index can be reached")
    built = pip("wheel", "--no-deps", "--wheel-dir", folder, ROOT)
    assert built.returncode == 0, built.stderr
    return {wheel.name.partition("-")[0]: wheel for wheel in folder.iterdir()}


class Environment:
    """A new virtual environment; what both packages need it has from the one that runs this test."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, with_pip=False)
        self.bin = folder / "bin"
        self.packages = Path(sysconfig.get_path("purelib", "posix_prefix", vars={"base": str(folder)}))
        (self.packages / "lent.pth").write_text(sysconfig.get_path("purelib"))

    def install(self, wheel: Path) -> None:
        arguments = ("install", "--no-deps", "--no-warn-script-location", wheel)
        installed = pip("--python", self.bin / "python", *arguments)
        assert installed.returncode == 0, installed.stderr

    def lines_of(self, *command: object) -> list[str]:
        outcome = run(*command, cwd=self.bin)
        assert outcome.returncode == 0, outcome.stderr
        return outcome.stdout.splitlines()


@pytest.mark.parametrize(
    "order",
    [("supervisor", "supervised_dataloader"), ("supervised_dataloader", "supervisor")],
    ids=" then ".join,
)
def test_both_supervisors_work_in_one_environment(
    wheels: dict[str, Path], order: tuple[str, str], tmp_path: Path
) -> None:
    environment = Environment(tmp_path)
    for name in order:
        environment.install(wheels[name])
    python = environment.bin / "python"
    assert environment.lines_of(python, "-c", USE_OURS) == [
        "HELLO",
        "[[0, 1], [2, 3]]",
        f"{environment.packages}/supervisor/pool.py",
    ]
    assert environment.lines_of(python, "-c", USE_THEIRS) == ["4.3.0 20"]
    assert environment.lines_of(environment.bin / "supervisord", "--version") == ["4.3.0"]
