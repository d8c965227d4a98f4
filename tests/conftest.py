"""Settings for all tests."""

import gc
import multiprocessing.resource_tracker
import signal
from collections.abc import Iterator

import multiprocess.resource_tracker
import psutil
import pytest
from hypothesis import HealthCheck, settings

# How long an example takes says how busy the machine is, and nothing of the code under test.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

# A shell lets what it starts in the background ignore Ctrl-C; what tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def no_call_backs_of_the_collector() -> None:
    """Hypothesis leaves one behind, in which what a signal handler raises would be lost."""
    gc.callbacks.clear()


@pytest.fixture(scope="module")
def no_helper_process_is_left() -> Iterator[None]:
    """End the processes that the standard library and torch start for what has a name in shared memory."""
    yield
    gc.collect()  # before: what is still to be unregistered would start one anew
    for library in (multiprocessing, multiprocess):
        library.resource_tracker._resource_tracker._stop()
    for child in psutil.Process().children():
        if child.name() == "torch_shm_manager":
            child.kill()
            child.wait()
