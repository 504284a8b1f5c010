"""Builds the API: `uvicorn --factory api.app:create_app`."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import anyio.to_thread
from fastapi import Depends, FastAPI
from fastapi.openapi.utils import get_openapi

from api.deadline import DeadlineMiddleware
from api.errors import install_error_handlers
from api.lingering import LingeringMiddleware
from api.metrics import ApiMetrics
from api.middleware import RequestMiddleware
from api.openapi_examples import add_response_examples
from api.openapi_parts import add_request_schemas
from api.proxy.middleware import ServerProxy, ServerProxyMiddleware
from api.query import refuse_unknown_parameters
from api.routes import (
    admin,
    admin_tenants,
    attempts,
    batch_events,
    batch_verbs,
    batches,
    blobs,
    dead_letters,
    health,
    history,
    jobs,
    reports,
    schedules,
    trials,
    usage,
    webhooks,
)
from api.services import ApiServices, FailureLimiter
from api.validation import JobChecker
from api.wire import basics as wire_basics
from api.wire import diagnostics as wire_diagnostics
from api.wire import metrics_events as wire_metrics_events
from api.wire import pools as wire_pools
from api.wire import sandboxes as wire_sandboxes
from api.wire import snapshots as wire_snapshots
from api.wire import templates as wire_templates
from api.wire.origins import OriginMiddleware
from core.blobstore import BlobStore
from core.config import Settings
from core.database import create_database_engine
from core.failpoints import arm_or_exit
from core.heap import settle_heap
from core.logging import configure_logging
from core.outbound import AddressGuard
from core.sealing import make_box
from core.secret_rules import program_settings
from core.tracing import configure_tracing, shut_down_tracing
from services.fresh_endpoints import FreshEndpoints
from services.log_hub import LogHub
from services.member_probe import MemberProbe
from services.tenants import Authenticator
from services.verdicts import known_parsers
from services.wake import Wake

__all__ = ["build_services", "create_app"]

TAGS = [
    {"name": "batches", "description": "Jobs submitted together, their progress and their report."},
    {"name": "jobs", "description": "One unit of work: an image, inputs, steps and a verdict."},
    {"name": "trials", "description": "Samples of a job: what queues, runs and has an outcome."},
    {"name": "attempts", "description": "Physical tries of a trial, and their logs."},
    {"name": "blobs", "description": "Files by content, for large inputs."},
    {"name": "usage", "description": "What a tenant has used."},
    {
        "name": "admin",
        "description": "For operators: tenants, keys, nodes and queues. Needs a key of role admin.",
    },
    {"name": "schedules", "description": "Batches that are submitted by the clock."},
    {"name": "webhooks", "description": "Who is told when trials and batches have ended, and what was sent."},
    {"name": "history", "description": "What is left of batches that were archived."},
    {"name": "operation", "description": "For those who run the service. No key needed."},
]


def create_app(settings: Settings | None = None) -> FastAPI:
    """Build the application. settings: None reads them from the environment. Connects to nothing yet."""
    is_program = settings is None
    if settings is None:
        settings = program_settings("api")
        arm_or_exit(program="api")
    configure_logging(level=settings.log_level, style=settings.log_format)
    services = build_services(settings)
    proxy = ServerProxy(services)

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        configure_tracing("sandmill-api")
        await anyio.to_thread.run_sync(services.store.sweep)
        services.hub.start()
        proxy.start()
        if is_program:
            settle_heap()
        try:
            yield
        finally:
            await proxy.aclose()
            await services.hub.aclose()
            services.redis.close()
            services.engine.dispose()
            await anyio.to_thread.run_sync(shut_down_tracing)

    app = FastAPI(
        title="Sandmill",
        version="1",
        summary="Runs untrusted code at any scale: a durable, fair job queue over isolated sandboxes.",
        openapi_tags=TAGS,
        # The usual pages load scripts from elsewhere. The document is a route like the others, under the same checks.
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
        dependencies=[Depends(refuse_unknown_parameters)],
    )
    app.state.services = services
    app.add_middleware(DeadlineMiddleware, seconds=settings.request_deadline_seconds)
    app.add_middleware(OriginMiddleware)
    app.add_middleware(RequestMiddleware, metrics=services.metrics)
    app.add_middleware(LingeringMiddleware)
    app.add_middleware(ServerProxyMiddleware, proxy=proxy)
    install_error_handlers(app)
    # Routers are asked in turn whether a path is theirs: those first whose callers count the milliseconds.
    for prefix in ("/v1", ""):
        for wire in (wire_sandboxes, wire_snapshots, wire_pools, wire_diagnostics, wire_templates):
            app.include_router(wire.router, prefix=prefix)
    app.include_router(wire_metrics_events.router, prefix="/v1")
    for part in (
        admin,
        admin_tenants,
        usage,
        batches,
        batch_events,
        batch_verbs,
        reports,
        jobs,
        trials,
        attempts,
        dead_letters,
        blobs,
        schedules,
        webhooks,
        history,
        health,
    ):
        app.include_router(part.router)
    # After `health`, which has a `/version` that tells more.
    for prefix in ("/v1", ""):
        app.include_router(wire_basics.router, prefix=prefix)
    app.openapi = lambda: _document(app)  # type: ignore[method-assign] # FastAPI's own way to change the document
    return app


def build_services(settings: Settings) -> ApiServices:
    """Build the long-lived parts; nothing connects before its first use."""
    engine = create_database_engine(
        settings.database_url.get_secret_value(), actor="api", pool_size=settings.api_pool_size
    )
    client = Wake.connect(settings.redis_url.get_secret_value())
    return ApiServices(
        settings=settings,
        engine=engine,
        redis=client,
        wake=Wake(client),
        hub=LogHub(settings.redis_url.get_secret_value()),
        store=BlobStore(settings.home_path / "blobs"),
        authenticator=Authenticator(
            engine,
            configured_key=settings.server_api_key.get_secret_value() if settings.server_api_key else None,
        ),
        failures=FailureLimiter(),
        checker=JobChecker(known_parsers(), [settings.runtime, *settings.runtimes]),
        metrics=ApiMetrics(engine),
        box=make_box(settings),
        guard=AddressGuard(settings.webhook_allowed_networks),
        probe=MemberProbe(),
        endpoints=FreshEndpoints(),
        creators=asyncio.Semaphore(max(1, settings.api_pool_size * 2 // 3)),
    )


def _document(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title,
            version=app.version,
            summary=app.summary,
            routes=app.routes,
            tags=app.openapi_tags,
        )
        add_request_schemas(document)
        add_response_examples(document)
        app.openapi_schema = document
    return app.openapi_schema
