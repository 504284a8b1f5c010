import pytest
from docker.errors import APIError
from hypothesis import given
from hypothesis import strategies as st
from requests import Response

from core.errors import (
    FailureClass,
    ImageNotFoundError,
    RegistryAuthError,
    RegistryRateLimitedError,
    RegistryUnreachableError,
)
from runtimes.engine_errors import daemon_error, pull_error
from runtimes.retry_after import parse_retry_after

DATE = "Tue, 01 Dec 2026 02:34:10 GMT"


@pytest.mark.parametrize(
    ("value", "date", "seconds"),
    [
        ("120", None, 120.0),
        (" 0 ", None, 0.0),
        ("Tue, 01 Dec 2026 02:36:10 GMT", DATE, 120.0),
        ("Tue, 01 Dec 2026 02:30:00 GMT", DATE, 0.0),
        ("Tue, 01 Dec 2026 02:36:10 GMT", None, None),
        ("Tue, 01 Dec 2026 02:36:10", DATE, None),
        ("Tue, 01 Dec 2026 02:36:10 GMT", "yesterday", None),
        ("-5", None, None),
        ("1.5", None, None),
        ("1e9", None, None),
        ("٣", None, None),
        ("9" * 400, None, None),
        ("soon", DATE, None),
        ("", DATE, None),
        (None, DATE, None),
    ],
)
def test_seconds_and_dates_are_read_and_all_else_is_passed_over(value, date, seconds):
    assert parse_retry_after(value, date) == seconds


@given(value=st.text(max_size=60), date=st.none() | st.just(DATE) | st.text(max_size=40))
def test_hostile_headers_raise_nothing_and_give_no_negative_wait(value, date):
    seconds = parse_retry_after(value, date)
    assert seconds is None or seconds >= 0


@pytest.mark.parametrize(
    ("said", "kind", "seconds"),
    [
        ("toomanyrequests: You have reached your pull rate limit.", RegistryRateLimitedError, None),
        (
            "toomanyrequests: retry-after: 317.003µs, allowed: 44000/minute",
            RegistryRateLimitedError,
            317.003e-6,
        ),
        ("toomanyrequests: Retry-After: 1m30s, allowed", RegistryRateLimitedError, 90.0),
        ("received unexpected HTTP status: 429 Too Many Requests", RegistryRateLimitedError, None),
        ("received unexpected HTTP status: 503 Service Unavailable", RegistryUnreachableError, None),
        ("Get http://127.0.0.1:4290/v2/: connect: connection refused", RegistryUnreachableError, None),
        ("unauthorized: authentication required", RegistryAuthError, None),
        ("denied: requested access to the resource is denied", RegistryAuthError, None),
        ("manifest for x:1 not found: manifest unknown", ImageNotFoundError, None),
        ("retry-after: 1.2.3s", RegistryUnreachableError, None),
        ("retry-after: never", RegistryUnreachableError, None),
    ],
)
def test_words_of_an_engine_become_the_failure_they_mean(said, kind, seconds):
    failure = pull_error("app:1", said)
    assert type(failure) is kind
    assert failure.retry_after_seconds == (None if seconds is None else pytest.approx(seconds))
    assert "'app:1'" in failure.message
    assert said[:20] in failure.message


def test_engine_that_is_busy_is_left_alone_for_as_long_as_it_says():
    response = Response()
    response.status_code = 503
    response.headers["Retry-After"] = "7"
    failure = daemon_error("container x could not be created", APIError("busy", response, "busy"))
    assert (failure.retry_after_seconds, failure.failure_class) == (7.0, FailureClass.INFRA)
    assert daemon_error("x", APIError("busy")).retry_after_seconds is None
