"""What goes wrong with a container engine, as failures of ours."""

import re

from docker.errors import APIError

from core.errors import (
    DaemonError,
    ImageNotFoundError,
    RegistryAuthError,
    RegistryRateLimitedError,
    RegistryUnreachableError,
    RunFailure,
)
from runtimes.retry_after import parse_retry_after

__all__ = ["daemon_error", "pull_error"]

_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_NUMBER, _UNIT = r"[0-9]{1,9}(?:\.[0-9]{1,9})?", r"h|ms|m|s|us|µs|ns"
_DURATION = re.compile(f"({_NUMBER})({_UNIT})")
_SAID_IN_WORDS = re.compile(rf"retry-after:\s*((?:{_NUMBER}(?:{_UNIT}))+)", re.IGNORECASE)
"""The engine passes on no header of a registry; some say it in words as well, in Go's way: `retry-after: 1m30s`."""

_MAX_WORDS = 500


def daemon_error(what: str, error: APIError) -> DaemonError:
    """Give the failure for a refusal of the engine. what: could not be done."""
    failure = DaemonError(f"{what}: {error}")
    headers = getattr(error.response, "headers", {})
    failure.retry_after_seconds = parse_retry_after(headers.get("Retry-After"), headers.get("Date"))
    return failure


def pull_error(name: str, said: str) -> RunFailure:
    """Give the failure for an image that the engine could not fetch; it passes on a registry's words only."""
    words = " ".join(said.split())[:_MAX_WORDS]
    low = words.lower()
    if "toomanyrequests" in low or "too many requests" in low:
        message = f"image {name!r} cannot be pulled now, its registry was asked too often: {words}"
        failure: RunFailure = RegistryRateLimitedError(message)
    elif "unauthorized" in low or "authentication required" in low or "denied" in low:
        failure = RegistryAuthError(f"image {name!r} is not there, or not for this engine's user: {words}")
    elif "manifest unknown" in low or "not found" in low or "name unknown" in low:
        failure = ImageNotFoundError(f"there is no image {name!r}: {words}")
    else:
        failure = RegistryUnreachableError(f"image {name!r} cannot be pulled now: {words}")
    failure.retry_after_seconds = _seconds_in(words)
    return failure


def _seconds_in(words: str) -> float | None:
    found = _SAID_IN_WORDS.search(words)
    if found is None:
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in _DURATION.findall(found[1]))
