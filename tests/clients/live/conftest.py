"""A whole installation for each runtime, and the published client in both flavours."""

from collections.abc import Iterator

import pytest

from tests.support.images import ensure_debian_image, require_docker
from tests.support.live import LIVE_FLAVOURS, LiveClient, LiveServer, live_client, live_server


@pytest.fixture(scope="session", params=["local", pytest.param("docker", marks=pytest.mark.docker)])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """One installation of each runtime for all tests of this folder; they leave no sandbox behind."""
    if request.param == "docker":
        require_docker()
        ensure_debian_image()
    with live_server(request.param, tmp_path_factory.mktemp(f"live-{request.param}")) as running:
        yield running


@pytest.fixture(params=LIVE_FLAVOURS)
def client(request: pytest.FixtureRequest, server: LiveServer) -> Iterator[LiveClient]:
    """Each flavour of the client in turn."""
    with live_client(request.param, server) as made:
        yield made
