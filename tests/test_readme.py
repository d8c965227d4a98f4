"""The README's example runs as it stands."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"


@pytest.mark.slow
def test_the_example_runs_without_a_main_guard(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    script = tmp_path / "example.py"
    script.write_text(example)
    outcome = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
    assert outcome.stderr == ""
    assert len(re.findall(r"reason: +closed", outcome.stdout)) == 2 * 2  # workers, epochs
