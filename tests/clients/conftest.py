"""An execd on this machine, and the published client in both flavours."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from opensandbox.models.sandboxes import SandboxEndpoint
from opensandbox.sync.services import CommandsSync, FilesystemSync

from tests.support.execd import RunningExecd, running_execd
from tests.support.execd_fixtures import bundle, open_folder  # noqa: F401 -- fixtures are found by name
from tests.support.runtime_fixtures import real_kind, runtime_folder  # noqa: F401
from tests.support.sdk import FLAVOURS, Services, connected


@pytest.fixture(scope="session")
def daemon(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningExecd]:  # noqa: F811
    """One daemon for all tests, with a file of variables."""
    work = tmp_path_factory.mktemp("clients")
    env = {"PATH": os.environ["PATH"], "HOME": str(work), "EXECD_ENVS": str(work / "new" / "envs")}
    with running_execd(bundle, work, env=env) as running:
        yield running


@pytest.fixture(scope="session")
def endpoint(daemon: RunningExecd) -> SandboxEndpoint:
    return SandboxEndpoint(endpoint=f"127.0.0.1:{daemon.port}")


@pytest.fixture(params=FLAVOURS)
def services(request: pytest.FixtureRequest, endpoint: SandboxEndpoint) -> Iterator[Services]:
    """Each flavour of the client in turn."""
    with connected(request.param, endpoint) as made:
        yield made


@pytest.fixture
def commands(services: Services) -> CommandsSync:
    return services.commands


@pytest.fixture
def files(services: Services) -> FilesystemSync:
    return services.files
