"""What docker-compose.yml says, as Compose itself reads it. No engine is needed."""

import json
from typing import Any

import pytest

from tests.support.compose import Project, compose_variables

PASSWORDS = (
    "SANDMILL_POSTGRES_PASSWORD",
    "SANDMILL_REDIS_PASSWORD",
    "SANDMILL_FLOWER_PASSWORD",
    "SANDMILL_SECRET_KEY",
)
OURS = ("migrate", "api", "scheduler", "worker", "ingress", "flower")
STORES = ("postgres", "redis")


@pytest.fixture(scope="module")
def variables() -> dict[str, str]:
    return compose_variables()


@pytest.fixture(scope="module")
def services(variables: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Name -> service, with all defaults and variables filled in."""
    found: dict[str, dict[str, Any]] = json.loads(Project(variables).output_of("config", "--format", "json"))[
        "services"
    ]
    return found


def test_it_has_every_program_and_nothing_else(services):
    assert set(services) == {*OURS, *STORES}


@pytest.mark.parametrize("name", PASSWORDS)
def test_no_password_has_a_default(variables, name):
    done = Project({**variables, name: ""}).run("config", "--quiet")
    assert done.returncode != 0
    assert name in done.stderr
    assert "./run env" in done.stderr


def test_public_images_are_the_default(variables):
    passwords = {name: variables[name] for name in PASSWORDS}
    services = json.loads(Project(passwords).output_of("config", "--format", "json"))["services"]
    assert services["postgres"]["image"].startswith("postgres:18")
    assert services["redis"]["image"].startswith("valkey/valkey:")
    assert services["api"]["build"]["args"]["BASE"].startswith("python:3.11")


@pytest.mark.parametrize("name", OURS)
def test_our_programs_have_no_rights_to_lose(services, name):
    service = services[name]
    assert service["cap_drop"] == ["ALL"]
    assert service["read_only"]
    assert "no-new-privileges" in service["security_opt"]
    assert "cap_add" not in service
    assert "user" not in service  # the image's own, which is not root


def test_nothing_is_privileged_or_holds_the_engine(services):
    for name, service in services.items():
        assert not service.get("privileged")
        assert service.get("pid") == ("service:worker" if name == "ingress" else None)
        assert service.get("network_mode") is None
        for volume in service.get("volumes", []):
            assert volume["type"] == "volume", volume


def test_only_the_worker_may_make_namespaces(services):
    loosened = {
        name
        for name, service in services.items()
        if any("unconfined" in option for option in service.get("security_opt", []))
    }
    assert loosened == {"worker"}


def test_api_ingress_and_flower_are_published_on_the_loopback_address_and_nothing_else_is(services):
    published = {
        name: [port["host_ip"] for port in service["ports"]]
        for name, service in services.items()
        if service.get("ports")
    }
    assert published == {"api": ["127.0.0.1"], "ingress": ["127.0.0.1"], "flower": ["127.0.0.1"]}


def test_stores_and_worker_have_no_way_out(services):
    for name in (*STORES, "migrate", "worker"):
        assert set(services[name]["networks"]) == {"backend"}


def test_only_the_scheduler_calls_receivers_of_webhooks(services):
    outside = {name for name, service in services.items() if "outside" in service["networks"]}
    assert outside == {"scheduler"}
    with_key = {name for name, service in services.items() if "SANDMILL_SECRET_KEY" in service["environment"]}
    assert with_key == {"api", "scheduler"}


def test_no_password_is_in_a_command_line(services, variables):
    for service in services.values():
        words = (
            service.get("command"),
            service.get("entrypoint"),
            service.get("healthcheck", {}).get("test"),
        )
        assert not any(variables[name] in json.dumps(words) for name in PASSWORDS)


def test_everything_that_stays_has_a_health_check(services):
    without = {name for name, service in services.items() if "healthcheck" not in service}
    assert without == {"migrate"}
