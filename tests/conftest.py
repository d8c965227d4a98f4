"""Settings for all tests."""

import gc
import signal

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
