"""What users of similar clients met, tried on Sandmill's own.

| case | test |
|---|---|
| B-151 | below |
| B-152 | below; fields of a newer server: `tests/unit/sdk/test_client.py` |
| B-154 | below: paths in a sandbox are text to the client, on whatever system it runs |
"""

import json
import ntpath
import os
import pathlib

import httpx
import pytest

from sandmill import (
    ConflictError,
    InvalidRequestError,
    Job,
    NotFoundError,
    ProtocolError,
    QuotaExceededError,
    SandmillError,
    Step,
    UnauthenticatedError,
    UnavailableError,
)
from tests.support.wire import BATCH_ID, Server, make_batch

OF_STATUS = {
    400: InvalidRequestError,
    401: UnauthenticatedError,
    404: NotFoundError,
    409: ConflictError,
    422: InvalidRequestError,
    429: QuotaExceededError,
    500: SandmillError,
    502: UnavailableError,
    503: UnavailableError,
}
PAGE = "<html><head><title>502 Bad Gateway</title></head><body>nginx</body></html>"
TRIES = 20
"""More than the client repeats what may pass."""


@pytest.mark.parametrize("status", OF_STATUS)
@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b"", "application/json"),
        (PAGE.encode(), "text/html"),
        (b'{"code": 7, "message": null}', "application/json"),
        (b"[]", "application/json"),
        (b"\xff\xfe", "application/json"),
    ],
    ids=["empty", "page", "strange", "list", "no text"],
)
def test_an_error_of_any_shape_has_the_class_of_its_status(
    status: int, body: bytes, content_type: str
) -> None:
    """B-151: and its status, its request id and what was asked for."""
    headers = {"content-type": content_type, "x-request-id": "r-1"}
    answers = [httpx.Response(status, content=body, headers=headers) for _ in range(TRIES)]
    with pytest.raises(SandmillError) as caught:
        Server(*answers).client.get_batch(BATCH_ID)
    assert type(caught.value) is OF_STATUS[status]
    assert (caught.value.status, caught.value.request_id) == (status, "r-1")
    assert str(caught.value) == f"GET /v1/batches/{BATCH_ID} was answered with status {status}"


@pytest.mark.parametrize("status", OF_STATUS)
def test_an_error_of_the_server_is_told_with_all_it_says(status: int) -> None:
    """B-151."""
    told = {
        "code": "a_newer_code",
        "message": "jobs[0].image: there is no image x",
        "field": "jobs[0].image",
        "request_id": "r-2",
        "details": [{"field": "jobs[0].image", "message": "there is no image x"}],
    }
    with pytest.raises(SandmillError) as caught:
        Server(*[httpx.Response(status, json=told) for _ in range(TRIES)]).client.get_batch(BATCH_ID)
    error = caught.value
    assert type(error) is OF_STATUS[status]
    assert (error.code, error.status, error.field, error.request_id) == (
        "a_newer_code", status, "jobs[0].image", "r-2",
    )  # fmt: skip
    assert [detail.message for detail in error.details] == ["there is no image x"]
    assert str(error) == "jobs[0].image: there is no image x"


def test_values_of_a_newer_server_are_taken_and_an_answer_without_any_is_told_apart() -> None:
    """B-152: a state nobody knows here, a field more, a null where a time may be."""
    batch = {**make_batch(), "state": "hibernating", "new": {"a": [1]}, "finished_at": None}
    read = Server(httpx.Response(200, json=batch)).client.get_batch(BATCH_ID)
    assert read.state == "hibernating"
    with pytest.raises(ProtocolError, match="no JSON"):
        Server(httpx.Response(200)).client.get_batch(BATCH_ID)
    # An answer that says nothing is enough where nothing is to be said.
    Server(httpx.Response(204)).client.delete_webhook(BATCH_ID)


def test_paths_in_a_sandbox_are_the_same_text_under_the_rules_of_windows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """B-154."""
    monkeypatch.setattr(os, "path", ntpath)
    monkeypatch.setattr(os, "sep", "\\")
    monkeypatch.setattr(pathlib, "Path", pathlib.PureWindowsPath)
    job = Job(key="j", image="host", steps=[Step("run", "true", cwd="/work/a")], workdir="/work/b")
    assert json.dumps(job.to_json()).count("/work/") == 2
    assert "\\\\" not in json.dumps(job.to_json())
