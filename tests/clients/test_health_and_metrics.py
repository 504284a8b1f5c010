"""Health and metrics by the published client."""

import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from opensandbox.exceptions import SandboxApiException
from opensandbox.models.sandboxes import SandboxEndpoint

from tests.support.execd import RunningExecd, running_execd, wait_for
from tests.support.sdk import FLAVOURS, Services, connected

TOKEN = "a-token"


@pytest.fixture(scope="module")
def guarded(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningExecd]:
    """A daemon that demands a token."""
    with running_execd(
        bundle, tmp_path_factory.mktemp("guarded"), flags=["--access-token", TOKEN]
    ) as running:
        yield running


def test_health(services: Services) -> None:
    assert services.health.ping("any") is True


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_an_execd_that_is_not_there_is_not_healthy(flavour: str) -> None:
    with connected(
        flavour, SandboxEndpoint(endpoint="127.0.0.1:1"), request_timeout=timedelta(seconds=1)
    ) as services:
        assert services.health.ping("any") is False


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_the_endpoints_headers_carry_the_token(guarded: RunningExecd, flavour: str) -> None:
    address, headers = f"127.0.0.1:{guarded.port}", {"X-EXECD-ACCESS-TOKEN": TOKEN}
    with connected(flavour, SandboxEndpoint(endpoint=address, headers=headers)) as services:
        assert services.health.ping("any") is True
        assert services.commands.run("echo on").text == "on"
    with connected(flavour, SandboxEndpoint(endpoint=address)) as services:
        for call in (lambda: services.commands.run("true"), lambda: services.metrics.get_metrics("any")):
            with pytest.raises(SandboxApiException) as refused:
                call()
            assert refused.value.status_code == 401


def test_metrics(services: Services) -> None:
    first = services.metrics.get_metrics("any")
    assert 0 < first.cpu_count <= (os.cpu_count() or 1)
    assert 0 < first.memory_used_in_mib < first.memory_total_in_mib
    assert 0 <= first.cpu_used_percentage <= 100
    wait_for(lambda: services.metrics.get_metrics("any").timestamp > first.timestamp)
