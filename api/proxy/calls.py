"""What the server proxy is asked, and by whom."""

import hmac
import re
from dataclasses import dataclass
from typing import Final

import anyio.to_thread
from starlette.requests import HTTPConnection
from starlette.types import Scope

from api.services import ApiServices, authenticate_call
from core.errors import ForbiddenError, UnavailableError
from core.ids import read_id
from runtimes.base import EXECD_PORT
from services.sandbox_directory import SandboxDirectory, SandboxEndedError, SandboxTarget
from services.sandbox_errors import SandboxMissingError, SandboxOverError, WireInvalidError
from services.tenants import Operator, Principal
from traffic.headers import ACCESS_RENEW, EXECD_TOKEN, HOST_ROUTES, SECURE_ACCESS, Forwarded
from traffic.heads import Headers, RequestHead, values_of

__all__ = ["PROXY_ROUTE", "Call", "ProxyError", "admit", "find_call", "ingress_headers", "request_head"]

PROXY_ROUTE: Final = "/v1/sandboxes/{sandbox_id}/proxy/{port}"
"""What metrics and log call all of it."""

_PATH: Final = re.compile(rb"((?:/v1)?/sandboxes/([^/]+)/proxy/([^/]+))(/.*)?", re.DOTALL)
_PORT: Final = re.compile(r"[1-9][0-9]{0,4}")
_KEY: Final = b"open-sandbox-api-key"
_BEARER: Final = re.compile(rb"[Bb]earer +(\S+)")


class ProxyError(Exception):
    """An answer of the proxy itself. status: of HTTP; close_code: of a WebSocket."""

    def __init__(
        self, status: int, code: str, message: str, *, close_code: int = 1011, is_retryable: bool = False
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.close_code = close_code
        self.is_retryable = is_retryable


@dataclass(frozen=True, slots=True)
class Call:
    """A request for a port. prefix: of the path as the client wrote it. target: what follows, with the query."""

    sandbox: str
    port_text: str
    prefix: bytes
    target: bytes
    headers: Headers

    @property
    def port(self) -> int:
        """The port. Raises WireInvalidError."""
        if not _PORT.fullmatch(self.port_text) or int(self.port_text) > 65535:
            raise WireInvalidError(
                "DOCKER::INVALID_PORT", "must be a whole number from 1 to 65535", field="port"
            )
        return int(self.port_text)


def find_call(scope: Scope) -> Call | None:
    """Read the path as it was written; None if it is not for the proxy."""
    root = scope.get("root_path", "").encode()
    raw = scope.get("raw_path") or scope["path"].encode()
    match = _PATH.fullmatch(raw.removeprefix(root))
    if match is None:
        return None
    query = scope["query_string"]
    target = (match[4] or b"/") + (b"?" + query if query else b"")
    names = match[2].decode("latin-1"), match[3].decode("latin-1")
    return Call(*names, root + match[1], target, list(scope["headers"]))


async def admit(
    scope: Scope, call: Call, services: ApiServices, directory: SandboxDirectory
) -> SandboxTarget:
    """Find the sandbox of a caller who may reach it. Raises SandmillError, ProxyError."""
    tenant_id = (await _authenticate(scope, call, services)).tenant_id
    scope.setdefault("state", {})["tenant_id"] = tenant_id
    sandbox_id = read_id(call.sandbox)
    if sandbox_id is None:
        raise SandboxMissingError(call.sandbox[:100])
    try:
        target = await directory.resolve(sandbox_id)
    except SandboxEndedError as error:
        if error.tenant_id != tenant_id:
            raise SandboxMissingError(call.sandbox) from error
        raise SandboxOverError(call.sandbox, error.told) from error
    if target.tenant_id != tenant_id:
        raise SandboxMissingError(call.sandbox)
    shown = values_of(call.headers, SECURE_ACCESS)
    is_shown = len(shown) == 1 and hmac.compare_digest(shown[0], target.access_token.encode())
    if target.is_secure and not is_shown:
        raise ProxyError(
            401,
            "MISSING_OR_INVALID_SECURE_ACCESS",
            "the sandbox is secure: send the header OpenSandbox-Secure-Access that came with its endpoint",
            close_code=1008,
        )
    if target.ingress_url is None:
        raise UnavailableError(
            "the sandbox is not placed yet, or no ingress runs on its node: try again soon"
        )
    return target


def ingress_headers(scope: Scope, call: Call, target: SandboxTarget) -> Headers:
    """Say to the ingress what it is to do, and who asked for it."""
    client = scope["client"][0].encode() if scope.get("client") else b"unknown"
    host = values_of(call.headers, b"host")
    proto = {"ws": b"http", "wss": b"https"}.get(scope["scheme"], scope["scheme"].encode())
    forwarded = Forwarded(client, proto, host[0] if host else b"", call.prefix)
    skips = [(b"OpenSandbox-Access-Renew", value) for value in values_of(call.headers, ACCESS_RENEW)]
    return [
        (HOST_ROUTES[0], f"{target.id}-{call.port}".encode()),
        (SECURE_ACCESS, target.access_token.encode()),
        *forwarded.headers(b"Sandmill-Forwarded-"),
        *skips[:1],
    ]


def request_head(method: bytes, call: Call) -> RequestHead:
    """Give the request as `traffic` has it."""
    return RequestHead(method, call.target, 11, call.headers)


async def _authenticate(scope: Scope, call: Call, services: ApiServices) -> Principal:
    shown = values_of(call.headers, _KEY)
    if not shown:
        shown = [
            match[1]
            for value in values_of(call.headers, b"authorization")
            if (match := _BEARER.fullmatch(value))
        ]
    if not shown and call.port_text == str(EXECD_PORT):
        # The only way in which the Go client shows the key here. It goes no further: execd gets its own token.
        shown = values_of(call.headers, EXECD_TOKEN)
    key = shown[0].decode("latin-1") if shown else None
    scope["state"]["has_key"] = key is not None
    scope["state"]["api_key"] = key
    holder = None if key is None else services.authenticator.known(key)
    if holder is None:
        connection = HTTPConnection(scope)
        holder = await anyio.to_thread.run_sync(authenticate_call, connection, services, key)
    if isinstance(holder, Operator):
        raise ForbiddenError("this is an operator's key, which acts for no tenant: use a key of the tenant")
    return holder
