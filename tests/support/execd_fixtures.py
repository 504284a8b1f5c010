"""Fixtures that give each test its execd on this machine, from the bundle. Shared by several suites."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from execd.bundle import build_bundle
from tests.support.execd import RunningExecd, running_execd


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle of the interpreter that runs the tests; built once."""
    path = tmp_path_factory.mktemp("execd") / "bundle"
    build_bundle(path)
    return path


@pytest.fixture
def execd(bundle: Path, tmp_path: Path) -> Iterator[RunningExecd]:
    """A daemon of its own for the test, with tmp_path as working directory and HOME."""
    with running_execd(bundle, tmp_path) as daemon:
        yield daemon


@pytest.fixture(scope="session")
def shared_execd(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningExecd]:
    """One daemon for all tests that neither end it nor count what it holds."""
    with running_execd(bundle, tmp_path_factory.mktemp("shared_execd")) as daemon:
        yield daemon


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter and read, unlike those of pytest; gone with all it holds afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="execd-test-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
