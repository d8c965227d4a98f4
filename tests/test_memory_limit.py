"""Workers above their memory limit are replaced between two batches; those far above it in one are ended."""

from __future__ import annotations

import hashlib
import logging
import mmap
import os
import signal
import time
from typing import Any

import numpy as np
import pytest

from dataloader import DataLoader, ExitReason, RestartPolicy, WorkerDiedError
from supervisor import memory
from supervisor.report import ExitReport

pytestmark = pytest.mark.slow

MIB = 1 << 20
POLICY = RestartPolicy(max_restarts=0, backoff=0.0)  # what we choose ourselves does not count


class Leaks:
    """Noise; each sample leaves some memory behind."""

    def __init__(self, length: int, leak_bytes: int, pause_s: float = 0.0) -> None:
        self.length = length
        self.leak_bytes = leak_bytes
        self.pause_s = pause_s
        self.kept: list[Any] = []

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        self.kept.append(np.ones(self.leak_bytes, np.uint8))
        time.sleep(self.pause_s)
        return index, np.random.rand(100)


def digest(dataset: Any, num_workers: int, **arguments: Any) -> tuple[str, list[ExitReport]]:
    loader = DataLoader(dataset, num_workers=num_workers, seed=1, **arguments)
    with loader:
        whole = hashlib.sha256()
        for index, noise in loader:
            whole.update(index.tobytes() + noise.tobytes())
        return whole.hexdigest(), loader.reports


def replaced_for_memory(reports: list[ExitReport]) -> list[ExitReport]:
    return [report for report in reports if report.reason is ExitReason.MEMORY_LIMIT]


@pytest.mark.parametrize("start_method", ["fork", "forkserver"])
def test_a_leak_of_5_mb_a_batch_is_survived_for_500_batches(start_method: str) -> None:
    expected, _ = digest(Leaks(500, 0), 0)
    got, reports = digest(
        Leaks(500, 5_000_000),
        2,
        worker_memory_limit="300MB",
        multiprocessing_context=start_method,
        restart=POLICY,
    )
    assert got == expected
    assert 2 <= len(replaced_for_memory(reports)) <= 15
    assert max(report.peak_rss_bytes for report in reports) < 1_200 * MIB


def test_a_worker_leaves_between_two_batches_and_no_attempt_counts(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="supervisor"):
        expected, _ = digest(Leaks(40, 0), 0)
        got, reports = digest(
            Leaks(40, 4 * MIB, pause_s=0.05),
            1,
            worker_memory_limit=40 * MIB,
            multiprocessing_context="fork",
            restart=None,
        )
    assert got == expected
    left = replaced_for_memory(reports)
    assert left
    assert {(report.exit_code, report.signal, report.batch, report.attempt) for report in left} == {
        (0, None, None, None)
    }
    assert not any(report.is_death for report in left)
    assert left[0].replaced_s is not None
    assert "above the limit of 40 MiB" in str(left[0])
    assert {record.levelno for record in caplog.records} == {logging.INFO}


class Hoards:
    """Sample 5 takes a lot of memory, and a while."""

    def __getitem__(self, index: int) -> int:
        if index == 5:
            self.kept = np.ones(100 * MIB, np.uint8)
            time.sleep(5.0)
        return index

    def __len__(self) -> int:
        return 8


def test_far_above_the_limit_in_the_middle_of_a_batch_it_is_ended() -> None:
    loader = DataLoader(
        Hoards(),
        num_workers=1,
        worker_memory_limit="50MiB",
        multiprocessing_context="fork",
        restart=RestartPolicy(max_restarts=0, backoff=0.0, max_attempts=2),
    )
    with loader:
        iterator = iter(loader)
        assert [int(next(iterator)[0]) for _ in range(5)] == [0, 1, 2, 3, 4]
        with pytest.raises(WorkerDiedError, match="Sample 5 has ended 3 workers") as raised:
            next(iterator)
        assert [int(batch[0]) for batch in iterator] == [6, 7]
    report = raised.value.report
    assert (report.reason, report.confidence, report.sample) == (ExitReason.MEMORY_LIMIT, "proven", 5)
    over = next(fact for fact in report.evidence if "MiB" in fact)
    assert over.startswith("it had 10")
    assert over.endswith("above the limit of 50 MiB")
    # The first time it had another batch to do, and was not alone: that is charged to nobody.
    assert len(replaced_for_memory(loader.reports)) == 3


class Inherits:
    """Has memory from before the fork, reads all of it, and has little of its own."""

    def __init__(self, nbytes: int) -> None:
        self.inherited = np.ones(nbytes, np.uint8)

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.01)
        return int(self.inherited[:: mmap.PAGESIZE].sum())


def test_inherited_memory_is_not_charged() -> None:
    loader = DataLoader(
        Inherits(200 * MIB),
        num_workers=1,
        worker_memory_limit="20MiB",
        multiprocessing_context="fork",
    )
    with loader:
        assert len(list(loader)) == 60
        assert not replaced_for_memory(loader.reports)


class LargeSamples:
    """Samples of 8 MiB, collated in a slot."""

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.01)
        return np.full(8 * MIB, index, np.uint8)


def test_slots_are_not_charged() -> None:
    loader = DataLoader(
        LargeSamples(),
        num_workers=1,
        batch_size=2,
        worker_memory_limit="40MiB",
        multiprocessing_context="fork",
    )
    with loader:
        kept = [batch for _, batch in zip(range(10), loader, strict=False)]  # so that many slots are in use
        assert len(kept) == 10
        assert not replaced_for_memory(loader.reports)


def test_a_mapped_file_is_not_charged(tmp_path: Any) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(100 * MIB))

    class Maps:
        def __len__(self) -> int:
            return 40

        def __getitem__(self, index: int) -> int:
            self.mapped = np.memmap(path, np.uint8, "r")
            time.sleep(0.02)
            return int(self.mapped[:: mmap.PAGESIZE].sum())

    loader = DataLoader(Maps(), num_workers=1, worker_memory_limit="20MiB", multiprocessing_context="fork")
    with loader:
        assert len(list(loader)) == 40
        assert not replaced_for_memory(loader.reports)


class GrowsInSteps:
    """Sample 5 takes a little more than it may, and then, in the same breath, far more."""

    def __getitem__(self, index: int) -> int:
        if index == 5:
            self.kept = [np.ones(60 * MIB, np.uint8)]
            time.sleep(0.6)
            self.kept.append(np.ones(100 * MIB, np.uint8))
            time.sleep(5.0)
        return index

    def __len__(self) -> int:
        return 8


def test_who_grows_after_an_exact_reading_is_ended_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "USS_SHARE", 1e-6)  # the next one comes in an hour; a fork inherits that
    loader = DataLoader(
        GrowsInSteps(),
        num_workers=1,
        worker_memory_limit="50MiB",
        on_error="skip",
        multiprocessing_context="fork",
        restart=RestartPolicy(max_restarts=0, backoff=0.0, max_attempts=1),
    )
    with loader:
        assert [int(batch[0]) for batch in loader] == [0, 1, 2, 3, 4, 6, 7]
    (skipped,) = loader.skipped
    assert isinstance(skipped.exception, WorkerDiedError)
    assert {report.signal for report in skipped.exception.reports} == {signal.SIGKILL}


def test_exact_readings_are_rare(monkeypatch: pytest.MonkeyPatch) -> None:
    """One reads private memory, which is dear, for one hundredth of all time."""
    log = memory.MemoryLog(os.getpid())
    log._inherited_bytes = -(1 << 50)
    log.read(0.0)
    readings = 0
    read_private_bytes = log._private_bytes

    def counted(now: float) -> int:
        nonlocal readings
        readings += 1
        return read_private_bytes(now)

    monkeypatch.setattr(log, "_private_bytes", counted)
    assert all(log.own_bytes(0, now=step / 1000) > 0 for step in range(1000))
    start_s = time.thread_time()
    read_private_bytes(2.0)
    took_s = time.thread_time() - start_s
    assert 1 <= readings <= 1 + 10 * memory.USS_SHARE / took_s
