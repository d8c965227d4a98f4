"""Python objects on their way into fresh processes: pickled once, mapped by all.

cloudpickle makes the pickle, so that lambdas and classes of ``__main__`` travel. Large arrays stay out of the
pickle: they lie behind it in the same memory file, which every process maps copy-on-write, so that N workers
hold one copy until they write. What processes share stays shared: see sharing.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import io
import marshal
import mmap
import os
import pickle
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import cloudpickle

from supervisor import mapped_files, sharing
from supervisor.channel import close_all
from supervisor.culprit import find
from supervisor.linux import create_memory_file
from supervisor.originals import NONE, Originals, number_of, receive
from supervisor.sharing import Brought, arrived

ALIGNMENT_BYTES = 64
OUT_OF_BAND_BYTES = 1 << 16
REDUCERS: dict[type, Callable[[Any], Any]] = {}
"""How objects of other libraries are taken apart, by type: who knows such a library puts it here."""

MARSHAL_VERSION = 2  # later ones give other bytes for equal code, depending on who else refers to its parts


class PayloadError(TypeError):
    """An object cannot be pickled for another process, or not unpickled there.

    Its cause is the error that pickling or unpickling raised.
    """

    @classmethod
    def about(cls, parts: Mapping[str, Any], advice: str) -> PayloadError | None:
        """Return an error that says which part of ``parts`` cannot be pickled, None where all can."""
        culprit = find(parts, _try_to_dump)
        if culprit is None:
            return None
        error = cls(f"{culprit}: {advice}")
        error.__cause__ = culprit.error
        return error


@dataclass(frozen=True)
class Payload:
    """An object in a memory file.

    Parameters:
        fd: the memory file; it belongs to this payload.
        digest: of all its bytes: equal for equal contents.
        modules: names of the modules that the pickle imports.
        spans: (offset, length, read-only) in bytes of the pickle, then of each out-of-band buffer.
        shared: descriptors of what is shared and not copied; they belong to this payload, too.
        originals: the classes that travel by value.
    """

    fd: int
    digest: bytes
    modules: frozenset[str]
    spans: tuple[tuple[int, int, bool], ...]
    shared: tuple[int, ...] = ()
    originals: Originals = NONE

    @classmethod
    def pack(cls, value: Any) -> Payload:
        """Pickle ``value`` into a new memory file.

        Raises PayloadError if it cannot be pickled.
        """
        brought = Brought()
        try:
            pickled, pickler = _dump(value, brought)
        except Exception as error:
            raise PayloadError(f"{type(error).__name__}: {error}") from error
        views = [memoryview(pickled).toreadonly(), *(buffer.raw() for buffer in pickler.buffers)]
        spans = _lay_out(views)
        fd = create_memory_file("worker-payload")
        os.ftruncate(fd, max(1, sum(spans[-1][:2])))
        digest = hashlib.blake2b(brought.identities())
        for view, (offset, length, _) in zip(views, spans, strict=True):
            digest.update(length.to_bytes(8, "little"))
            digest.update(view)
            _write(fd, view, offset)
        modules = frozenset(pickler.modules - {"__main__", "builtins"})
        originals = Originals(pickler.by_value.values())
        return cls(fd, digest.digest(), modules, spans, tuple(brought.descriptors), originals)

    def load(self) -> Any:
        """Return the object, its large arrays mapped copy-on-write."""
        memory = memoryview(mmap.mmap(self.fd, 0, access=mmap.ACCESS_COPY))
        views = [memory[offset : offset + length] for offset, length, _ in self.spans]
        readonly = [flag for _, _, flag in self.spans]
        buffers = [view.toreadonly() if flag else view for view, flag in zip(views, readonly, strict=True)]
        with arrived(self.shared):
            value, copies = pickle.loads(views[0], buffers=buffers[1:])
        receive(copies)
        return value

    def import_modules(self) -> None:
        """Import what the pickle names, so that processes forked afterwards need not.

        numpy.random is lazy in numpy 2 and wanted by every worker. A module that fails to import fails
        again in the worker, where its traceback is worth having. What the imports warn of was shown, or
        silenced, where the pickle was made.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name in sorted({"numpy.random", *self.modules}):
                with contextlib.suppress(Exception):
                    importlib.import_module(name)

    def descriptors(self) -> tuple[int, ...]:
        """All that must go along with it."""
        return (self.fd, *self.shared)

    def received(self, descriptors: Sequence[int]) -> Payload:
        """Return this payload as it is here, where its ``descriptors()`` have arrived as these."""
        return replace(self, fd=descriptors[0], shared=tuple(descriptors[1:]))

    def close(self) -> None:
        close_all(self.descriptors())


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """A pickler that notes which modules its pickle will import, and which classes are in it by value."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5, buffer_callback=self._keep_large)
        self.buffers: list[pickle.PickleBuffer] = []
        self.modules: set[str] = set()
        self.by_value: dict[int, type] = {}

    def _keep_large(self, buffer: pickle.PickleBuffer) -> bool:
        if buffer.raw().nbytes < OUT_OF_BAND_BYTES:
            return True
        self.buffers.append(buffer)
        return False

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, CodeType):  # cloudpickle would leave out the file's name, and tracebacks need it
            with contextlib.suppress(ValueError):  # constants that no compiler makes
                return marshal.loads, (marshal.dumps(obj, MARSHAL_VERSION),)
        if isinstance(obj, type | FunctionType | BuiltinFunctionType):
            self.modules.add(obj.__module__ or "builtins")
        elif isinstance(obj, ModuleType):
            self.modules.add(obj.__name__)
        for reduced in (sharing.reduced(obj), mapped_files.reduced(obj), _reduced(obj)):
            if reduced is not NotImplemented:
                return reduced
        reduced = super().reducer_override(obj)
        if isinstance(obj, type) and reduced is not NotImplemented:
            self.by_value[number_of(obj)] = obj
        return reduced


def _reduced(obj: Any) -> Any:
    reducer = REDUCERS.get(type(obj))
    return NotImplemented if reducer is None else reducer(obj)


def _dump(value: Any, brought: Brought) -> tuple[memoryview, _Pickler]:
    file = io.BytesIO()
    pickler = _Pickler(file)
    with brought.collecting():
        pickler.dump((value, pickler.by_value))  # in this order: first they are met, then told
    return file.getbuffer(), pickler


def _try_to_dump(value: Any) -> None:
    brought = Brought()
    _dump(value, brought)
    brought.close()


def _lay_out(views: list[memoryview]) -> tuple[tuple[int, int, bool], ...]:
    spans, end = [], 0
    for view in views:
        offset = -(-end // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        spans.append((offset, view.nbytes, view.readonly))
        end = offset + view.nbytes
    return tuple(spans)


def _write(fd: int, view: memoryview, offset: int) -> None:
    while view.nbytes:
        written = os.pwrite(fd, view, offset)
        view, offset = view[written:], offset + written
