"""Routes of the lifecycle API that tell what is wrong with a sandbox. Source: section 1.16 of the protocol."""

import re
from datetime import datetime
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.concurrency import run_in_threadpool

from api.services import ApiServices, Caller, Services
from api.wire.errors import WIRE_TAG
from api.wire.sandboxes import SandboxId
from api.wire.schemas import DiagnosticView
from api.wire.waiting import watching
from services.diagnostics import Diagnosis, Excerpt
from services.sandbox_errors import WireInvalidError
from services.tenants import Principal

__all__ = ["router"]

router = APIRouter(tags=[WIRE_TAG], include_in_schema=False)

_ANSWER_SECONDS = 5.0
"""A node that is there answers in milliseconds; after so long the caller gets what was read before."""

_LOG_LINES, _EVENT_LINES = 100, 50
_LOG_SCOPES = ("container", "lifecycle", "all")
_EVENT_SCOPES = ("runtime", "lifecycle", "all")
_SINCE = re.compile(r"[0-9]{1,9}[smhd]?")
_DEPRECATED = {"Deprecation": "true"}
_MIXED = "scope all puts several sources one after the other: ask for one of them to have it alone"

Scope = Annotated[str | None, Query(max_length=64)]
Tail = Annotated[int, Query(ge=1, le=10_000)]
Limit = Annotated[int, Query(ge=1, le=500)]


@router.get("/sandboxes/{sandbox_id}/diagnostics/logs")
async def get_logs(
    *,
    services: Services,
    caller: Caller,
    sandbox_id: SandboxId,
    scope: Scope = None,
    tail: Tail = _LOG_LINES,
    since: Annotated[str | None, Query(max_length=32)] = None,
    container: Annotated[str | None, Query(max_length=256)] = None,
) -> Response:
    """Give the output of the entrypoint, what happened to the sandbox, or both; also after its end."""
    del container  # there is one only
    _check_since(since)
    if scope is not None:
        _check_scope(scope, _LOG_SCOPES)
    found = await _diagnose(services, caller, sandbox_id, is_fresh=scope != "lifecycle")
    if scope is None:
        return PlainTextResponse(found.container_log(lines=tail).text, headers=_DEPRECATED)
    match scope:
        case "container":
            excerpt = found.container_log(lines=_LOG_LINES)
        case "lifecycle":
            excerpt = found.lifecycle_log(lines=_LOG_LINES)
        case _:
            excerpt = _both(found.lifecycle_log(lines=_LOG_LINES), found.container_log(lines=_LOG_LINES))
    return _content(sandbox_id, "logs", scope, excerpt)


@router.get("/sandboxes/{sandbox_id}/diagnostics/events")
async def get_events(
    *,
    services: Services,
    caller: Caller,
    sandbox_id: SandboxId,
    scope: Scope = None,
    limit: Limit = _EVENT_LINES,
) -> Response:
    """Give what happened to the sandbox; also after its end."""
    if scope is not None:
        _check_scope(scope, _EVENT_SCOPES)
    found = await _diagnose(services, caller, sandbox_id, is_fresh=False)
    if scope is None:
        return PlainTextResponse(found.lifecycle_log(lines=limit).text, headers=_DEPRECATED)
    if scope == "runtime":
        excerpt = found.runtime_events(limit=_EVENT_LINES)
    else:
        excerpt = found.lifecycle_log(lines=_EVENT_LINES)
    if scope == "all":
        excerpt = Excerpt(excerpt.text, excerpt.is_cut, (_MIXED,))
    return _content(sandbox_id, "events", scope, excerpt)


@router.get("/sandboxes/{sandbox_id}/diagnostics/inspect")
async def inspect(services: Services, caller: Caller, sandbox_id: SandboxId) -> Response:
    """Give all facts but secrets."""
    found = await _diagnose(services, caller, sandbox_id, is_fresh=False)
    return PlainTextResponse(found.inspection())


@router.get("/sandboxes/{sandbox_id}/diagnostics/summary")
async def summarise(
    services: Services, caller: Caller, sandbox_id: SandboxId, tail: Tail = 50, event_limit: Limit = 20
) -> Response:
    """Give facts, events and output, one after the other."""
    found = await _diagnose(services, caller, sandbox_id, is_fresh=True)
    return PlainTextResponse(found.summary(lines=tail, events=event_limit))


async def _diagnose(
    services: ApiServices, caller: Principal, sandbox_id: UUID, *, is_fresh: bool
) -> Diagnosis:
    """Gather what is known. is_fresh: have the node read the entrypoint's output first, if it runs."""
    asked_at = await _refresh(services, caller, sandbox_id) if is_fresh else None

    def diagnose() -> Diagnosis:
        with services.engine.begin() as connection:
            return services.diagnostics(connection, caller).diagnose(sandbox_id, asked_at=asked_at)

    return await run_in_threadpool(diagnose)


async def _refresh(services: ApiServices, caller: Principal, sandbox_id: UUID) -> datetime | None:
    def want() -> tuple[UUID, datetime] | None:
        with services.engine.begin() as connection:
            return services.diagnostics(connection, caller).want_output(sandbox_id)

    def is_answered(since: datetime) -> bool:
        with services.engine.begin() as connection:
            return services.diagnostics(connection, caller).is_answered(sandbox_id, since)

    async with watching(services, sandbox_id) as waiter:
        asked = await run_in_threadpool(want)
        if asked is None:
            return None
        node_id, since = asked
        services.wake.cancelled({node_id: [sandbox_id]})
        await waiter.until(lambda: is_answered(since), lambda answered: answered, seconds=_ANSWER_SECONDS)
    return since


def _content(sandbox_id: UUID, kind: str, scope: str, excerpt: Excerpt) -> JSONResponse:
    view = DiagnosticView(
        sandbox_id=str(sandbox_id),
        kind=kind,
        scope=scope,
        delivery="inline",
        content_type="text/plain; charset=utf-8",
        content=excerpt.text,
        content_length=len(excerpt.text.encode()),
        truncated=excerpt.is_cut,
        warnings=list(excerpt.warnings) or None,
    )
    return JSONResponse(view.to_json())


def _both(first: Excerpt, second: Excerpt) -> Excerpt:
    text = f"=== lifecycle ===\n{first.text}=== container ===\n{second.text}"
    return Excerpt(text, first.is_cut or second.is_cut, (_MIXED, *second.warnings))


def _check_scope(scope: str, known: tuple[str, ...]) -> None:
    if scope not in known:
        raise WireInvalidError(
            "DIAGNOSTICS_SCOPE_UNSUPPORTED", f"{scope!r} is none of {', '.join(known)}", field="scope"
        )


def _check_since(text: str | None) -> None:
    if text is not None and not _SINCE.fullmatch(text):
        raise WireInvalidError(
            "SANDBOX::INVALID_PARAMETER", 'must be a duration as in "30s", "10m" or "1h"', field="since"
        )
