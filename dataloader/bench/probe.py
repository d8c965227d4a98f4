"""What goes into a worker to see what samples and batches cost.

A probe stands in the dataset's place and passes everything on. It notes each sample in a journal: a file that
workers append to, so that what they have noted can be read at any time, whatever becomes of them.

Non-goals: samples of less than a microsecond, which is what looking at the clocks takes.
"""

from __future__ import annotations

import io
import itertools
import json
import operator
import os
import pickle
import select
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dataloader.datasets import IterableDataset, by_row, fetch_together, loads_together
from dataloader.datasets.kinds import is_iterable
from supervisor.linux import own

SIZED_SAMPLES = 64
"""How many samples each process takes the size of: that costs a pickle."""

PROBED = "_probed"
"""The name under which a probe has its dataset."""

_SAMPLE, _BATCH = "sample", "batch"


class SampleNote(NamedTuple):
    """One sample: where in the dataset, from when to when (monotonic), CPU time, size where it was taken."""

    pid: int
    index: Any
    start_s: float
    stop_s: float
    cpu_s: float
    size_bytes: int | None


class BatchNote(NamedTuple):
    """One batch that was collated: of how many samples, from when to when (monotonic)."""

    pid: int
    samples: int
    start_s: float
    stop_s: float


class Journal:
    """A file of notes.

    Parameters:
        path: of the file; it need not be there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: select.epoll | None = None
        self._pid, self._sized = -1, 0

    def __reduce__(self) -> tuple[Any, ...]:
        return Journal, (self.path,)

    def note_sample(self, index: Any, times: Times, sample: Any) -> None:
        """Note one sample."""
        self._open()
        self._sized += 1
        size_bytes = size_of(sample) if self._sized <= SIZED_SAMPLES else None
        self._write(_SAMPLE, self._pid, plain_index(index), *times, size_bytes)

    def note_batch(self, samples: int, times: Times) -> None:
        """Note that a batch of so many samples was collated."""
        self._open()
        self._write(_BATCH, self._pid, samples, times.start_s, times.stop_s)

    def _open(self) -> None:
        if self._pid != os.getpid():  # each process has its own, after a fork too
            self._file = own(os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC))
            self._pid, self._sized = os.getpid(), 0

    def _write(self, *note: Any) -> None:
        assert self._file is not None
        os.write(self._file.fileno(), json.dumps(note).encode() + b"\n")

    def read(self) -> tuple[list[SampleNote], list[BatchNote]]:
        """Return all notes so far; one that a worker died of is left out."""
        samples, batches = [], []
        text = self.path.read_text() if self.path.exists() else ""
        for line in text.splitlines(keepends=True):
            if not line.endswith("\n"):
                break
            kind, *note = json.loads(line)
            if kind == _SAMPLE:
                samples.append(SampleNote(*note))
            else:
                batches.append(BatchNote(*note))
        return samples, batches


def plain_index(index: Any) -> int | str:
    """Return an index as JSON can have it.

    >>> plain_index(3), plain_index((1, 2))
    (3, '(1, 2)')
    """
    try:
        return operator.index(index)
    except TypeError:
        return index if isinstance(index, str) else repr(index)[:200]


def size_of(sample: Any) -> int | None:
    """Return how many bytes a sample takes to send, None where it cannot be pickled.

    >>> size_of(b"x" * 1000) > 1000
    True
    """
    file = io.BytesIO()
    sizer = _Sizer(file)
    try:
        sizer.dump(sample)
    except Exception:
        return None
    return file.tell() + sizer.buffers_bytes


class _Sizer(pickle.Pickler):
    """Pickles all but large buffers and tensors, and adds up what those have."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5, buffer_callback=self._leave_out)
        self.buffers_bytes = 0

    def _leave_out(self, buffer: pickle.PickleBuffer) -> None:
        self.buffers_bytes += buffer.raw().nbytes

    def reducer_override(self, obj: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is None or not isinstance(obj, torch.Tensor):
            return NotImplemented
        self.buffers_bytes += obj.numel() * obj.element_size()  # its pickle would have all it is a view of
        return int, (0,)


# ---- datasets ------------------------------------------------------------------------------------


class Times(NamedTuple):
    """From when to when (monotonic), and the CPU time of this process between, other threads included."""

    start_s: float
    stop_s: float
    cpu_s: float


def timed(function: Callable[..., Any], *arguments: Any) -> tuple[Any, Times]:
    """Return what ``function`` gives, and what that took."""
    cpu_s, start_s = time.process_time(), time.monotonic()
    value = function(*arguments)
    stop_s = time.monotonic()
    return value, Times(start_s, stop_s, time.process_time() - cpu_s)


class Probe:
    """Stands for a map-style dataset, and notes each sample. Its attributes are the dataset's."""

    _probed: Any
    _journal_of_probe: Journal  # a name that no dataset has

    def __init__(self, dataset: Any, journal: Journal) -> None:
        self.__dict__.update(_probed=dataset, _rows_of_probe=by_row(dataset), _journal_of_probe=journal)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._probed, self._journal_of_probe)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what a probe lacks, the loader must not find
            raise AttributeError(name)
        return getattr(self.__dict__["_probed"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._probed, name, value)

    def __len__(self) -> int:
        return len(self._probed)

    def __getitem__(self, index: Any) -> Any:
        sample, times = timed(operator.getitem, self._rows_of_probe, index)
        self._journal_of_probe.note_sample(index, times, sample)
        return sample


class TogetherProbe(Probe):
    """Stands for a dataset that loads the samples of a batch together: each is noted with an equal share."""

    def __getitems__(self, indices: Sequence[Any]) -> Any:
        samples, times = timed(fetch_together, self._probed, indices)
        each = samples if isinstance(samples, list | tuple) else [None] * len(indices)  # columns, say
        share_s = (times.stop_s - times.start_s) / max(1, len(indices))
        for number, (index, sample) in enumerate(zip(indices, each, strict=True)):
            start_s = times.start_s + number * share_s
            share = Times(start_s, start_s + share_s, times.cpu_s / len(indices))
            self._journal_of_probe.note_sample(index, share, sample)
        return samples


class StreamProbe(Probe, IterableDataset[Any]):
    """Stands for an iterable dataset; a sample's index is its place in the worker's stream."""

    def __iter__(self) -> Iterator[Any]:
        iterator = iter(self._probed)
        for index in itertools.count():
            try:
                sample, times = timed(next, iterator)
            except StopIteration:
                return
            self._journal_of_probe.note_sample(index, times, sample)
            yield sample


def probed(dataset: Any, journal: Journal) -> Probe:
    """Return what stands for ``dataset`` and notes its samples in ``journal``."""
    if is_iterable(dataset):
        return StreamProbe(dataset, journal)
    return (TogetherProbe if loads_together(dataset) else Probe)(dataset, journal)


class TimedCollate:
    """Notes what ``collate`` takes.

    Parameters:
        collate: of a list of samples; of one sample where not ``in_batches``.
    """

    def __init__(self, collate: Callable[[Any], Any], journal: Journal, *, in_batches: bool) -> None:
        self._collate, self._journal, self._in_batches = collate, journal, in_batches

    def __call__(self, samples: Any) -> Any:
        batch, times = timed(self._collate, samples)
        self._journal.note_batch(len(samples) if self._in_batches else 1, times)
        return batch
