"""Wire forms as the API answers them, and an HTTP server that is a function, for tests of the client."""

import base64
import json
from collections.abc import Callable, Iterable
from typing import Any

import httpx

from sandmill import Client, RetryPolicy

BATCH_ID = "01a22df5-0f1a-77b5-862e-5845949efcf1"
ATTEMPT_ID = "01a22df5-0f1a-77b5-862e-000000000001"


def make_batch(**changes: Any) -> dict[str, Any]:
    batch = {
        "id": BATCH_ID,
        "name": "b",
        "labels": {},
        "priority": 0,
        "state": "running",
        "implicit": False,
        "cancel_requested": False,
        "jobs": 1,
        "trials": {"total": 2, "by_state": {"queued": 2}, "by_outcome": {}},
        "created_at": "2026-01-02T03:04:05.678901Z",
        "finished_at": None,
    }
    return {**batch, **changes}


def make_error(code: str, **changes: Any) -> dict[str, Any]:
    return {"code": code, "message": "m", "field": None, "request_id": "r", "details": [], **changes}


def make_chunk(seq: int, data: bytes = b"x") -> dict[str, Any]:
    return {
        "seq": seq,
        "t": "2026-01-02T03:04:05Z",
        "stream": "stdout",
        "step": "verify",
        "b64": base64.b64encode(data).decode(),
        "text": data.decode("utf-8", "replace"),
    }


def chunk_event(seq: int, data: bytes = b"x") -> bytes:
    return f"id: {seq}\ndata: {json.dumps(make_chunk(seq, data))}\n\n".encode()


END_EVENT = b'event: end\ndata: {"truncated_bytes":7}\n\n'


class Server:
    """Answers each request with the next of the given answers, and keeps the requests and the client's pauses.

    An answer is a response, an exception to raise, or a function of the request that gives either.
    """

    def __init__(self, *answers: Any, retry: RetryPolicy | None = None) -> None:
        self.answers = list(answers)
        self.requests: list[httpx.Request] = []
        self.pauses: list[float] = []
        self.client = Client(
            "http://sandmill.test",
            "sm_secret",
            retry=retry,
            http=httpx.MockTransport(self._answer),
            sleep=self.pauses.append,
        )

    def _answer(self, request: httpx.Request) -> httpx.Response:
        request.read()
        self.requests.append(request)
        answer = self.answers.pop(0)
        if callable(answer):
            answer = answer(request)
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, httpx.Response)
        return answer


class BrokenStream(httpx.SyncByteStream):
    """A body that breaks off after its pieces."""

    def __init__(self, pieces: Iterable[bytes], error: Callable[[], Exception]) -> None:
        self._pieces = pieces
        self._error = error

    def __iter__(self):
        yield from self._pieces
        raise self._error()
