"""Fixtures for all tests, and which of them may run beside each other."""

import pytest

pytest_plugins = ["tests.support.services"]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of a file in one process of a parallel run, and those that share the container engine, too."""
    if not config.pluginmanager.hasplugin("xdist"):
        return
    with_engine = {item.path for item in items if item.get_closest_marker("docker")}
    for item in items:
        group = "engine" if item.path in with_engine else str(item.path)
        item.add_marker(pytest.mark.xdist_group(group))
