"""What is done to batches, jobs and trials after they were accepted: the same verbs for all three."""

from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends

from api.body import optional_json_body, small_json_body
from api.json_body import parse_json
from api.openapi_parts import json_request
from api.schemas.batches import (
    BatchView,
    CancelRequest,
    CancelView,
    PauseView,
    RegradeRequest,
    RegradeView,
    ResumeView,
    RetryView,
    RunAgainRequest,
)
from api.schemas.convert import to_verdict
from api.schemas.errors import error_responses
from api.services import ApiServices, Caller, Services
from api.validation import check_schema
from api.views import to_batch_view, to_cancel_view, to_regrade_view
from repositories.batch_verbs import Scope, Target
from services.batch_verbs import BatchVerbService
from services.regrades import NewRegrade
from services.tenants import Principal

__all__ = ["router"]

router = APIRouter(prefix="/v1")

_CANCEL: dict[str, Any] = {
    "responses": error_responses(404, 410, 413, 415),
    "openapi_extra": json_request(CancelRequest, {"mode": "graceful"}, required=False),
}
_PLAIN: dict[str, Any] = {"responses": error_responses(404, 410)}
_RETRY: dict[str, Any] = {
    "responses": error_responses(404, 409, 410, 413, 415, 429),
    "openapi_extra": json_request(RunAgainRequest, {"outcomes": ["error", "cancelled"]}, required=False),
}
_REGRADE: dict[str, Any] = {
    "responses": error_responses(404, 408, 409, 410, 413, 415),
    "openapi_extra": json_request(
        RegradeRequest, {"verdict": {"from": "log", "parser": "unittest"}}, required=False
    ),
}
Body = Annotated[bytes, Depends(small_json_body)]
LargeBody = Annotated[bytes, Depends(optional_json_body)]


@router.post("/batches/{batch_id}/cancel", summary="Cancel a batch", tags=["batches"], **_CANCEL)
def cancel_batch(services: Services, caller: Caller, batch_id: UUID, body: Body) -> CancelView:
    """Finish waiting trials as cancelled at once and tell running ones to stop. Doing it again is no error.

    An open batch is closed by it.
    """
    return _cancel(services, caller, "batch", batch_id, body)


@router.post("/jobs/{job_id}/cancel", summary="Cancel a job", tags=["jobs"], **_CANCEL)
def cancel_job(services: Services, caller: Caller, job_id: UUID, body: Body) -> CancelView:
    """Finish its waiting trials as cancelled at once and tell running ones to stop."""
    return _cancel(services, caller, "job", job_id, body)


@router.post("/trials/{trial_id}/cancel", summary="Cancel a trial", tags=["trials"], **_CANCEL)
def cancel_trial(services: Services, caller: Caller, trial_id: UUID, body: Body) -> CancelView:
    """Finish a waiting trial as cancelled at once, or tell a running one to stop. A finished one stays as it is."""
    return _cancel(services, caller, "trial", trial_id, body)


@router.post("/batches/{batch_id}/pause", summary="Pause a batch", tags=["batches"], **_PLAIN)
def pause_batch(services: Services, caller: Caller, batch_id: UUID) -> PauseView:
    """Let none of its trials start until it is resumed. What runs goes on; deadlines of what waits stand still."""
    return _pause(services, caller, "batch", batch_id)


@router.post("/jobs/{job_id}/pause", summary="Pause a job", tags=["jobs"], **_PLAIN)
def pause_job(services: Services, caller: Caller, job_id: UUID) -> PauseView:
    """Let none of its trials start until it, or its batch, is resumed. What runs goes on."""
    return _pause(services, caller, "job", job_id)


@router.post("/trials/{trial_id}/pause", summary="Pause a trial", tags=["trials"], **_PLAIN)
def pause_trial(services: Services, caller: Caller, trial_id: UUID) -> PauseView:
    """Do not start it until it, its job or its batch is resumed. If it runs, it goes on."""
    return _pause(services, caller, "trial", trial_id)


@router.post("/batches/{batch_id}/resume", summary="Resume a batch", tags=["batches"], **_PLAIN)
def resume_batch(services: Services, caller: Caller, batch_id: UUID) -> ResumeView:
    """Undo all pauses in it: of the batch, of its jobs and of single trials. To run ended trials again, see retry."""
    return _resume(services, caller, "batch", batch_id)


@router.post("/jobs/{job_id}/resume", summary="Resume a job", tags=["jobs"], **_PLAIN)
def resume_job(services: Services, caller: Caller, job_id: UUID) -> ResumeView:
    """Undo all pauses of its trials."""
    return _resume(services, caller, "job", job_id)


@router.post("/trials/{trial_id}/resume", summary="Resume a trial", tags=["trials"], **_PLAIN)
def resume_trial(services: Services, caller: Caller, trial_id: UUID) -> ResumeView:
    """Undo its pause, also one that came with its job or batch."""
    return _resume(services, caller, "trial", trial_id)


@router.post("/batches/{batch_id}/retry", summary="Run trials of a batch again", tags=["batches"], **_RETRY)
def retry_batch(services: Services, caller: Caller, batch_id: UUID, body: Body) -> RetryView:
    """Run its finished trials with these outcomes again, each as a new trial that counts in the old one's place.

    Job, index and seed stay the same. A finished batch runs again until they have ended.
    """
    return _retry(services, caller, "batch", batch_id, body)


@router.post("/jobs/{job_id}/retry", summary="Run trials of a job again", tags=["jobs"], **_RETRY)
def retry_job(services: Services, caller: Caller, job_id: UUID, body: Body) -> RetryView:
    """Run its finished trials with these outcomes again, each as a new trial that counts in the old one's place."""
    return _retry(services, caller, "job", job_id, body)


@router.post("/trials/{trial_id}/retry", summary="Run a trial again", tags=["trials"], **_RETRY)
def retry_trial(services: Services, caller: Caller, trial_id: UUID, body: Body) -> RetryView:
    """Run it again as a new trial that counts in its place, if it is finished with one of these outcomes."""
    return _retry(services, caller, "trial", trial_id, body)


@router.post(
    "/batches/{batch_id}/regrade",
    summary="Grade the trials of a batch again",
    status_code=202,
    tags=["batches"],
    **_REGRADE,
)
def regrade_batch(services: Services, caller: Caller, batch_id: UUID, body: LargeBody) -> RegradeView:
    """Grade its finished trials again from what is stored of them: nothing is run.

    Logs, files and all earlier grades are kept. The verdict has to suit every job of the batch.
    """
    return _regrade(services, caller, "batch", batch_id, body)


@router.post(
    "/jobs/{job_id}/regrade",
    summary="Grade the trials of a job again",
    status_code=202,
    tags=["jobs"],
    **_REGRADE,
)
def regrade_job(services: Services, caller: Caller, job_id: UUID, body: LargeBody) -> RegradeView:
    """Grade its finished trials again from what is stored of them: nothing is run."""
    return _regrade(services, caller, "job", job_id, body)


@router.post(
    "/trials/{trial_id}/regrade",
    summary="Grade a trial again",
    status_code=202,
    tags=["trials"],
    **_REGRADE,
)
def regrade_trial(services: Services, caller: Caller, trial_id: UUID, body: LargeBody) -> RegradeView:
    """Grade it again from what is stored of it: nothing is run."""
    return _regrade(services, caller, "trial", trial_id, body)


@router.post("/batches/{batch_id}/close", summary="Close an open batch", tags=["batches"], **_PLAIN)
def close_batch(services: Services, caller: Caller, batch_id: UUID) -> BatchView:
    """Take no more jobs: the batch then ends with its last trial. Doing it again is no error."""
    with services.engine.begin() as connection:
        services.verbs(connection, caller).close(batch_id)
        view = to_batch_view(services.batches(connection, caller).get(batch_id))
    services.wake.scheduler()
    return view


def _aim(verbs: BatchVerbService, scope: Scope, key: UUID) -> Target:
    match scope:
        case "batch":
            return verbs.batch(key)
        case "job":
            return verbs.job(key)
        case "trial":
            return verbs.trial(key)


def _cancel(services: ApiServices, caller: Principal, scope: Scope, key: UUID, body: bytes) -> CancelView:
    request = check_schema(CancelRequest, parse_json(body))
    with services.engine.begin() as connection:
        verbs = services.verbs(connection, caller)
        done = verbs.cancel(_aim(verbs, scope, key), mode=request.mode)
    services.wake.cancelled(done.nodes)
    return to_cancel_view(done)


def _pause(services: ApiServices, caller: Principal, scope: Scope, key: UUID) -> PauseView:
    with services.engine.begin() as connection:
        verbs = services.verbs(connection, caller)
        done = verbs.pause(_aim(verbs, scope, key))
    return PauseView(paused=done.paused, running=done.running)


def _resume(services: ApiServices, caller: Principal, scope: Scope, key: UUID) -> ResumeView:
    with services.engine.begin() as connection:
        verbs = services.verbs(connection, caller)
        resumed = verbs.resume(_aim(verbs, scope, key))
    services.wake.scheduler()
    return ResumeView(resumed=resumed)


def _retry(services: ApiServices, caller: Principal, scope: Scope, key: UUID, body: bytes) -> RetryView:
    request = check_schema(RunAgainRequest, parse_json(body))
    with services.engine.begin() as connection:
        verbs = services.verbs(connection, caller)
        retried = verbs.retry(_aim(verbs, scope, key), request.outcomes)
    services.wake.scheduler()
    return RetryView(retried=retried)


def _regrade(services: ApiServices, caller: Principal, scope: Scope, key: UUID, body: bytes) -> RegradeView:
    request = check_schema(RegradeRequest, parse_json(body))
    verdict = request.verdict
    wish = NewRegrade(
        verdict=None if verdict is None else to_verdict(verdict),
        check=lambda spec: [] if verdict is None else services.checker.check_verdict(verdict, spec),
    )
    with services.engine.begin() as connection:
        target = _aim(services.verbs(connection, caller), scope, key)
        return to_regrade_view(services.regrades(connection, caller).request(target, wish))
