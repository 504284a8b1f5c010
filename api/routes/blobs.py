from typing import Annotated

from fastapi import APIRouter, Header, Path, Query, Request, Response
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool

from api.body import stream_body
from api.downloads import DOWNLOAD_RESPONSE, download
from api.openapi_parts import BINARY_REQUEST
from api.schemas.errors import error_responses
from api.schemas.fields import HEX_DIGEST_PATTERN, BlobDigest
from api.schemas.logs import BlobView
from api.services import ApiServices, Caller, Services
from api.views import to_blob_view
from core.blobstore import StoredBlob
from core.errors import InvalidRequestError
from services.tenants import Principal

__all__ = ["router"]

router = APIRouter(prefix="/v1/blobs", tags=["blobs"])

_WRITE_BYTES = 1 << 20
"""Bytes gathered before the disk is bothered, on another thread."""

DigestInPath = Annotated[BlobDigest, Path(description="`sha256:` and 64 lowercase hex digits.")]


@router.post(
    "",
    status_code=201,
    summary="Store a blob",
    responses=error_responses(408, 413, 415),
    openapi_extra=BINARY_REQUEST,
)
async def create_blob(
    *,
    request: Request,
    services: Services,
    caller: Caller,
    response: Response,
    digest: Annotated[
        BlobDigest | None, Query(description="Refuse the bytes if they have another digest.")
    ] = None,
    content_sha256: Annotated[
        str | None,
        Header(
            alias="X-Content-SHA256", pattern=HEX_DIGEST_PATTERN, description="The same as `digest`, in hex."
        ),
    ] = None,
) -> BlobView:
    """Store the body, as it is, under its digest. Storing what is there already is no error."""
    from_header = None if content_sha256 is None else f"sha256:{content_sha256}"
    if digest is not None and from_header is not None and digest != from_header:
        raise InvalidRequestError("digest and X-Content-SHA256 differ", field="digest")
    blob = await _receive(request, services, digest or from_header)
    await run_in_threadpool(_grant, services, caller, blob)
    response.headers["Location"] = f"/v1/blobs/{blob.digest}"
    return to_blob_view(blob)


@router.head("/{digest}", summary="Ask for a blob", responses=error_responses(404))
def head_blob(services: Services, caller: Caller, digest: DigestInPath) -> Response:
    """Say whether the tenant has stored it, and how large it is."""
    with services.engine.begin() as connection:
        blob = services.blobs(connection, caller).find(digest)
    return Response(headers={"Content-Length": str(blob.size_bytes), "ETag": f'"{blob.digest}"'})


@router.get(
    "/{digest}",
    summary="Download a blob",
    response_class=StreamingResponse,
    responses=error_responses(404) | DOWNLOAD_RESPONSE,
)
def get_blob(services: Services, caller: Caller, digest: DigestInPath) -> StreamingResponse:
    """Give the bytes as an attachment."""
    with services.engine.begin() as connection:
        blob = services.blobs(connection, caller).find(digest)
    return download(services.store, blob, name=blob.digest.removeprefix("sha256:"))


async def _receive(request: Request, services: ApiServices, expected: str | None) -> StoredBlob:
    limit = services.settings.max_blob_bytes
    writer = await run_in_threadpool(services.store.writer, max_bytes=limit, expected_digest=expected)
    with writer:
        pending = bytearray()
        async for piece in stream_body(request, max_bytes=limit):
            pending += piece
            if len(pending) >= _WRITE_BYTES:
                await run_in_threadpool(writer.write, bytes(pending))
                pending.clear()
        await run_in_threadpool(writer.write, bytes(pending))
        return await run_in_threadpool(writer.commit)


def _grant(services: ApiServices, caller: Principal, blob: StoredBlob) -> None:
    with services.engine.begin() as connection:
        services.blobs(connection, caller).grant(blob)
