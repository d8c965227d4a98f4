"""Finds what is to be measured, by the name that the user gave."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from dataloader import arguments
from dataloader.supervised import SupervisedLoader
from supervisor import exceptions

NAMES = ("loader", "dataset", "make_loader", "make_dataset")
"""What is looked for where no object is named, in this order."""

FORMS = "module:object, FILE.py:object or FILE.py"


class TargetError(ValueError):
    """There is no such object, or it cannot be measured; the message says what to write."""


class TargetRaisedError(RuntimeError):
    """The user's code raised while the object was looked for; the message has its traceback."""


def find_target(target: str) -> Any:
    """Return the dataset or the loader that ``target`` names.

    Parameters:
        target: ``module:object`` or ``path.py:object``, where ``object`` may be dotted; without an object the
            first of ``NAMES`` that is there. A function, or a class, is called without arguments.

    Raises:
        TargetError: there is none.
        TargetRaisedError: importing the module, or calling the object, raised.

    >>> find_target("string:digits")
    Traceback (most recent call last):
    dataloader.bench.target.TargetError: string:digits is of type str, which is no dataset: name a ...
    """
    place, _, path = target.partition(":")
    if not place:
        raise TargetError(f"{target!r} names no module: write {FORMS}")
    module = _load_file(Path(place)) if _is_file_name(place) else _import(place)
    name, thing = _named(module, place, path) if path else _expected(module, place)
    return checked(f"{place}:{name}", _made(f"{place}:{name}", thing))


def _is_file_name(place: str) -> bool:
    return place.endswith(".py") or "/" in place


# ---- modules -------------------------------------------------------------------------------------


def _import(name: str) -> ModuleType:
    if "" not in sys.path:
        sys.path.insert(0, "")  # an installed command does not look where it is called
    try:
        is_there = importlib.util.find_spec(name) is not None
    except Exception as error:  # of its package
        if not isinstance(error, ModuleNotFoundError) or not name.startswith(error.name or "."):
            raise _raised(f"importing {name}", error) from error
        is_there = False
    if not is_there:
        raise TargetError(f"there is no module {name!r}: write {FORMS}")
    module: ModuleType = _guarded(f"importing {name}", lambda: importlib.import_module(name))
    return module


def _load_file(path: Path) -> ModuleType:
    """Import a file under its own name, from its own folder, so that workers can import it, too."""
    if not path.is_file():
        raise TargetError(f"there is no file {str(path)!r}: write {FORMS}")
    name, folder = path.stem, str(path.resolve().parent)
    sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise TargetError(f"{str(path)!r} is no Python file: write {FORMS}")
    known = sys.modules.get(name)
    if known is not None and getattr(known, "__file__", None) != str(path.resolve()):
        raise TargetError(
            f"{str(path)!r} has the name of the module {name!r}, which is loaded already: rename the file"
        )
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    loader = spec.loader
    _guarded(f"running {path}", lambda: loader.exec_module(module))
    return module


# ---- objects -------------------------------------------------------------------------------------


def _named(module: ModuleType, place: str, path: str) -> tuple[str, Any]:
    thing: Any = module
    for part in path.split("."):
        try:
            thing = getattr(thing, part)
        except AttributeError:
            raise TargetError(f"{place} has no {path!r}: {_what_there_is(module, place)}") from None
    return path, thing


def _expected(module: ModuleType, place: str) -> tuple[str, Any]:
    for name in NAMES:
        if hasattr(module, name):
            return name, getattr(module, name)
    raise TargetError(f"{place} has none of {', '.join(NAMES)}: {_what_there_is(module, place)}")


def _what_there_is(module: ModuleType, place: str) -> str:
    names = [name for name, value in vars(module).items() if _may_be_meant(name, value, module)]
    there_is = f"; there is {', '.join(names[:10])}" if names else ""
    return f"write {place}:NAME, where NAME is a dataset, a loader, or a function that returns one{there_is}"


def _may_be_meant(name: str, value: Any, module: ModuleType) -> bool:
    if name.startswith("_"):
        return False
    if inspect.isclass(value) or inspect.isroutine(value):
        return bool(value.__module__ == module.__name__)
    return is_loader(value) or (hasattr(value, "__getitem__") and not isinstance(value, str | bytes))


def _made(name: str, thing: Any) -> Any:
    """Return what a function or a class gives; anything else as it is."""
    if not inspect.isroutine(thing) and not inspect.isclass(thing):
        return thing
    try:
        inspect.signature(thing).bind()
    except TypeError as error:
        raise TargetError(
            f"{name} cannot be called without arguments ({error}): write a function that takes none and "
            "returns the dataset or the loader, and name that"
        ) from None
    except ValueError:  # it does not tell
        pass
    return _guarded(f"calling {name}()", thing)


def checked(name: str, thing: Any) -> Any:
    """Return ``thing`` if it is a loader or a dataset.

    Raises TargetError otherwise.
    """
    if is_loader(thing):
        return thing
    if thing is None or isinstance(thing, str | bytes | ModuleType | int | float):
        kind = "None" if thing is None else f"of type {type(thing).__name__}"
        raise TargetError(
            f"{name} is {kind}, which is no dataset: name a dataset, a loader, or a function that returns one"
        )
    try:
        return arguments.checked_dataset(thing)
    except TypeError as error:
        raise TargetError(f"{name}: {error}") from None


def is_loader(thing: Any) -> bool:
    """Whether ``thing`` is a loader of ours, or torch's."""
    return isinstance(thing, SupervisedLoader) or is_torch_loader(thing)


def is_torch_loader(thing: Any) -> bool:
    """Whether ``thing`` is of torch's class, and not of ours."""
    torch = sys.modules.get("torch.utils.data")
    is_torchs = torch is not None and isinstance(thing, torch.DataLoader)
    return is_torchs and not isinstance(thing, SupervisedLoader)


# ---- the user's code -----------------------------------------------------------------------------


def _guarded(doing: str, function: Callable[[], Any]) -> Any:
    try:
        return function()
    except SystemExit as error:
        raise TargetError(
            f"{doing} ended the program (SystemExit: {error}): put what is to run in a program only behind "
            'if __name__ == "__main__":'
        ) from error
    except Exception as error:
        raise _raised(doing, error) from error


def _raised(doing: str, error: Exception) -> TargetRaisedError:
    own = error.with_traceback(_without_ours(error))
    return TargetRaisedError(f"{doing} raised\n\n{exceptions.traceback_text(own).rstrip()}")


def _without_ours(error: Exception) -> Any:
    """Return the traceback from the user's first frame on; all of it where there is none."""
    trace = error.__traceback__
    while trace is not None and _is_machinery(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return trace


def _is_machinery(file: str) -> bool:
    return file == __file__ or file.startswith("<frozen importlib") or file == importlib.__file__
