import hashlib
import json
import re

import httpx
import pytest

from api.openapi_examples import EXAMPLES
from sandmill import (
    Client,
    ConflictError,
    ErrorDetail,
    IdempotencyConflictError,
    InvalidRequestError,
    Job,
    NotFoundError,
    ProtocolError,
    SandmillError,
    Step,
    UnavailableError,
    WaitTimeoutError,
)
from tests.support.wire import ATTEMPT_ID, BATCH_ID, BrokenStream, Server, make_batch, make_error

JOB = Job(key="j", image="host", steps=[Step("run", "true")])


def test_repeats_of_a_create_carry_the_same_key_and_body() -> None:
    server = Server(httpx.ReadError("reset"), httpx.Response(200, json=make_batch()))
    server.client.submit_batch([JOB], name="n", priority=3)
    first, second = server.requests
    assert first.headers["Idempotency-Key"] == second.headers["Idempotency-Key"]
    assert first.content == second.content
    assert json.loads(first.content) == {"name": "n", "priority": 3, "jobs": [JOB.to_json()]}


def test_two_creates_carry_different_keys() -> None:
    server = Server(*[httpx.Response(202, json=make_batch()) for _ in range(3)])
    server.client.submit_batch([JOB])
    server.client.submit_batch([JOB])
    server.client.submit_batch([JOB], idempotency_key="mine")
    keys = [request.headers["Idempotency-Key"] for request in server.requests]
    assert len(set(keys)) == 3
    assert keys[2] == "mine"


def test_key_goes_in_the_header_and_into_no_text() -> None:
    server = Server(httpx.ConnectError("refused"), httpx.Response(200, json=make_batch()))
    server.client.get_batch(BATCH_ID)
    assert server.requests[0].headers["Authorization"] == "Bearer sm_secret"
    assert repr(server.client) == "Client('http://sandmill.test')"
    with pytest.raises(ValueError) as caught:  # noqa: PT011 -- what it must not say is the point
        Client("http://sandmill.test", "sm_secret\n")
    assert "sm_secret" not in str(caught.value)


def test_address_and_key_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDMILL_API_URL", "http://127.0.0.1:9/")
    monkeypatch.delenv("SANDMILL_API_KEY", raising=False)
    with pytest.raises(ValueError, match="SANDMILL_API_KEY"):
        Client()
    monkeypatch.setenv("SANDMILL_API_KEY", "k")
    with Client() as client:
        assert repr(client) == "Client('http://127.0.0.1:9')"


@pytest.mark.parametrize("address", ["127.0.0.1:8080", "ftp://a", "http://", "", "http://a:b"])
def test_bad_address_is_told_at_once(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SANDMILL_API_URL", raising=False)
    with pytest.raises(ValueError, match=r"SANDMILL_API_URL|is not an address"):
        Client(address, "k")


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (409, "idempotency_conflict", IdempotencyConflictError),
        (409, "a_newer_code", ConflictError),
        (418, "a_newer_code", InvalidRequestError),
        (500, "internal_error", SandmillError),
        (404, "not_found", NotFoundError),
    ],
)
def test_errors_have_the_class_of_their_code(status: int, code: str, expected: type[SandmillError]) -> None:
    server = Server(httpx.Response(status, json=make_error(code)))
    with pytest.raises(SandmillError) as caught:
        server.client.get_batch(BATCH_ID)
    assert (type(caught.value), caught.value.code, caught.value.status) == (expected, code, status)


def test_error_tells_every_field() -> None:
    details = [
        {"field": "jobs[0].key", "message": "required"},
        {"field": "jobs[1].key", "message": "required"},
    ]
    body = make_error("invalid_request", message="required", field="jobs[0].key", details=details)
    with pytest.raises(InvalidRequestError) as caught:
        Server(httpx.Response(422, json=body)).client.submit_batch([JOB])
    assert caught.value.details[1] == ErrorDetail("jobs[1].key", "required")
    assert (str(caught.value), caught.value.request_id) == ("jobs[0].key: required (and 1 more)", "r")


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(200, text="<html>"),
        httpx.Response(200, json=[]),
        httpx.Response(200, json=make_batch(trials=None)),
        httpx.Response(200, json=make_batch(created_at="yesterday")),
        httpx.Response(200, json=make_batch(jobs=True)),
    ],
)
def test_answer_of_something_else_is_a_protocol_error(answer: httpx.Response) -> None:
    with pytest.raises(ProtocolError):
        Server(answer).client.get_batch(BATCH_ID)


def test_fields_of_a_newer_server_are_passed_over() -> None:
    assert Server(httpx.Response(200, json=make_batch(newer=1))).client.get_batch(BATCH_ID).id == BATCH_ID


def test_warnings_of_a_submission_are_given() -> None:
    warning = {"field": "jobs[0].resources.cpu", "message": "is 64"}
    server = Server(
        httpx.Response(202, json=make_batch(warnings=[warning])), httpx.Response(200, json=make_batch())
    )
    assert server.client.submit_batch([JOB]).warnings == ("jobs[0].resources.cpu: is 64",)
    assert server.client.get_batch(BATCH_ID).warnings == ()


def test_redirect_does_not_carry_the_key_elsewhere() -> None:
    server = Server(httpx.Response(302, headers={"Location": "http://elsewhere.test/"}))
    with pytest.raises(SandmillError):
        server.client.get_batch(BATCH_ID)
    assert len(server.requests) == 1


def test_ids_cannot_reach_another_route() -> None:
    server = Server(httpx.Response(404, json=make_error("not_found")))
    with pytest.raises(NotFoundError):
        server.client.get_batch("../jobs?x=#")
    assert server.requests[0].url.raw_path == b"/v1/batches/..%2Fjobs%3Fx%3D%23"
    with pytest.raises(ValueError, match="is no id"):
        server.client.get_batch("..")


def test_dead_letters_are_listed_replayed_and_discarded() -> None:
    letter = {**EXAMPLES["DeadLetterView"], "failure": {**EXAMPLES["DeadLetterView"]["failure"]}}
    server = Server(
        httpx.Response(200, json={"items": [letter], "next_cursor": None}),
        httpx.ReadError("reset"),
        httpx.Response(202, json=EXAMPLES["ReplayView"]),
        httpx.Response(200, json={**letter, "state": "discarded", "discarded_at": "2026-01-02T03:04:05Z"}),
    )
    (found,) = server.client.iter_dead_letters()
    assert (found.code, found.failure.code, found.nodes_lost, found.state) == ("poison", "poison", 3, "open")
    assert server.client.replay_dead_letter(found.trial_id, force=True).replay_of == found.trial_id
    discarded = server.client.discard_dead_letter(found.trial_id)
    assert discarded.discarded_at is not None
    listed, lost, replayed, _ = server.requests
    assert listed.url.params["state"] == "open"
    # With force a repeat would make one more, were it not for the key.
    assert lost.headers["Idempotency-Key"] == replayed.headers["Idempotency-Key"]
    assert json.loads(replayed.content) == {"force": True}


def test_lists_are_read_page_by_page() -> None:
    server = Server(
        httpx.Response(200, json={"items": [make_batch(id="1"), make_batch(id="2")], "next_cursor": "c"}),
        httpx.Response(200, json={"items": [make_batch(id="3")], "next_cursor": None}),
    )
    assert [batch.id for batch in server.client.iter_batches()] == ["1", "2", "3"]
    assert dict(server.requests[1].url.params) == {"limit": "500", "cursor": "c"}


def test_wait_polls_and_reports_until_the_end() -> None:
    running = httpx.Response(200, json=make_batch())
    server = Server(*([running] * 20), httpx.Response(200, json=make_batch(state="finished")))
    seen = []
    assert server.client.wait(BATCH_ID, on_progress=seen.append).is_finished
    assert [batch.state for batch in seen] == ["running"] * 20 + ["finished"]
    assert server.pauses[0] == pytest.approx(0.05)
    assert server.pauses[-1] == pytest.approx(0.5)


def test_wait_gives_up_in_time() -> None:
    server = Server(httpx.Response(200, json=make_batch()))
    with pytest.raises(WaitTimeoutError, match="0 of 2 trials"):
        server.client.wait(BATCH_ID, timeout_seconds=0)


def test_blob_that_is_there_is_not_sent() -> None:
    server = Server(httpx.Response(200))
    digest = server.client.upload_blob(b"data")
    assert digest == f"sha256:{hashlib.sha256(b'data').hexdigest()}"
    assert [request.method for request in server.requests] == ["HEAD"]


def test_file_is_sent_whole_again_after_a_broken_upload(tmp_path) -> None:
    path = tmp_path / "big"
    path.write_bytes(b"0123456789" * 300_000)
    server = Server(httpx.Response(404), httpx.WriteError("reset"), httpx.Response(201, json={}))
    digest = server.client.upload_blob(path)
    upload = server.requests[-1]
    assert upload.content == path.read_bytes()
    assert upload.headers["Content-Length"] == str(path.stat().st_size)
    assert upload.url.params["digest"] == digest


def test_artifact_is_written_whole_or_not_at_all(tmp_path) -> None:
    target = tmp_path / "out.txt"
    torn = httpx.Response(200, stream=BrokenStream([b"half"], lambda: httpx.ReadError("reset")))
    server = Server(
        torn, httpx.Response(200, content=b"whole"), httpx.Response(404, json=make_error("not_found"))
    )
    server.client.download_artifact(ATTEMPT_ID, "/logs/a b.txt", target)
    with pytest.raises(NotFoundError):
        server.client.download_artifact(ATTEMPT_ID, "/other", tmp_path / "other")
    assert [path.name for path in tmp_path.iterdir()] == ["out.txt"]
    assert target.read_bytes() == b"whole"
    assert server.requests[0].url.raw_path.endswith(b"/artifacts/logs/a%20b.txt")


def test_report_is_an_object_or_text() -> None:
    server = Server(httpx.Response(200, json={"trials": 8}), httpx.Response(200, text="<é/>"))
    assert server.client.report(BATCH_ID) == {"trials": 8}
    assert server.client.report(BATCH_ID, "junit") == "<é/>"
    assert [request.url.params["format"] for request in server.requests] == ["json", "junit"]


def test_closed_client_says_so() -> None:
    server = Server()
    server.client.close()
    with pytest.raises(UnavailableError, match=re.escape("closed on this side")):
        server.client.get_batch(BATCH_ID)


def test_endless_error_of_a_stranger_is_not_read_to_its_end() -> None:
    pieces = iter([b"x" * (1 << 20)] * 3)
    stranger = httpx.Response(404, stream=BrokenStream(pieces, lambda: AssertionError("read to the end")))
    with pytest.raises(NotFoundError, match="was answered with status 404"):
        Server(stranger).client.get_batch(BATCH_ID)


@pytest.mark.parametrize("body", ["[]", "{", '{"code": 1, "details": [1, null]}', '{"message": null}'])
def test_error_without_our_shape_is_told_by_its_status(body: str) -> None:
    with pytest.raises(NotFoundError, match="was answered with status 404"):
        Server(httpx.Response(404, text=body)).client.get_batch(BATCH_ID)
