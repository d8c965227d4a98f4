"""What workers write to standard error reaches the consumer's, whole and once; its end is in the reports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.relay import MAX_TAIL_BYTES

pytestmark = pytest.mark.slow


SCRIPT = """
import ctypes, os, signal, sys, time
from supervisor.policy import RestartPolicy
from supervisor.pool import WorkerPool
from tests.supervisor.toys import await_reports

def say(text):
    os.write(2, text)

def abort():
    say(b"terminate called after throwing an instance of 'std::runtime_error'\\n")
    ctypes.CDLL(None).abort()

def complain():
    ctypes.CDLL(None).__assert_fail(b"the heap is whole", b"heap.c", 7, b"check")

def flood():
    for number in range(10_000):
        say(b"%099d\\n" % number)
    os.kill(os.getpid(), signal.SIGKILL)

def speak():
    print("from python", file=sys.stderr)

def grandchild():
    if os.fork() == 0:
        os.setsid()
        time.sleep(2)
        say(b"from a grandchild\\n")
        os._exit(0)
    time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGKILL)

def silent():
    os.close(2)

ACTIONS = dict(abort=abort, complain=complain, flood=flood, speak=speak, grandchild=grandchild, silent=silent)

def serve(pipe, context):
    while (message := pipe.receive()) is not None:
        ACTIONS[message.data.decode()]()
        pipe.send(b"done")

def set_up(context):
    say(b"starting up\\n")
    if sys.argv[2]:
        sys.path.insert(0, sys.argv[2])
        import loud_and_broken

if __name__ == "__main__":
    pool = WorkerPool(1, start_method=sys.argv[1], policy=RestartPolicy(max_restarts=100, backoff=0.0))
"""


def run(start_method: str, body: str, second: str = "") -> subprocess.CompletedProcess[bytes]:
    script = SCRIPT + "".join(f"    {line}\n" for line in body.splitlines())
    return subprocess.run(
        [sys.executable, "-c", script, start_method, second], capture_output=True, timeout=30.0, check=False
    )


SPEAK = """
pool.start(serve)
pool.workers[0].pipe.send(b"speak")
pool.receive(0)
pool.close()
"""
END = """
pool.start(serve)
pool.workers[0].pipe.send(b"{}")
await_reports(pool, 1)
print(pool.reports[0].stderr, end="")
pool.check()
pool.close()
"""


def test_a_print_of_a_worker_reaches_the_consumers_stderr_once(start_method: str) -> None:
    done = run(start_method, SPEAK)
    assert done.stderr == b"from python\n"
    assert done.returncode == 0


def test_the_words_of_an_abort_are_in_its_report(start_method: str) -> None:
    done = run(start_method, END.format("abort"))
    said = b"terminate called after throwing an instance of 'std::runtime_error'\n"
    assert done.stdout == said
    assert done.stderr.count(said) == 2  # as it was said, and in the log
    assert done.stderr.startswith(said)


def test_the_c_librarys_complaint_is_in_the_report(start_method: str) -> None:
    done = run(start_method, END.format("complain"))
    assert b"heap.c:7: check: Assertion `the heap is whole' failed." in done.stdout


def test_a_death_in_the_middle_of_much_output_loses_none_of_it(start_method: str) -> None:
    done = run(start_method, "import logging; logging.disable()\n" + END.format("flood"))
    assert [int(line) for line in done.stderr.splitlines()] == list(range(10_000))
    assert len(done.stdout) == MAX_TAIL_BYTES
    assert done.stdout.endswith(b"%099d\n" % 9_999)


def test_what_start_up_and_a_failing_import_wrote_is_in_the_report(start_method: str, tmp_path: Path) -> None:
    broken = 'import sys; print("loud", file=sys.stderr); raise RuntimeError("broken")'
    (tmp_path / "loud_and_broken.py").write_text(broken)
    body = """
try:
    pool.start(serve, set_up)
except RuntimeError as error:
    print(error, pool.reports[0].stderr)
pool.close()
"""
    done = run(start_method, body, str(tmp_path))
    assert b"broken starting up\nloud\n" in done.stdout


@pytest.mark.parametrize("close", ["", "os.close(2)\n", "os.dup2(os.open(os.devnull, os.O_WRONLY), 2)\n"])
def test_a_consumer_without_stderr_has_the_reports(start_method: str, close: str) -> None:
    body = "pool.close()\n" + close + "pool = WorkerPool(1, start_method=sys.argv[1], policy=None)\n"
    body += END.format("abort").replace("pool.check()\n", "")
    done = run(start_method, body)
    assert done.stdout.startswith(b"terminate called")
    assert done.returncode == 0


def test_a_worker_may_close_its_stderr(start_method: str) -> None:
    body = """
pool.start(serve)
pool.workers[0].pipe.send(b"silent")
print(pool.receive(0).data)
pool.close()
"""
    done = run(start_method, body)
    assert (done.stdout, done.stderr) == (b"b'done'\n", b"")


def test_a_grandchild_that_holds_it_delays_nothing_and_may_write_on() -> None:
    body = """
import logging; logging.disable()
start_s = time.monotonic()
pool.start(serve)
pool.workers[0].pipe.send(b"grandchild")
await_reports(pool, 1)
pool.check()
print(time.monotonic() - start_s < 1.5)
pool.wait(3.0)
pool.close()
"""
    done = run("fork", body)
    assert done.stdout == b"True\n"
    assert done.stderr == b"from a grandchild\n"


BLOCKED = """
import logging; logging.disable()
pool.start(serve)
pool.workers[0].pipe.send(b"flood")
time.sleep(0.5)  # it is stuck
os.kill(pool.workers[0].pid, signal.SIGKILL)
start_s = time.monotonic()
await_reports(pool, 1)
pool.check()
told_s = time.monotonic() - start_s
pool.close()
print(told_s, time.monotonic() - start_s - told_s, len(pool.reports[0].stderr), flush=True)
os._exit(0)
"""


def test_where_nobody_reads_deaths_are_noticed_and_the_end_comes(start_method: str) -> None:
    script = SCRIPT + "".join(f"    {line}\n" for line in BLOCKED.splitlines())
    with subprocess.Popen(
        [sys.executable, "-c", script, start_method, ""], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        told_s, closed_s, words = process.stdout.read().split()
        assert process.wait(5.0) == 0
    assert float(told_s) < 2.0
    assert float(closed_s) < 2.0
    assert int(words) == MAX_TAIL_BYTES
