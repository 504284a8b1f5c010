"""Who may call without a key, and the key that the settings name."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from tests.integration.api.conftest import RunningApi, make_settings, open_api
from tests.support.services import new_database

KEY = "of-any-form:not-sm_"


@pytest.fixture(scope="module", params=["keyless", "keyed", "both", "neither"])
def running(
    request: pytest.FixtureRequest,
    postgres_url: str,
    migrated_template: str,
    redis_url: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[str, RunningApi]]:
    changes: dict[str, Any] = {
        "keyless": {"insecure_server": True},
        "keyed": {"server_api_key": SecretStr(KEY)},
        "both": {"insecure_server": True, "server_api_key": SecretStr(KEY)},
        "neither": {},
    }[request.param]
    with new_database(postgres_url, template=migrated_template) as url:
        settings = make_settings(url, redis_url, tmp_path_factory.mktemp("home"), **changes)
        with open_api(settings) as api:
            yield request.param, api


def status(api: RunningApi, path: str = "/v1/batches", **headers: str) -> int:
    return httpx.get(f"{api.url}{path}", headers=headers, timeout=30).status_code


def test_a_call_without_a_key_is_let_in_only_where_the_settings_say_so(running):
    kind, api = running
    assert status(api) == (200 if kind == "keyless" else 401)


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Host": "evil.example"},
        {"Host": "evil.example:8080"},
        {"X-Forwarded-For": "192.0.2.1"},
        {"Forwarded": "for=192.0.2.1"},
        {"X-Real-IP": "192.0.2.1"},
    ],
)
def test_pages_in_a_browser_and_proxies_are_never_let_in_without_a_key(running, headers):
    assert status(running[1], **headers) == 401


@pytest.mark.parametrize("header", [{"OPEN-SANDBOX-API-KEY": KEY}, {"Authorization": f"Bearer {KEY}"}])
def test_the_key_of_the_settings_is_taken_in_both_headers(running, header):
    kind, api = running
    assert status(api, **header) == (200 if kind in {"keyed", "both"} else 401)


def test_a_wrong_key_is_wrong_everywhere(running):
    assert status(running[1], **{"OPEN-SANDBOX-API-KEY": f"{KEY}x"}) == 401


def test_nobody_is_an_operator_by_it(running):
    kind, api = running
    expected = 403 if kind != "neither" else 401
    header = {"OPEN-SANDBOX-API-KEY": KEY} if kind in {"keyed", "both"} else {}
    assert status(api, "/v1/admin/tenants", **header) == expected
