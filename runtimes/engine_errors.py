"""What goes wrong with a container engine, as failures of ours."""

import re

from docker.errors import APIError

from core.errors import (
    BadImageError,
    DaemonError,
    ImageNotFoundError,
    NodeDiskFullError,
    RegistryAuthError,
    RegistryRateLimitedError,
    RegistryTlsError,
    RegistryUnreachableError,
    RunFailure,
    RuntimeUnavailableError,
    SpecInvalidError,
)
from runtimes.base import SandboxSpec
from runtimes.retry_after import parse_retry_after

__all__ = ["daemon_error", "pull_error", "start_error"]

_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_NUMBER, _UNIT = r"[0-9]{1,9}(?:\.[0-9]{1,9})?", r"h|ms|m|s|us|µs|ns"
_DURATION = re.compile(f"({_NUMBER})({_UNIT})")
_SAID_IN_WORDS = re.compile(rf"retry-after:\s*((?:{_NUMBER}(?:{_UNIT}))+)", re.IGNORECASE)
"""The engine passes on no header of a registry; some say it in words as well, in Go's way: `retry-after: 1m30s`."""

_MAX_WORDS = 500


def daemon_error(what: str, error: APIError) -> RunFailure:
    """Give the failure for a refusal of the engine. what: could not be done."""
    if _is_full(str(error)):
        return NodeDiskFullError(f"{what}: the disk of the container engine is full")
    failure = DaemonError(f"{what}: {error}")
    headers = getattr(error.response, "headers", {})
    failure.retry_after_seconds = parse_retry_after(headers.get("Retry-After"), headers.get("Date"))
    return failure


def start_error(name: str, spec: SandboxSpec, error: APIError) -> RunFailure:
    """Give the failure for a container that the engine could not start."""
    said = str(error.explanation)
    low = said.lower()
    if "could not select device driver" in low or "nvidia-container" in low:
        message = (
            "resources.gpu: the engine of this node has no driver for GPUs: install one, e.g. "
            f"nvidia-container-toolkit, or leave the field out ({said})"
        )
        return SpecInvalidError(message, field="resources.gpu")
    if "unable to retrieve oci runtime error" in low or "fork/exec" in low:
        return RuntimeUnavailableError(f"the OCI runtime of {name} cannot be started on this node: {said}")
    if not _is_full(said) and any(text in low for text in _IMAGE_FAULTS):
        return BadImageError(f"the image of {name} cannot be started: {said}")
    if spec.volumes and "mount" in low and not _is_full(said):
        return SpecInvalidError(f"volumes: {name} cannot have them: {said}", field="volumes")
    return daemon_error(f"container {name} could not be started", error)


_IMAGE_FAULTS = ("exec format error", "no such file or directory", "not a directory", "unable to find user")
"""Words of the engine that blame the image's content."""


def pull_error(name: str, said: str) -> RunFailure:
    """Give the failure for an image that the engine could not fetch; it passes on a registry's words only."""
    words = " ".join(said.split())[:_MAX_WORDS]
    low = words.lower()
    if "toomanyrequests" in low or "too many requests" in low:
        message = f"image {name!r} cannot be pulled now, its registry was asked too often: {words}"
        failure: RunFailure = RegistryRateLimitedError(message)
    elif _is_full(low):
        failure = NodeDiskFullError(f"image {name!r} has no room: the disk of the container engine is full")
    elif any(
        text in low for text in ("unauthorized", "authentication required", "no basic auth", "403 forbidden")
    ):
        message = f"registry auth failed for image {name!r}: its registry wants credentials, or refuses these: {words}"
        failure = RegistryAuthError(message)
    elif "denied" in low:
        failure = RegistryAuthError(f"image {name!r} is not there, or not for this engine's user: {words}")
    elif "x509" in low or "http response to https" in low or "tls:" in low:
        failure = RegistryTlsError(
            f"image {name!r} cannot be pulled: its registry cannot be talked to safely: {words}"
        )
    elif "manifest unknown" in low or "not found" in low or "name unknown" in low:
        failure = ImageNotFoundError(f"there is no image {name!r}: {words}")
    else:
        failure = RegistryUnreachableError(f"image {name!r} cannot be pulled now: {words}")
    if failure.retryable:
        failure.retry_after_seconds = _seconds_in(words)
    return failure


def _is_full(words: str) -> bool:
    low = words.lower()
    return "no space left on device" in low or "disk quota exceeded" in low


def _seconds_in(words: str) -> float | None:
    found = _SAID_IN_WORDS.search(words)
    if found is None:
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in _DURATION.findall(found[1]))
