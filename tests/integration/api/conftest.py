"""The real application over real Postgres and Valkey; in process for most, behind uvicorn where streams matter."""

import contextlib
import dataclasses
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from uuid import UUID

import httpx
import pytest
import uvicorn
from fastapi import FastAPI
from pydantic import SecretStr
from sqlalchemy import Engine

from api.app import create_app
from api.http_protocol import StrictHttpProtocol
from api.services import FailureLimiter
from core.config import Settings
from core.database import create_database_engine
from core.ids import new_id
from services.tenants import create_api_key, ensure_tenant
from tests.support.queue import QueueWorld
from tests.support.services import new_database


class AppThread:
    """uvicorn in a thread: the real server, with its real way to cut connections."""

    def __init__(self, app: FastAPI, **changes: Any) -> None:
        """changes: of the options of uvicorn."""
        # With the protocol named, as asyncio names it: only then does it switch off Nagle's wait of 40 ms per answer.
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._socket.bind(("127.0.0.1", 0))
        options: dict[str, Any] = {
            "log_level": "error",
            "access_log": False,
            "timeout_graceful_shutdown": 1,
            "lifespan": "on",
            "ws": "wsproto",
            "http": StrictHttpProtocol,
            # Tests come as clients of any address, not as the front proxy that is trusted on this machine.
            "proxy_headers": False,
        }
        config = uvicorn.Config(app, **{**options, **changes})
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        deadline = time.monotonic() + 10
        while not self._server.started:
            assert time.monotonic() < deadline, "uvicorn did not start"
            self._thread.join(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(10)
        self._socket.close()
        assert not self._thread.is_alive()


@dataclass
class ApiWorld:
    """One application with one tenant's client; `world` acts as scheduler and worker."""

    settings: Settings
    app: FastAPI
    url: str
    engine: Engine
    client: httpx.Client
    key: str
    tenant_id: int

    @property
    def world(self) -> QueueWorld:
        return QueueWorld(self.engine)

    def new_client(self, tenant: str | None = None, key: str | None = None) -> httpx.Client:
        """A client of another tenant, or with a key given as it is."""
        if tenant is not None:
            with self.engine.begin() as connection:
                key = create_api_key(connection, ensure_tenant(connection, tenant), "test")
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=30)

    def rows(self, sql: str, **parameters: Any) -> list[dict[str, Any]]:
        """Run SQL; `%(me)s` is this tenant."""
        return self.world.execute(sql, me=self.tenant_id, **parameters)

    def count(self, table: str) -> int:
        """Count this tenant's rows."""
        return self.rows(f"SELECT count(*) AS n FROM {table} WHERE tenant_id = %(me)s")[0]["n"]


def make_settings(database_url: str, redis_url: str, home: Path, **changes: Any) -> Settings:
    values = {
        "database_url": SecretStr(database_url),
        "redis_url": SecretStr(redis_url),
        "home": home,
        "runtime": "fake",
        "secret_key": SecretStr("a secret of at least thirty-two characters"),
        "webhook_allowed_networks": ("127.0.0.0/8",),
        "log_level": "error",
        **changes,
    }
    return Settings(**values)


@contextlib.contextmanager
def changed_settings(app: FastAPI, **changes: Any) -> Iterator[None]:
    """Let what the application does with each request obey other settings."""
    before = app.state.services
    settings = before.settings.model_copy(update=changes)
    app.state.services = dataclasses.replace(before, settings=settings)
    try:
        yield
    finally:
        app.state.services = before


@dataclass
class RunningApi:
    """A served application, before any tenant."""

    settings: Settings
    app: FastAPI
    url: str
    engine: Engine

    @contextlib.contextmanager
    def new_tenant(self) -> Iterator[ApiWorld]:
        with self.engine.begin() as connection:
            tenant_id = ensure_tenant(connection, f"tenant-{new_id()}")
            key = create_api_key(connection, tenant_id, "test")
        client = httpx.Client(base_url=self.url, headers={"Authorization": f"Bearer {key}"}, timeout=30)
        with client:
            yield ApiWorld(self.settings, self.app, self.url, self.engine, client, key, tenant_id)


@contextlib.contextmanager
def open_api(settings: Settings) -> Iterator[RunningApi]:
    app = create_app(settings)
    engine = create_database_engine(settings.database_url.get_secret_value(), actor="test", pool_size=5)
    with AppThread(app) as server:
        yield RunningApi(settings, app, server.url, engine)
    engine.dispose()


@pytest.fixture(scope="session")
def shared_api(
    postgres_url: str, migrated_template: str, redis_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningApi]:
    home = tmp_path_factory.mktemp("api") / "home"
    with (
        new_database(postgres_url, template=migrated_template) as url,
        open_api(make_settings(url, redis_url, home)) as running,
    ):
        # All tests come from one address, and many of them with bad keys.
        services = running.app.state.services
        running.app.state.services = dataclasses.replace(services, failures=FailureLimiter(per_minute=10**9))
        yield running


@pytest.fixture
def api(shared_api: RunningApi) -> Iterator[ApiWorld]:
    """A tenant of its own at an application shared by the session."""
    with shared_api.new_tenant() as opened:
        yield opened


@pytest.fixture
def no_waiting(shared_api: RunningApi) -> Iterator[None]:
    """Let creates of sandboxes be answered at once: where there is no node, nothing comes to run."""
    with changed_settings(shared_api.app, sandbox_create_wait_seconds=0.0):
        yield


@pytest.fixture
def own_api(database_url: str, redis_url: str, tmp_path: Path) -> Iterator[ApiWorld]:
    """An application with a database of its own: for tests that dispatch, or that break things."""
    settings = make_settings(database_url, redis_url, tmp_path / "home")
    with open_api(settings) as running, running.new_tenant() as opened:
        yield opened


def make_job(**changes: Any) -> dict[str, Any]:
    return {"key": "job", "image": "fake", "steps": [{"name": "run", "run": "true"}], **changes}


def make_batch(**changes: Any) -> dict[str, Any]:
    return {"jobs": [make_job()], **changes}


def submit(client: httpx.Client, body: dict[str, Any] | None = None, **headers: str) -> dict[str, Any]:
    response = client.post("/v1/batches", json=body or make_batch(), headers=headers)
    assert response.status_code == 202, response.text
    return response.json()


def first_trial(client: httpx.Client, batch_id: UUID | str) -> dict[str, Any]:
    return client.get(f"/v1/batches/{batch_id}/trials").json()["items"][0]
