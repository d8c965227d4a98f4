"""Every page of the docs runs as it stands: its Python blocks, one after the other, as one script.

A page that begins with ``<!-- needs: NAME NAME -->`` is skipped where one of these cannot be imported.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGES = sorted((Path(__file__).parent.parent / "docs").glob("*.md"))


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_examples_of_a_page_run(page: Path, tmp_path: Path) -> None:
    text = page.read_text()
    needs = re.match(r"<!-- needs: (.*) -->", text)
    for name in needs.group(1).split() if needs else ():
        pytest.importorskip(name)
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert blocks, f"{page.name} has no example"
    script = tmp_path / "example.py"
    script.write_text("\n".join(blocks))
    outcome = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=100)
    assert outcome.returncode == 0, outcome.stderr
