"""Fixtures that give each test its runtimes. Shared by the contract, security and integration suites."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.sandboxes import KINDS, Box, Kind, missing_requirement

ONLY = os.environ.get("SANDMILL_TEST_RUNTIMES", "fake,local,docker").split(",")
"""Which runtimes to test; used by the run as another user."""


def runtime_params(*names: str) -> list[object]:
    """Parameters for the runtimes, each with its marker."""
    marks = {"docker": [pytest.mark.docker]}
    return [pytest.param(name, marks=marks.get(name, []), id=name) for name in names if name in ONLY]


def kind_named(name: str, folder: Path) -> Iterator[Kind]:
    problem = missing_requirement(name)
    if problem and os.environ.get("CI") == "true":
        pytest.fail(problem)
    if problem:
        pytest.skip(problem)
    with KINDS[name](folder) as kind:
        yield kind


@pytest.fixture(scope="session")
def runtime_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of bundles and states for the whole session."""
    return tmp_path_factory.mktemp("runtimes")


@pytest.fixture(scope="session", params=runtime_params("fake", "local", "docker"))
def kind(request: pytest.FixtureRequest, runtime_folder: Path) -> Iterator[Kind]:
    """Every runtime in turn."""
    yield from kind_named(request.param, runtime_folder)


@pytest.fixture(scope="session", params=runtime_params("local", "docker"))
def real_kind(request: pytest.FixtureRequest, runtime_folder: Path) -> Iterator[Kind]:
    """Every runtime that starts something."""
    yield from kind_named(request.param, runtime_folder)


@pytest.fixture(scope="session")
def local(runtime_folder: Path) -> Iterator[Kind]:
    """The local runtime."""
    yield from kind_named("local", runtime_folder)


@pytest.fixture
def box(kind: Kind) -> Iterator[Box]:
    """A new sandbox of every runtime."""
    with kind.box() as made:
        yield made


@pytest.fixture(scope="session")
def shared_box(real_kind: Kind) -> Iterator[Box]:
    """One sandbox per real runtime for tests that leave it as it was."""
    with real_kind.box(workdir="/work") as made:
        yield made
