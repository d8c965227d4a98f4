"""Settings for all tests."""

import signal

from hypothesis import HealthCheck, settings

# How long an example takes says how busy the machine is, and nothing of the code under test.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

# A shell lets what it starts in the background ignore Ctrl-C; what tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
