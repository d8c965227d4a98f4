"""What a loader says of itself: progress, figures, parts, and the bar on stderr."""

from __future__ import annotations

import io
import os
import signal
import sys
import time
from typing import Any

import numpy as np
import pytest

from dataloader import BatchSampler, DataLoader, Dataset, RestartPolicy
from dataloader.stats import Delivered, Progress
from tests.equality import fingerprint

WORKERS = pytest.mark.parametrize("num_workers", [0, 2])
PIXELS = 100_000
SLEEP_S = 0.005


class Images(Dataset[Any]):
    def __init__(self, sleep_s: float = 0.0) -> None:
        self.sleep_s = sleep_s

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.sleep_s)
        return np.full(PIXELS, index, np.uint8)


def loader_of(dataset: Any, num_workers: int, **arguments: Any) -> DataLoader:
    if num_workers:
        arguments["multiprocessing_context"] = "fork"
    return DataLoader(dataset, num_workers=num_workers, **arguments)


# ---- progress ------------------------------------------------------------------------------------


@WORKERS
def test_progress_counts_what_was_delivered(num_workers: int) -> None:
    with loader_of(range(10), num_workers, batch_size=4) as loader:
        iterator: Any = iter(loader)
        seen = [iterator.progress]
        for _ in iterator:
            seen.append(iterator.progress)
        assert seen == [Progress(done, 10) for done in (0, 4, 8, 10)] == [(0, 10), (4, 10), (8, 10), (10, 10)]
        assert iterator.progress == (10, 10)


@WORKERS
def test_an_exception_is_progress_too(num_workers: int) -> None:
    with loader_of([1, None, 3], num_workers) as loader:
        iterator: Any = iter(loader)
        next(iterator)
        with pytest.raises(TypeError):
            next(iterator)
        assert iterator.progress == (2, 3)


@pytest.mark.parametrize(
    ("arguments", "items"),
    [
        ({"batch_size": 4}, 10),
        ({"batch_size": 4, "drop_last": True}, 8),
        ({"batch_size": None}, 10),
        ({"sampler": [1, 2, 3]}, 3),
        ({"batch_sampler": BatchSampler(range(7), 2, True)}, 6),
    ],
    ids=["batches", "full batches", "samples", "sampler", "batch_sampler"],
)
def test_num_items_is_how_many_samples_come(arguments: dict[str, Any], items: int) -> None:
    loader = DataLoader(range(10), collate_fn=lambda samples: samples, **arguments)
    assert loader.num_items == items
    assert sum(np.size(batch) for batch in loader) == items


def test_where_a_sampler_does_not_tell_the_total_is_not_known() -> None:
    loader = DataLoader(range(10), batch_sampler=[[1, 2], [3]])
    with pytest.raises(TypeError, match=r"^batch_sampler=\[\[1, 2\], \[3\]\] does not tell how many samples"):
        loader.num_items  # noqa: B018
    iterator: Any = iter(loader)
    next(iterator)
    assert iterator.progress == (2, None)


# ---- parts ---------------------------------------------------------------------------------------


@WORKERS
def test_a_slice_is_a_loader_of_a_part(num_workers: int) -> None:
    with loader_of(range(100), num_workers, batch_size=4, seed=5) as loader:
        part = loader.slice(10, 20)
        with part:
            assert [batch.tolist() for batch in part] == [[10, 11, 12, 13], [14, 15, 16, 17], [18, 19]]
        assert (part.num_items, part.num_workers, part.batch_size) == (10, num_workers, 4)
        assert part.seed == loader.slice(10, 20).seed
        assert len({part.seed, loader.seed, loader.slice(20, 30).seed}) == 3
        assert list(loader.slice(5, 5)) == []


@pytest.mark.parametrize("n", [1, 3, 10, 12])
def test_a_split_has_every_sample_once(n: int) -> None:
    parts = DataLoader(range(10), batch_size=2, shuffle=True).split(n)
    items = [part.num_items for part in parts]
    assert len(items) == n
    assert max(items) - min(items) <= 1
    assert sorted(i for part in parts for batch in part for i in batch.tolist()) == list(range(10))


@pytest.mark.parametrize(
    ("arguments", "start", "stop", "message"),
    [
        ({}, 5, 11, "start=5, stop=11: give 0 <= start <= stop <= 10"),
        ({}, 5, 4, "start=5, stop=4: give 0 <= start"),
        ({}, -1, 4, "start=-1: give at least 0"),
        ({"sampler": [1]}, 0, 1, r"sampler=\[1\] decides which samples come: slice that instead"),
        ({"batch_sampler": [[1]]}, 0, 1, r"batch_sampler=\[\[1\]\] decides which"),
    ],
)
def test_a_wrong_slice_is_refused(arguments: dict[str, Any], start: int, stop: int, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        DataLoader(range(10), **arguments).slice(start, stop)


def test_a_split_into_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^n=0: give at least 1"):
        DataLoader(range(10)).split(0)


# ---- figures -------------------------------------------------------------------------------------


@WORKERS
def test_figures_cover_all_epochs(num_workers: int) -> None:
    with loader_of(Images(sleep_s=0.005), num_workers, batch_size=4) as loader:
        assert loader.stats().batches == 0
        for _ in range(2):
            list(loader)
        next(iter(loader))
        stats = loader.stats()
    assert (stats.batches, stats.samples, stats.deaths) == (7, 24, 0)
    assert stats.waited_s > 0.03
    if num_workers:
        assert 24 * PIXELS <= stats.bytes < 24 * PIXELS * 1.01
        assert sorted(stats.worked_s) == [0, 1]
        assert all(0.03 < worked_s < 5 for worked_s in stats.worked_s.values())
    else:
        assert (stats.bytes, stats.worked_s) == (0, {})


def test_figures_outlive_workers_and_close() -> None:
    policy = RestartPolicy(backoff=0)
    loader = loader_of(Images(sleep_s=SLEEP_S), 1, persistent_workers=True, restart=policy)
    list(loader)
    before_s = loader.stats().worked_s[0]
    os.kill(loader.workers()[0].pid, signal.SIGKILL)
    list(loader)
    assert loader.stats().deaths == 1
    assert loader.stats().worked_s[0] - before_s >= len(loader) * SLEEP_S  # its samples sleep at least that
    stats = loader.stats()
    loader.close()
    assert loader.stats() == stats


def test_one_batch_more() -> None:
    assert Delivered(1, 2, 3).plus(10, 100) == Delivered(2, 12, 103)


# ---- the bar -------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@WORKERS
def test_a_terminal_shows_rate_and_deaths(num_workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    policy = RestartPolicy(backoff=0)
    arguments: dict[str, Any] = {"persistent_workers": True, "restart": policy} if num_workers else {}
    with loader_of(range(10), num_workers, progress=True, batch_size=3, **arguments) as loader:
        expected = fingerprint(list(DataLoader(range(10), batch_size=3)))
        assert fingerprint(list(loader)) == expected
        for worker in loader.workers():
            os.kill(worker.pid, signal.SIGKILL)
        assert fingerprint(list(loader)) == expected
    first, second = terminal.getvalue().strip().split("\n")[-2:]
    assert "10/10" in first
    assert "samples/s" in first
    assert "10/10" in second
    assert ("2 deaths" in second) == bool(num_workers)


def test_a_log_file_gets_whole_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dataloader.watch.LINE_INTERVAL_S", 0.0)
    list(DataLoader(range(6), batch_size=3, progress=True))
    lines = capsys.readouterr().err.splitlines()
    assert [line.split("/")[0].split()[-1] for line in lines] == ["0", "3", "6", "6"]
    assert not any("\r" in line for line in lines)


def test_without_tqdm_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'supervised-dataloader\[progress\]'"):
        iter(DataLoader(range(3), progress=True))
