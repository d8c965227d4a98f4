"""Modules that are made for one test, and forgotten after it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes a module called ``job`` into the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def written(source: str) -> Path:
        path = tmp_path / "job.py"
        path.write_text(source)
        return path

    yield written
    sys.modules.pop("job", None)
