"""Settings for the tests of trainers."""

import pytest


def pytest_itemcollected(item: pytest.Item) -> None:
    """Let the libraries warn of each other's ways, and of how few workers there are."""
    if item.path.is_relative_to(__file__.rpartition("/")[0]):
        item.add_marker(pytest.mark.filterwarnings("default"))
