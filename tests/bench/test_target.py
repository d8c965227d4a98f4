"""What a target names, and what is said where it names nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from dataloader.bench.target import TargetError, TargetRaisedError, find_target
from tests.bench.conftest import Write

JOB = """
from dataloader import DataLoader

class Data:
    def __init__(self, length=3):
        self.length = length
    def __len__(self):
        return self.length
    def __getitem__(self, index):
        return index

class Holder:
    inner = Data(7)

class NeedsRoot:
    def __init__(self, root):
        pass
    def __getitem__(self, index):
        return index

def make_loader():
    return DataLoader(Data(4), batch_size=2)

def generator():
    yield 1

def raises():
    return {}["missing"]

def nothing():
    pass

number = 5
"""


@pytest.mark.parametrize(
    ("target", "length"),
    [
        ("job:Holder.inner", 7),
        ("job.py:Holder.inner", 7),
        ("./job.py:Data", 3),
        ("job:make_loader", 2),
        ("job.py", 2),
        ("job", 2),
    ],
)
def test_what_is_named_is_found_and_functions_and_classes_are_called(
    write: Write, target: str, length: int
) -> None:
    write(JOB)
    assert len(find_target(target)) == length


def test_in_a_file_alone_the_first_of_four_names_is_meant(write: Write) -> None:
    write("make_dataset = lambda: [1]\ndataset = [1, 2]\nmake_loader = None")
    assert find_target("job.py") == [1, 2]


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("nowhere.py", "there is no file 'nowhere.py': write module:object, FILE.py:object or FILE.py"),
        ("nowhere:x", "there is no module 'nowhere': write module:object"),
        ("nowhere.deep:x", "there is no module 'nowhere.deep'"),
        (":x", "':x' names no module"),
        ("json:x", "json has no 'x': write json:NAME, where NAME is a dataset, a loader, or a function"),
        ("job:Holder.outer", "job has no 'Holder.outer': .*there is Data, Holder, NeedsRoot, make_loader"),
        ("json", "json has none of loader, dataset, make_loader, make_dataset: write json:NAME"),
        ("job:NeedsRoot", "job:NeedsRoot cannot be called without arguments .*'root'.*write a function"),
        ("job:number", "job:number is of type int, which is no dataset: name a dataset"),
        ("job:nothing", "job:nothing is None, which is no dataset"),
        ("job:generator", "job:generator: dataset=.* is an iterator, .*give an IterableDataset"),
        ("job:Holder", "job:Holder: dataset=.* has no __getitem__ and no __iter__"),
    ],
)
def test_a_bad_target_is_told_what_to_write(write: Write, target: str, message: str) -> None:
    write(JOB)
    with pytest.raises(TargetError, match=message):
        find_target(target)


def test_a_file_named_like_a_loaded_module_is_refused(write: Write, tmp_path: Path) -> None:
    write("")
    (tmp_path / "json.py").touch()
    with pytest.raises(TargetError, match="has the name of the module 'json', which is loaded already"):
        find_target("json.py")


@pytest.mark.parametrize("target", ["job:x", "job.py:x"])
def test_an_error_in_the_module_is_shown_from_its_first_line_on(write: Write, target: str) -> None:
    path = write("import nothing_of_that_name")
    with pytest.raises(TargetRaisedError) as raised:
        find_target(target)
    _, _, opening, first, *_ = str(raised.value).splitlines()
    assert opening == "Traceback (most recent call last):"
    assert first == f'  File "{path}", line 1, in <module>'
    assert "No module named 'nothing_of_that_name'" in str(raised.value)


def test_an_error_in_the_package_is_no_missing_module(write: Write, tmp_path: Path) -> None:
    write("")
    (tmp_path / "broken_package").mkdir()
    (tmp_path / "broken_package" / "__init__.py").write_text("import nothing_of_that_name")
    with pytest.raises(TargetRaisedError, match="No module named 'nothing_of_that_name'"):
        find_target("broken_package.data:x")


def test_an_error_in_the_function_is_shown(write: Write) -> None:
    write(JOB)
    with pytest.raises(TargetRaisedError, match=r"(?s)^calling job:raises\(\) raised.*in raises.*KeyError"):
        find_target("job:raises")


def test_a_script_that_ends_itself_is_told_of_the_guard(write: Write) -> None:
    write("raise SystemExit('usage: job')")
    with pytest.raises(TargetError, match=r"SystemExit: usage: job.*if __name__ == "):
        find_target("job.py")
