"""By which address clients reach a port by way of the API."""

from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from api.wire import sandboxes
from core.ids import new_id
from services.tenants import create_api_key, ensure_tenant
from tests.integration.api.conftest import make_settings, open_api
from tests.support.services import new_database


@pytest.fixture
def settings(postgres_url, migrated_template, redis_url, tmp_path):
    with new_database(postgres_url, template=migrated_template) as url:
        yield make_settings(url, redis_url, tmp_path)


@pytest.mark.parametrize(
    ("public_url", "server"),
    [
        (None, "{host}"),
        ("https://mill.example.org", "mill.example.org"),
        ("http://203.0.113.7:8080/", "203.0.113.7:8080"),
        ("https://example.org/mill", "example.org/mill"),
    ],
)
@pytest.mark.parametrize("prefix", ["", "/v1"])
def test_it_is_the_public_one_if_there_is_one_else_that_of_the_request(
    monkeypatch, settings, public_url, server, prefix
):
    async def find(*_: Any) -> Any:
        return SimpleNamespace(address="127.0.0.1:28888", is_secure=False, access_token="t")

    monkeypatch.setattr(sandboxes, "_find_endpoint", find)
    name = new_id()
    with open_api(settings.model_copy(update={"public_url": public_url})) as api:
        with api.engine.begin() as connection:
            key = create_api_key(connection, ensure_tenant(connection, "t"), "test")
        answer = httpx.get(
            f"{api.url}{prefix}/sandboxes/{name}/endpoints/8000?use_server_proxy=true",
            headers={"OPEN-SANDBOX-API-KEY": key},
        )
    host = server.format(host=api.url.removeprefix("http://"))
    assert answer.json() == {"endpoint": f"{host}{prefix}/sandboxes/{name}/proxy/8000"}
