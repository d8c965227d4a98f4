"""The built package, beside the other package on PyPI that is imported as ``supervisor``."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.network]

ROOT = Path(__file__).parent.parent
USE_BOTH = """
import supervisor.options, supervisor.pool
from dataloader import DataLoader
print(supervisor.options.VERSION, supervisor.pool.__file__)
print([batch.tolist() for batch in DataLoader(range(4), batch_size=2, num_workers=1)])
"""


def pip(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100)


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Ours and theirs."""
    folder = tmp_path_factory.mktemp("wheels")
    if pip("download", "--no-deps", "--dest", folder, "supervisor==4.3.0").returncode:
        pytest.skip("no package index can be reached")
    built = pip("wheel", "--no-deps", "--wheel-dir", folder, ROOT)
    assert built.returncode == 0, built.stderr
    return {wheel.name.partition("-")[0]: wheel for wheel in folder.iterdir()}


@pytest.mark.parametrize(
    "order",
    [("supervisor", "supervised_dataloader"), ("supervised_dataloader", "supervisor")],
    ids=" then ".join,
)
def test_both_supervisors_work_in_one_environment(
    wheels: dict[str, Path], order: tuple[str, str], tmp_path: Path
) -> None:
    for name in order:
        # What is installed in the environment that runs this test is left alone.
        installed = pip("install", "--no-deps", "--ignore-installed", "--prefix", tmp_path, wheels[name])
        assert installed.returncode == 0, installed.stderr
    packages = sysconfig.get_path("purelib", vars={"base": str(tmp_path)})
    outcome = subprocess.run(
        [sys.executable, "-c", USE_BOTH],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": packages},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert outcome.stdout.splitlines() == [f"4.3.0 {packages}/supervisor/pool.py", "[[0, 1], [2, 3]]"], (
        outcome.stderr
    )
