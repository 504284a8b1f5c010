from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Response

from api.body import json_body
from api.cursors import CursorScope
from api.json_body import parse_json
from api.openapi_parts import json_request
from api.schemas.batches import JobDetail, JobView, SubmittedJobView
from api.schemas.errors import error_responses
from api.schemas.examples import JOB_EXAMPLE
from api.schemas.jobs import JobRequest
from api.schemas.pages import Cursor, Limit, Page
from api.services import Caller, IdempotencyKey, Services, make_identity
from api.views import to_job_detail, to_job_view, to_submitted_job
from core.failpoints import failpoint
from services.blobs import store_files

__all__ = ["router"]

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])


@router.post(
    "",
    status_code=202,
    response_model=SubmittedJobView,
    summary="Submit a lone job",
    responses=error_responses(408, 409, 413, 415, 429)
    | {200: {"model": SubmittedJobView, "description": "Made before."}},
    openapi_extra=json_request(JobRequest, JOB_EXAMPLE),
)
def create_job(
    services: Services,
    caller: Caller,
    response: Response,
    body: Annotated[bytes, Depends(json_body)],
    idempotency_key: IdempotencyKey = None,
) -> SubmittedJobView:
    """Accept one job. It gets a batch of its own, named in `batch_id`, with all that batches can do."""
    value = parse_json(body)
    batch = services.checker.check_job(value)
    store_files(services.store, batch.jobs.files)
    with services.engine.begin() as connection:
        service = services.batches(connection, caller)
        created = service.create(batch, make_identity(idempotency_key, "jobs", value))
        job_id = service.page_jobs_of(created.batch_id, after=None, limit=1)[0].row.id
        view = to_submitted_job(service.get_job(job_id), service.warnings(batch.jobs))
        failpoint("api.before_commit")
    failpoint("api.after_commit")
    response.headers["Location"] = f"/v1/jobs/{job_id}"
    if created.replayed:
        response.status_code = 200
        response.headers["Idempotent-Replayed"] = "true"
    else:
        services.wake.scheduler()
    failpoint("api.after_wake")
    return view


@router.get("", summary="List jobs", responses=error_responses())
def list_jobs(services: Services, caller: Caller, limit: Limit = 50, cursor: Cursor = None) -> Page[JobView]:
    """List the jobs of all the tenant's batches, newest first."""
    scope = CursorScope("jobs", caller.tenant_id)
    before = scope.decode_id(cursor)
    with services.engine.begin() as connection:
        found = services.batches(connection, caller).page_jobs(before=before, limit=limit)
    following = scope.encode_id(found[-1].row.id) if len(found) == limit else None
    return Page(items=[to_job_view(summary) for summary in found], next_cursor=following)


@router.get("/{job_id}", summary="Look at a job", responses=error_responses(404))
def get_job(services: Services, caller: Caller, job_id: UUID) -> JobDetail:
    """Give the job with its spec, every default filled in."""
    with services.engine.begin() as connection:
        return to_job_detail(services.batches(connection, caller).get_job(job_id))
