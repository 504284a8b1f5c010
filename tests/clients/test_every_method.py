"""No public method of a service that speaks to execd is without a test of this folder.

Each test runs in both flavours of the client: what it calls is called synchronously and asynchronously.
"""

import ast
from pathlib import Path

import opensandbox.services
import opensandbox.sync.services
import pytest
from opensandbox.adapters.filesystem_adapter import FilesystemAdapter
from opensandbox.sync.adapters.filesystem_adapter import FilesystemAdapterSync

from tests.support.execd import RunningExecd

TESTED = {
    "Commands": {"commands"},
    "Filesystem": {"files", "theirs"},
    "Health": {"health"},
    "Metrics": {"metrics"},
}
"""What tests call an instance of each service."""

NOT_OF_EXECD = {"Sandboxes", "Diagnostics", "Egress", "CredentialVault"}
"""Served by the server, and by the relay of outgoing traffic."""

NOT_SERVED = {"IsolationService", "IsolationSession"}
"""Sandboxes within the sandbox, which execd does not offer: 404."""

ADAPTERS = {"Filesystem": (FilesystemAdapter, FilesystemAdapterSync)}
"""Classes whose public methods are more than those of their protocol."""


def public_methods(*classes: type) -> set[str]:
    return {
        name
        for each in classes
        for name, member in vars(each).items()
        if callable(member) and not name.startswith("_")
    }


def calls_of_tests() -> set[tuple[str, str]]:
    """What the tests of this folder call: the last name before the dot, and the method."""
    found = set()
    for file in Path(__file__).parent.glob("test_*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name | ast.Attribute):
                owner = node.value.id if isinstance(node.value, ast.Name) else node.value.attr
                found.add((owner, node.attr))
    return found


def test_every_service_is_tested_or_not_execds() -> None:
    names = set(opensandbox.services.__all__)
    assert names == set(TESTED) | NOT_OF_EXECD | NOT_SERVED
    assert {name.removesuffix("Sync") for name in opensandbox.sync.services.__all__} == names


def test_what_is_not_served_is_not_found(daemon: RunningExecd) -> None:
    for method, path in (("GET", "capabilities"), ("POST", "session")):
        assert daemon.client.request(method, f"/v1/isolated/{path}").status_code == 404


@pytest.mark.parametrize("service", TESTED)
def test_every_method_has_a_test(service: str) -> None:
    classes = (
        getattr(opensandbox.services, service),
        getattr(opensandbox.sync.services, f"{service}Sync"),
    )
    methods = public_methods(*classes, *ADAPTERS.get(service, ()))
    called = {method for owner, method in calls_of_tests() if owner in TESTED[service]}
    assert methods - called == set()
    assert methods


@pytest.mark.parametrize("service", TESTED)
def test_both_flavours_have_the_same_methods(service: str) -> None:
    synchronous = getattr(opensandbox.sync.services, f"{service}Sync")
    assert public_methods(getattr(opensandbox.services, service)) == public_methods(synchronous)
