"""Settings for all tests."""

from hypothesis import HealthCheck, settings

# How long an example takes says how busy the machine is, and nothing of the code under test.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")
