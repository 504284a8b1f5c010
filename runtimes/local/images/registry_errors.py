"""What goes wrong with a registry, put so that a person knows what to do."""

import json
import re
import ssl
from pathlib import Path
from typing import Any

import httpx

from core.errors import (
    ImageNotFoundError,
    RegistryAuthError,
    RegistryError,
    RegistryRateLimitedError,
    RegistryTlsError,
    RegistryUnreachableError,
    SandmillError,
)
from runtimes.local.images.credentials import Credentials
from runtimes.local.images.names import ImageName

__all__ = ["CERTIFICATES", "RegistryErrors", "speaks_no_tls"]

CERTIFICATES = Path("/etc/docker/certs.d")
"""Where Docker looks for the certificates of private registries: <host:port>/*.crt."""


class RegistryErrors:
    """Makes the errors about one image at one registry. They have the registry's words, never a secret of ours."""

    def __init__(self, name: ImageName, credentials: Credentials | None) -> None:
        """credentials: of whom they name the user."""
        self._name = name
        self._who = f"as {credentials.username!r}" if credentials else "without credentials"

    def of_status(self, status: int, body: bytes) -> SandmillError:
        """Give the error for an answer that is no success."""
        registry, words = self._name.registry, _words(body)
        if status == 404:
            return ImageNotFoundError(f"registry {registry} has no image {self._name.familiar}{words}")
        if status in (401, 403):
            return self.of_auth(body)
        if status == 429:
            message = (
                f"registry {registry} was asked too often{words}: log in for a higher limit, or try later"
            )
            return RegistryRateLimitedError(message)
        if status >= 500:
            return self.unreachable(f"it answers with status {status}{words}")
        return RegistryError(f"registry {registry} answers with status {status}{words}")

    def of_auth(self, body: bytes) -> RegistryAuthError:
        """Give the error for credentials that are refused, or missing."""
        return RegistryAuthError(
            f"registry auth failed for {self._name.registry}, {self._who}{_words(body)}: "
            f"the image {self._name.familiar} is not there, or not for this user"
        )

    def of_connection(self, error: httpx.TransportError) -> SandmillError:
        """Give the error for a connection that could not be made, or broke off."""
        registry = self._name.registry
        if isinstance(error, httpx.ConnectError) and (cause := _tls_cause(error)):
            advice = (
                "it speaks no TLS, and plain HTTP is for registries on this machine only"
                if speaks_no_tls(error)
                else f"install its certificate in the system, or in {CERTIFICATES}/{registry}/ca.crt"
            )
            return RegistryTlsError(f"no safe connection to registry {registry}: {cause}; {advice}")
        if isinstance(error, httpx.TimeoutException):
            return self.unreachable("it stands still")
        return self.unreachable(str(error) or type(error).__name__)

    def unreachable(self, reason: str) -> RegistryUnreachableError:
        """Give the error for a registry that does not do its work at present."""
        return RegistryUnreachableError(f"registry {self._name.registry} cannot be reached: {reason}")

    def other(self, what: str) -> RegistryError:
        """Give the error for an answer that no registry should give."""
        return RegistryError(f"registry {self._name.registry} {what}")


def speaks_no_tls(error: httpx.ConnectError) -> bool:
    """Say whether the other side answered in plain HTTP."""
    cause = _tls_cause(error)
    return cause is not None and cause.reason in (
        "WRONG_VERSION_NUMBER",
        "HTTP_REQUEST",
        "RECORD_LAYER_FAILURE",
    )


def _words(body: bytes) -> str:
    """Give what a registry says about an error, in a form safe to show: ` (CODE: message)`, or nothing."""
    try:
        first: Any = json.loads(body)["errors"][0]
        text = f"{first.get('code') or ''}: {first.get('message') or ''}"
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        return ""
    return f" ({' '.join(re.sub(r'[^ -~]+', ' ', text).split())[:300]})"


def _tls_cause(error: BaseException | None) -> ssl.SSLError | None:
    """Find the error of TLS below those of the libraries."""
    while error is not None:
        if isinstance(error, ssl.SSLError):
            return error
        error = error.__cause__ or error.__context__
    return None
