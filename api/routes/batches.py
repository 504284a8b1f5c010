from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Response

from api.body import json_body
from api.cursors import CursorScope
from api.json_body import parse_json
from api.openapi_parts import json_request
from api.schemas.batches import AppendRequest, BatchRequest, BatchView, JobView, SubmittedBatchView
from api.schemas.errors import error_responses
from api.schemas.examples import APPEND_EXAMPLE, BATCH_EXAMPLE
from api.schemas.fields import JobKey
from api.schemas.pages import Cursor, Limit, Page
from api.schemas.trials import OutcomeName, TrialStateName, TrialView
from api.services import Caller, IdempotencyKey, Services, make_identity
from api.views import to_batch_view, to_job_view, to_submitted_batch, to_trial_view
from core.failpoints import failpoint
from repositories.trials_read import TrialFilter
from services.blobs import store_files
from services.webhooks import check_receiver

__all__ = ["router"]

router = APIRouter(prefix="/v1/batches", tags=["batches"])


@router.post(
    "",
    status_code=202,
    response_model=SubmittedBatchView,
    summary="Submit a batch of jobs",
    responses=error_responses(408, 409, 413, 415, 429)
    | {200: {"model": SubmittedBatchView, "description": "Made before."}},
    openapi_extra=json_request(BatchRequest, BATCH_EXAMPLE),
)
def create_batch(
    services: Services,
    caller: Caller,
    response: Response,
    body: Annotated[bytes, Depends(json_body)],
    idempotency_key: IdempotencyKey = None,
) -> SubmittedBatchView:
    """Accept jobs to run. The answer comes after they are stored safely; they start as soon as there is room.

    Everything that is wrong with the body is told at once, and then nothing is stored.
    """
    value = parse_json(body)
    batch = services.checker.check_batch(value)
    if batch.webhook is not None:
        check_receiver(services.guard, batch.webhook.url, field="on_complete.webhook.url")
    store_files(services.store, batch.jobs.files)
    with services.engine.begin() as connection:
        service = services.batches(connection, caller)
        created = service.create(batch, make_identity(idempotency_key, "batches", value))
        view = to_submitted_batch(service.get(created.batch_id), service.warnings(batch.jobs))
        failpoint("api.before_commit")
    failpoint("api.after_commit")
    response.headers["Location"] = f"/v1/batches/{created.batch_id}"
    if created.replayed:
        response.status_code = 200
        response.headers["Idempotent-Replayed"] = "true"
    else:
        services.wake.scheduler()
    failpoint("api.after_wake")
    return view


@router.get("", summary="List batches", responses=error_responses())
def list_batches(
    services: Services, caller: Caller, limit: Limit = 50, cursor: Cursor = None
) -> Page[BatchView]:
    """List the tenant's batches, newest first."""
    scope = CursorScope("batches", caller.tenant_id)
    before = scope.decode_id(cursor)
    with services.engine.begin() as connection:
        found = services.batches(connection, caller).page(before=before, limit=limit)
    following = scope.encode_id(found[-1].row.id) if len(found) == limit else None
    return Page(items=[to_batch_view(summary) for summary in found], next_cursor=following)


@router.get("/{batch_id}", summary="Look at a batch", responses=error_responses(404, 410))
def get_batch(services: Services, caller: Caller, batch_id: UUID) -> BatchView:
    """Give the batch with its trials counted by state and outcome."""
    with services.engine.begin() as connection:
        return to_batch_view(services.batches(connection, caller).get(batch_id))


@router.get("/{batch_id}/jobs", summary="List the jobs of a batch", responses=error_responses(404, 410))
def list_batch_jobs(
    services: Services, caller: Caller, batch_id: UUID, limit: Limit = 50, cursor: Cursor = None
) -> Page[JobView]:
    """List the jobs in the order of the request."""
    scope = CursorScope("batches/jobs", caller.tenant_id, batch_id)
    after = scope.decode_id(cursor)
    with services.engine.begin() as connection:
        found = services.batches(connection, caller).page_jobs_of(batch_id, after=after, limit=limit)
    following = scope.encode_id(found[-1].row.id) if len(found) == limit else None
    return Page(items=[to_job_view(summary) for summary in found], next_cursor=following)


@router.get("/{batch_id}/trials", summary="List the trials of a batch", responses=error_responses(404, 410))
def list_batch_trials(
    *,
    services: Services,
    caller: Caller,
    batch_id: UUID,
    state: TrialStateName | None = None,
    outcome: OutcomeName | None = None,
    job: Annotated[JobKey | None, Query(description="Key of a job.")] = None,
    superseded: Annotated[
        bool, Query(description="Also those in whose place a retry counts; `total` leaves them out.")
    ] = False,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[TrialView]:
    """List the trials that have a row, in the order in which they were made: at first by job, then by index.

    Of a large batch the scheduler makes rows ahead of what can run; counts speak of all trials at any time.
    """
    scope = CursorScope("batches/trials", caller.tenant_id, batch_id, state, outcome, job, superseded)
    after = scope.decode_id(cursor)
    wanted = TrialFilter(state=state, outcome=outcome, job_key=job, with_superseded=superseded)
    with services.engine.begin() as connection:
        found = services.trials(connection, caller).page_of_batch(batch_id, wanted, after=after, limit=limit)
    following = scope.encode_id(found[-1].id) if len(found) == limit else None
    return Page(items=[to_trial_view(row) for row in found], next_cursor=following)


@router.post(
    "/{batch_id}/jobs",
    status_code=202,
    response_model=SubmittedBatchView,
    summary="Append jobs to an open batch",
    responses=error_responses(404, 408, 409, 410, 413, 415, 429)
    | {200: {"model": SubmittedBatchView, "description": "Appended before."}},
    openapi_extra=json_request(AppendRequest, APPEND_EXAMPLE),
)
def append_jobs(
    *,
    services: Services,
    caller: Caller,
    response: Response,
    batch_id: UUID,
    body: Annotated[bytes, Depends(json_body)],
    idempotency_key: IdempotencyKey = None,
) -> SubmittedBatchView:
    """Add jobs to a batch that was made with `open`, all or none. They may need jobs that it has already."""
    value = parse_json(body)
    with services.engine.begin() as connection:
        batch = services.batches(connection, caller).get_row(batch_id)
    jobs = services.checker.check_append(value, defaults=batch.defaults or {}, priority=batch.priority)
    store_files(services.store, jobs.files)
    with services.engine.begin() as connection:
        service = services.batches(connection, caller)
        identity = make_identity(idempotency_key, f"batches/{batch_id}/jobs", value)
        created = service.append(batch_id, jobs, identity)
        view = to_submitted_batch(service.get(batch_id), service.warnings(jobs))
    if created.replayed:
        response.status_code = 200
        response.headers["Idempotent-Replayed"] = "true"
    else:
        services.wake.scheduler()
    return view
