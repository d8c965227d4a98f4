"""Surroundings captured in one process and put on in another."""

from __future__ import annotations

import json
import logging
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from supervisor.channel import Channel
from supervisor.child import WorkerContext
from supervisor.payload import Payload
from supervisor.pool import WorkerPool
from supervisor.surroundings import Surroundings
from tests.forks import in_child


def put_on(surroundings: Surroundings) -> Surroundings:
    """Return what is captured after they have been put on, in another process."""

    def put_on_and_capture() -> Surroundings:
        surroundings.apply()
        surroundings.apply_filters()
        return Surroundings.capture()

    captured: Surroundings = in_child(put_on_and_capture)
    return captured


def test_what_is_put_on_is_what_was_captured(tmp_path: Path) -> None:
    def change_everything() -> Surroundings:
        sys.path.insert(0, "/first of all")
        sys.argv = ["train.py", "--epochs", "3"]
        os.chdir(tmp_path)
        os.environ["ADDED"] = "\udcff not unicode"
        del os.environ["PATH"]
        logging.getLogger().setLevel(logging.ERROR)
        logging.getLogger("own.part").setLevel(logging.DEBUG)
        logging.disable(logging.INFO)
        warnings.filterwarnings("ignore", "a message", UserWarning, "a.module", 3)
        return Surroundings.capture()

    ours, changed = Surroundings.capture(), in_child(change_everything)
    assert all(getattr(changed, name) != getattr(ours, name) for name in vars(ours).keys() - {"authkey"})
    assert put_on(changed) == changed


def test_the_environment_is_the_processes_own_too() -> None:
    def change_and_ask() -> list[str]:
        surroundings = Surroundings.capture()
        surroundings.environment["ADDED"] = "1"
        del surroundings.environment["PATH"]
        surroundings.apply()
        return os.popen("/usr/bin/env").read().splitlines()

    told = in_child(change_and_ask)
    assert "ADDED=1" in told
    assert f"PATH={os.environ['PATH']}" not in told


def test_a_working_directory_that_is_gone_is_left_alone(tmp_path: Path) -> None:
    def vanish() -> Surroundings:
        folder = tmp_path / "gone"
        folder.mkdir()
        os.chdir(folder)
        before = Surroundings.capture()
        folder.rmdir()
        assert before.folder == str(folder)
        assert Surroundings.capture().folder is None
        return before

    assert put_on(in_child(vanish)).folder == os.getcwd()


def test_a_filter_whose_category_does_not_travel_is_left_out() -> None:
    def forget_and_put_on(surroundings: Surroundings) -> list[Any]:
        del sys.modules["vanishing"]
        surroundings.apply_filters()
        return list(warnings.filters[:2])

    vanishing = type(sys)("vanishing")
    exec("class Gone(UserWarning): pass", vanishing.__dict__)
    sys.modules["vanishing"] = vanishing
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BytesWarning)
        warnings.simplefilter("ignore", vanishing.Gone)
        warnings.simplefilter("error", UnicodeWarning)
        surroundings = Surroundings.capture()
        expected = [warnings.filters[0], warnings.filters[2]]
    assert in_child(lambda: forget_and_put_on(surroundings)) == expected
    del sys.modules["vanishing"]


def test_a_module_that_imports_is_silent_and_changes_no_filter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "import warnings\nwarnings.warn('old')\nwarnings.simplefilter('ignore')\n"
    (tmp_path / "warns.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = list(warnings.filters)
    with warnings.catch_warnings(record=True) as warned:
        Payload(-1, b"", frozenset({"warns"}), ()).import_modules()
    assert not warned
    assert "warns" in sys.modules
    assert list(warnings.filters) == before
    del sys.modules["warns"]


# ---- through a pool ------------------------------------------------------------------------------


def tell_environment(pipe: Channel, context: WorkerContext) -> None:
    while (message := pipe.receive()) is not None:
        pipe.send(json.dumps(os.environ.get(message.data.decode())).encode())


def test_surroundings_are_brought_again_with_a_job_that_is_not(
    start_method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with WorkerPool(1, start_method=start_method) as pool:
        for value in ("one", "other"):
            monkeypatch.setenv("OURS", value)
            pool.start(tell_environment)
            pool.workers[0].pipe.send(b"OURS")
            assert json.loads(pool.receive(0).data) == value
            pool.stop()
