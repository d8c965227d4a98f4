"""The command line as a whole: help, and what it says when it cannot run."""

import subprocess
import sys
from importlib.metadata import entry_points

import pytest

from dataloader import cli

WITHOUT = """
import sys

class Missing:
    def find_spec(name, path=None, target=None):
        if name == "{module}":
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing)
sys.argv = ["dataloader", *{words!r}]
from dataloader.cli import main
main()
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=60)


def test_the_installed_command_is_main() -> None:
    (command,) = entry_points(group="console_scripts", name="dataloader")
    assert command.load() is cli.main


@pytest.mark.slow
def test_python_m_shows_the_same_help() -> None:
    outcome = run("-m", "dataloader", "--help")
    assert outcome.returncode == 0
    assert outcome.stdout.startswith("Usage: dataloader [OPTIONS] COMMAND")
    assert "bench  Measure what loading TARGET costs" in outcome.stdout
    assert "demo   Load the JPEGs in FOLDER" in outcome.stdout


@pytest.mark.slow
@pytest.mark.parametrize("module", ["click", "rich", "PIL"])
def test_a_missing_extra_is_named_with_the_line_that_installs_it(module: str) -> None:
    outcome = run("-c", WITHOUT.format(module=module, words=["demo"]))
    assert outcome.returncode == 1
    assert outcome.stdout == ""
    assert outcome.stderr.splitlines() == [
        f"dataloader: the command line needs {module}, which is not installed.",
        'Try: pip install "supervised-dataloader[cli,images]"',
    ]


def test_a_command_needs_nothing_that_only_another_needs() -> None:
    outcome = run("-c", WITHOUT.format(module="PIL", words=["bench", "--help"]))
    assert (outcome.returncode, outcome.stderr) == (0, "")
    assert outcome.stdout.startswith("Usage: dataloader bench [OPTIONS] TARGET")


def test_any_other_missing_module_is_not_disguised() -> None:
    outcome = run("-c", WITHOUT.format(module="cloudpickle", words=["demo"]))
    assert outcome.returncode == 1
    assert "cloudpickle" in outcome.stderr.splitlines()[-1]
    assert "supervised-dataloader[cli,images]" not in outcome.stderr
