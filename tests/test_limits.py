"""Few descriptors and no /dev/shm to speak of: memory is the only limit."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

TIMEOUT_S = 100
START_METHODS = ["forkserver", "fork"]

# In a mount namespace of its own, with a /dev/shm that is full.
WITH_FULL_SHM = (
    "unshare",
    "--mount",
    "sh",
    "-c",
    'mount -t tmpfs -o size=64k none /dev/shm && head -c 64k /dev/zero >/dev/shm/full && exec "$@"',
    "sh",
)

FEW_DESCRIPTORS = """
import resource, sys
from dataloader import DataLoader
from tests.datasets import LargeArrays

start_method, kind, count, num_workers, prefetch, held = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard))

dataset = LargeArrays(count) if kind == "large" else range(count)
loader = DataLoader(
    dataset, num_workers=num_workers, prefetch_factor=prefetch, multiprocessing_context=start_method
)
with loader:
    kept = [batch for batch in loader][-held:]
for index, batch in enumerate(kept, count - len(kept)):
    assert (batch == (index % 251 if kind == "large" else index)).all()
print(len(kept), "whole")
"""


def run(program: str, *arguments: object, within: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run a program in a process of its own, where its limits are its own."""
    return subprocess.run(
        [
            *within,
            sys.executable,
            "-W",
            "error",
            "-W",
            "ignore:num_workers",
            "-c",
            program,
            *map(str, arguments),
        ],
        env={**os.environ, "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )


@pytest.mark.slow
@pytest.mark.parametrize("start_method", START_METHODS)
@pytest.mark.parametrize(("kind", "count"), [("small", 20_000), ("large", 2_000)])
def test_a_list_of_all_batches_needs_no_descriptors(start_method: str, kind: str, count: int) -> None:
    finished = run(FEW_DESCRIPTORS, start_method, kind, count, 2, 2, count)
    assert (finished.stdout, finished.stderr) == (f"{count} whole\n", "")


@pytest.mark.slow
@pytest.mark.parametrize(("num_workers", "prefetch"), [(1, 100), (5, 20)])
def test_neither_do_more_batches_in_flight_than_there_are_descriptors(
    num_workers: int, prefetch: int
) -> None:
    finished = run(FEW_DESCRIPTORS, "fork", "large", 300, num_workers, prefetch, 300)
    assert (finished.stdout, finished.stderr) == ("300 whole\n", "")


FULL_SHM = """
import os, sys
from dataloader import DataLoader
from tests.datasets import LargeArrays

assert os.statvfs("/dev/shm").f_bavail == 0
assert os.listdir("/dev/shm") == ["full"]
dataset = LargeArrays(50, 1_000_000)
loader = DataLoader(dataset, batch_size=5, num_workers=2, multiprocessing_context=sys.argv[1])
with loader:
    for number, batch in enumerate(loader):
        assert batch[:, -1].tolist() == list(range(5 * number, 5 * number + 5))
        assert os.listdir("/dev/shm") == ["full"]
print(number + 1, "whole")
"""


def mounts_are_allowed() -> bool:
    try:
        tried = subprocess.run([*WITH_FULL_SHM, "true"], capture_output=True, timeout=TIMEOUT_S)
    except OSError:
        return False
    return tried.returncode == 0


@pytest.mark.skipif(not mounts_are_allowed(), reason="only root may mount a /dev/shm of its own")
@pytest.mark.parametrize("start_method", ["forkserver", "fork", "spawn"])
def test_a_full_dev_shm_changes_nothing(start_method: str) -> None:
    finished = run(FULL_SHM, start_method, within=WITH_FULL_SHM)
    assert (finished.stdout, finished.stderr) == ("10 whole\n", "")
