import random
from datetime import UTC, datetime

import httpx
import pytest

from sandmill import (
    ConnectionLostError,
    InvalidRequestError,
    QuotaExceededError,
    RetryPolicy,
    TooManyFailuresError,
    UnavailableError,
)
from sandmill.retry import parse_retry_after
from tests.support.wire import BATCH_ID, Server, make_batch, make_error

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    "failure",
    [
        httpx.ConnectError("refused"),
        httpx.ReadTimeout("slow"),
        httpx.RemoteProtocolError("closed"),
        httpx.Response(503, json=make_error("unavailable")),
        httpx.Response(502, text="<html>proxy</html>"),
        httpx.Response(429, json=make_error("quota_exceeded")),
    ],
    ids=["refused", "timeout", "closed", "503", "proxy", "429"],
)
def test_passing_troubles_are_outlived(failure: object) -> None:
    server = Server(failure, failure, httpx.Response(200, json=make_batch()))
    assert server.client.get_batch(BATCH_ID).id == BATCH_ID
    assert len(server.pauses) == 2


def test_retry_after_is_kept_and_spread() -> None:
    busy = httpx.Response(503, json=make_error("unavailable"), headers={"Retry-After": "4"})
    server = Server(busy, httpx.Response(200, json=make_batch()))
    server.client.get_batch(BATCH_ID)
    assert 4 <= server.pauses[0] <= 5


def test_wait_longer_than_the_budget_is_not_begun() -> None:
    busy = httpx.Response(429, json=make_error("quota_exceeded"), headers={"Retry-After": "600"})
    server = Server(busy)
    with pytest.raises(QuotaExceededError) as caught:
        server.client.get_batch(BATCH_ID)
    assert (server.pauses, caught.value.retry_after_seconds) == ([], 600)


def test_tries_are_bounded_and_the_last_error_comes_out() -> None:
    server = Server(*([httpx.ConnectError("refused")] * 3), retry=RetryPolicy(attempts=3))
    with pytest.raises(ConnectionLostError, match="refused"):
        server.client.get_batch(BATCH_ID)
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [(422, "invalid_request", InvalidRequestError), (429, "too_many_failures", TooManyFailuresError)],
)
def test_what_cannot_pass_is_not_repeated(status: int, code: str, expected: type[Exception]) -> None:
    server = Server(httpx.Response(status, json=make_error(code)))
    with pytest.raises(expected):
        server.client.get_batch(BATCH_ID)
    assert len(server.requests) == 1


def test_delay_is_drawn_below_a_cap_that_doubles() -> None:
    policy = RetryPolicy(attempts=100, base_seconds=1, cap_seconds=8, rng=random.Random(1))
    error = UnavailableError("away")
    for tried in range(1, 20):
        drawn = [policy.delay(error, tried=tried, elapsed_seconds=0) for _ in range(50)]
        top = min(8, 2 ** (tried - 1))
        assert all(delay is not None and 0 <= delay <= top for delay in drawn)
        assert max(delay or 0 for delay in drawn) > top / 2


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (None, None),
        ("7", 7),
        (" 7 ", 7),
        ("Thu, 01 Jan 2026 00:00:09 GMT", 9),
        ("Wed, 31 Dec 2025 00:00:00 GMT", 0),
        ("soon", None),
        ("-3", None),
        ("٣", None),
        ("", None),
    ],
)
def test_retry_after_is_seconds_or_a_date(text: str | None, seconds: float | None) -> None:
    assert parse_retry_after(text, now=NOW) == seconds
