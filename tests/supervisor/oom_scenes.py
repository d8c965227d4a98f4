"""What happens in a memory cgroup with a limit: each scene is a process, which joins the group first.

    python -m tests.supervisor.oom_scenes SCENE FOLDER_OF_THE_GROUP [hide]

It prints the reports as JSON. With "hide" the kernel log is out of reach, as in most containers.
"""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dataloader import DataLoader, ExitReport
from supervisor import kernel_log
from supervisor.channel import Channel
from supervisor.child import WorkerContext
from supervisor.memory_cgroup import join
from supervisor.policy import RestartPolicy
from supervisor.pool import WorkerPool
from tests.datasets import first_time
from tests.supervisor.toys import EAGER, await_reports, end_worker, supervisor_pid

EAT = "kept = [b'x' * (1 << 20) for _ in iter(int, 1)]"


def serve(pipe: Channel, context: WorkerContext) -> None:
    """Eat all memory, or answer with our memory cgroup."""
    while (message := pipe.receive()) is not None:
        if message.data == b"eat":
            exec(EAT)
        lines = Path("/proc/self/cgroup").read_text().splitlines()
        pipe.send(next(line for line in lines if ":memory:" in line or line.startswith("0::")).encode())


def eaten(pool: WorkerPool) -> None:
    """One worker is killed for want of memory."""
    end_s = time.monotonic() + 1.0
    while time.monotonic() < end_s:  # some readings are taken meanwhile: they are looked at
        pool.wait(0.1)
    end_worker(pool, 0, b"eat")


def eaten_in_a_group_of_its_own(pool: WorkerPool) -> None:
    pool.workers[0].pipe.send(b"where")
    pool.workers[1].pipe.send(b"where")
    groups = {pool.receive(0).data, pool.receive(1).data}
    assert len(groups) == 2, groups
    end_worker(pool, 0, b"eat")
    pool.check()


def beside_a_stranger(pool: WorkerPool) -> None:
    """A stranger of the same group is killed so, and at once a worker of ours from outside."""
    with Held(pool):
        subprocess.run([sys.executable, "-c", f"open('/proc/self/oom_score_adj', 'w').write('1000'); {EAT}"])
        os.kill(pool.workers[0].pid, signal.SIGKILL)
    await_reports(pool, 1)


def together(pool: WorkerPool) -> None:
    """One worker is killed so, another from outside, and the supervisor finds both dead."""
    pids = [pool.workers[number].pid for number in (0, 1)]
    with Held(pool):
        pidfds = [os.pidfd_open(pid) for pid in pids]
        os.kill(pids[1], signal.SIGKILL)
        pool.workers[0].pipe.send(b"eat")
        for pidfd in pidfds:
            assert select.select([pidfd], [], [], 10.0)[0]
    await_reports(pool, 2)


def killed(pool: WorkerPool) -> None:
    """One worker is killed from outside."""
    os.kill(pool.workers[0].pid, signal.SIGKILL)
    await_reports(pool, 1)


class Held:
    """The supervisor is stopped meanwhile."""

    def __init__(self, pool: WorkerPool) -> None:
        self.pid = supervisor_pid(pool)

    def __enter__(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def __exit__(self, *_: object) -> None:
        os.kill(self.pid, signal.SIGCONT)


def orphaned(pool: WorkerPool) -> None:
    """The consumer is killed; whoever waits for us then finds the supervisor's groups removed."""
    os.kill(os.getpid(), signal.SIGKILL)


def shrinking(pool: WorkerPool) -> None:
    """Of two workers the first is not replaced, the second is; the next run has one from the start."""
    end_worker(pool, 0, b"eat")
    pool.check()
    assert sorted(pool.workers) == [1], pool.workers
    end_worker(pool, 1, b"eat")
    pool.check()
    assert (sorted(pool.workers), pool.workers[1].restarts) == ([1], 1)
    pool.stop()
    pool.start(serve)
    assert sorted(pool.workers) == [0]


class Hungry:
    """Numbers; whoever loads the 21st first eats all memory."""

    def __init__(self, flag: Path) -> None:
        self.flag = flag

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> int:
        if index == 21 and first_time(self.flag):
            exec(EAT)
        return index


def load(folder: str) -> list[ExitReport]:
    """A loader goes on with one worker fewer, in later epochs too."""
    join(folder)
    expected = [list(range(start, start + 4)) for start in range(0, 60, 4)]
    with (
        TemporaryDirectory() as flags,
        DataLoader(
            Hungry(Path(flags, "eaten")),
            batch_size=4,
            num_workers=2,
            multiprocessing_context="fork",
            restart=RestartPolicy(shrink_on_oom=True),
        ) as loader,
    ):
        for _ in range(2):
            assert [batch.tolist() for batch in loader] == expected
        iterator = iter(loader)
        assert [worker.id for worker in loader.workers()] == [0]
        assert [batch.tolist() for batch in iterator] == expected
        return [report for report in loader.reports if report.is_death]


POLICIES = {
    "shrinking": RestartPolicy(shrink_on_oom=True),
    "eaten_in_a_group_of_its_own": RestartPolicy(own_cgroups=True),
    "orphaned": RestartPolicy(own_cgroups=True),
}


def play(scene: str, folder: str) -> list[dict[str, Any]]:
    if scene == "load":
        return [report.to_dict() for report in load(folder)]
    join(folder)
    with WorkerPool(2, start_method="fork", policy=POLICIES.get(scene, EAGER)) as pool:
        pool.start(serve)
        globals()[scene](pool)
        deaths = [report.to_dict() | {"text": str(report)} for report in pool.reports if report.is_death]
    left = list(Path(folder).glob("supervised-worker.*"))
    assert not left, left
    return deaths


if __name__ == "__main__":
    logging.basicConfig(format="%(levelname)s %(name)s %(message)s")
    if "hide" in sys.argv:
        kernel_log._open = lambda log: None
    print(json.dumps(play(*sys.argv[1:3])))
