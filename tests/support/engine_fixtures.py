"""Fixtures of tests in which the container engine fails: the engine as it is, and a way to it that can be broken."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.engine_proxy import EngineProxy, engine_proxy
from tests.support.runtime_fixtures import kind_named
from tests.support.sandboxes import Kind

__all__ = ["healthy", "proxy"]


@pytest.fixture(scope="module")
def healthy(runtime_folder: Path) -> Iterator[Kind]:
    """The docker runtime on the engine as it is."""
    yield from kind_named("docker", runtime_folder)


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[EngineProxy]:
    """A socket that leads to the engine, and fails as it is told."""
    with engine_proxy(tmp_path) as made:
        yield made
