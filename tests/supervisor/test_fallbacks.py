"""Where the kernel refuses pidfds or memory files, everything works by SIGCHLD and temporary files."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.processes import is_gone, living_descendants, wait_until
from tests.supervisor.seccomp import NUMBERS

pytestmark = pytest.mark.skipif(
    platform.machine() not in NUMBERS["memfd_create"],
    reason=f"the numbers of system calls are not known here for {platform.machine()}",
)

REFUSED = {"pidfd": ["pidfd_open"], "memfd": ["memfd_create"], "both": ["pidfd_open", "memfd_create"]}

REFUSE = """
import errno, os, signal, sys
from tests.supervisor.seccomp import refuse
start_method, code_name, *names = sys.argv[1:]
code = getattr(errno, code_name)
refuse(*names, code=code)
for name in names:
    try:
        os.memfd_create("x") if name == "memfd_create" else os.pidfd_open(os.getpid())
    except OSError as error:
        assert error.errno == code
        continue
    raise AssertionError(f"{name} was not refused")
"""

EPOCHS = """
import numpy as np
from dataloader import DataLoader

class Samples:
    def __len__(self):
        return 400
    def __getitem__(self, index):
        return np.full(5000, index)

with DataLoader(
    Samples(), batch_size=4, num_workers=2, persistent_workers=True, multiprocessing_context=start_method
) as loader:
    for epoch in range(2):
        got = []
        for number, batch in enumerate(loader):
            if number == 20:
                os.kill(loader.workers()[0].pid, signal.SIGKILL)
            got += batch[:, -1].tolist()
        assert got == list(range(400)), got
    assert len([report for report in loader.reports if report.is_death]) == 2, loader.reports
    print("all there", flush=True)
"""

ENDS = """
import time
from supervisor.policy import RestartPolicy
from supervisor.pool import WorkerPool
from supervisor.report import WorkerDiedError
from tests.supervisor import toys

with WorkerPool(2, start_method=start_method, policy=toys.EAGER) as pool:
    pool.start(toys.serve)
    for end in (b"kill", b"crash", b"exit 0", b"exit 3", b"raise", b"close"):
        start_s = time.monotonic()
        toys.end_worker(pool, 0, end)
        noticed_s = time.monotonic() - start_s
        report = pool.reports[-1]
        print(report.reason.value, report.exit_code, report.signal, flush=True)
        assert end == b"close" or noticed_s < 2.0, noticed_s
        assert end != b"crash" or "in crash" in report.traceback, report.traceback
        pool.check()
        pool.workers[0].pipe.send(b"hello")
        assert pool.receive(0).data == b"HELLO"
    os.kill(toys.supervisor_pid(pool), signal.SIGKILL)
    try:
        pool.receive(0)
    except WorkerDiedError as error:
        print(str(error).split(". ")[1], flush=True)

with WorkerPool(2, start_method=start_method, close_s=0.1, terminate_s=0.1) as pool:
    pool.start(toys.stubborn)
    for worker in range(2):
        pool.receive(worker)
print([report.signal for report in pool.reports], flush=True)
"""

CONSUMER = """
from supervisor.pool import WorkerPool
from tests.supervisor import toys

with WorkerPool(2, start_method=start_method) as pool:
    pool.start(toys.stubborn)
    for worker in range(2):
        pool.receive(worker)
    print("ready", flush=True)
    pool.wait(60.0)
"""


@contextmanager
def script(
    body: str, start_method: str, names: list[str], code: str = "EPERM"
) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", REFUSE + body, start_method, code, *names]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("start_method", ["fork", "forkserver"])
@pytest.mark.parametrize("names", REFUSED.values(), ids=REFUSED)
def test_the_same_batches_after_deaths(names: list[str], start_method: str) -> None:
    with script(EPOCHS, start_method, names) as process:
        output, _ = process.communicate(timeout=60)
    assert (output, process.returncode) == ("all there\n", 0)


@pytest.mark.parametrize("code", ["EPERM", "ENOSYS"])
def test_every_end_is_noticed_and_named(code: str) -> None:
    with script(ENDS, "fork", REFUSED["both"], code) as process:
        output, _ = process.communicate(timeout=60)
    assert output.splitlines() == [
        "killed None 9",
        "crashed None 11",
        "exited 0 None",
        "exited 3 None",
        "exception 1 None",
        "killed None 9",
        "The supervisor process died, and its workers with it",
        "[9, 9]",
    ]


@pytest.mark.parametrize("start_method", ["fork", "forkserver", "spawn"])
def test_nothing_outlives_a_killed_consumer(start_method: str) -> None:
    with script(CONSUMER, start_method, REFUSED["both"], "ENOSYS") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        ours = living_descendants(process.pid)
        assert len(ours) == 3
        process.kill()
        assert wait_until(lambda: all(is_gone(pid) for pid in ours), timeout_s=1.0)
