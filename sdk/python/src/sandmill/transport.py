"""HTTP below the client: the key, repeats, and answers turned into values or errors."""

import ipaddress
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx

from sandmill.errors import ConnectionLostError, ErrorDetail, ProtocolError, SandmillError, error_class
from sandmill.retry import RetryPolicy, parse_retry_after

__all__ = ["Call", "Transport"]

T = TypeVar("T")

_CONNECT_SECONDS = 5.0
_MAX_ERROR_BYTES = 1 << 20


class Call:
    """What is sent. content: makes the body anew for each try; None: no body. accept: media type."""

    def __init__(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str | int | None] | None = None,
        headers: Mapping[str, str] | None = None,
        content: Callable[[], bytes | Iterator[bytes]] | None = None,
        accept: str = "application/json",
    ) -> None:
        """Keep the parts; params that are None are left out."""
        self.method = method
        self.path = path
        self.params = {name: value for name, value in (params or {}).items() if value is not None}
        self.headers = {"Accept": accept, **(headers or {})}
        self.content = content

    @classmethod
    def with_json(
        cls, method: str, path: str, body: Any, *, headers: Mapping[str, str] | None = None
    ) -> Self:
        """Send a JSON body, the same bytes at each try. Raises ValueError for NaN and infinity, which JSON has not."""
        data = json.dumps(body, allow_nan=False, separators=(",", ":")).encode()
        return cls(
            method,
            path,
            headers={"Content-Type": "application/json", **(headers or {})},
            content=lambda: data,
        )


class Transport:
    """One server and one key. Safe to use from several threads. Close it, or use it as a context manager."""

    def __init__(
        self,
        base_url: str,
        api_key: str,
        *,
        timeout_seconds: float,
        retry: RetryPolicy,
        http: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """base_url: scheme, host and port. http: replaces the network, for tests.

        Raises ValueError for an address that is none.
        """
        url = _check_url(base_url)
        if not api_key or not api_key.isascii() or not api_key.isprintable():
            raise ValueError("the API key is empty or not one line of ASCII")
        self.base_url = str(url)
        self.retry = retry
        self.sleep = sleep
        self._timeout = httpx.Timeout(timeout_seconds, connect=_CONNECT_SECONDS)
        self._http = httpx.Client(
            base_url=url,
            headers={"Authorization": f"Bearer {api_key}", "User-Agent": "sandmill-python"},
            timeout=self._timeout,
            transport=http,
            # A proxy of the environment cannot reach a server on this machine.
            trust_env=not _is_loopback(url.host),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=20),
        )

    def __enter__(self) -> Self:
        """Give itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connections."""
        self.close()

    def close(self) -> None:
        """Close all connections; streams that are read from end with ConnectionLostError."""
        self._http.close()

    def call(self, call: Call) -> httpx.Response:
        """Send it, again where that helps, and give the whole answer. Raises SandmillError."""

        def once() -> httpx.Response:
            with self.stream(call) as response:
                response.read()
                return response

        return self.repeat(once)

    def json(self, call: Call) -> Any:
        """Send it and give the JSON of the answer. Raises SandmillError."""
        response = self.call(call)
        try:
            return response.json()
        except ValueError as error:
            raise ProtocolError(f"{self.base_url} answered {call.method} {call.path} with no JSON") from error

    def repeat(self, once: Callable[[], T]) -> T:
        """Run it, again after the errors that can pass. Raises the last SandmillError."""
        started = time.monotonic()
        tried = 0
        while True:
            try:
                return once()
            except SandmillError as error:
                tried += 1
                pause = self.retry.delay(error, tried=tried, elapsed_seconds=time.monotonic() - started)
                if pause is None:
                    raise
            self.sleep(pause)

    @contextmanager
    def stream(self, call: Call, *, read_timeout_seconds: float | None = None) -> Iterator[httpx.Response]:
        """Send it once and give the answer with its body still to be read.

        read_timeout_seconds: the longest silence; default: the client's timeout. Raises SandmillError, also in the
        caller's block, when the connection breaks while it reads.
        """
        timeout = self._timeout
        if read_timeout_seconds is not None:
            timeout = httpx.Timeout(read_timeout_seconds, connect=_CONNECT_SECONDS)
        try:
            with self._http.stream(
                call.method,
                call.path,
                params=call.params,
                headers=call.headers,
                content=None if call.content is None else call.content(),
                timeout=timeout,
            ) as response:
                if response.status_code >= 300:
                    raise _to_error(call, response)
                yield response
        except httpx.HTTPError as error:
            raise ConnectionLostError(_describe(error, self.base_url)) from error
        except RuntimeError as error:
            # What httpx raises when another thread has closed the client.
            if not self._http.is_closed:
                raise
            raise ConnectionLostError(f"the connection to {self.base_url} was closed on this side") from error


def _check_url(text: str) -> httpx.URL:
    try:
        url = httpx.URL(text.rstrip("/"))
    except httpx.InvalidURL as error:
        raise ValueError(f"{text!r} is not an address: {error}") from error
    if url.scheme not in {"http", "https"} or not url.host:
        raise ValueError(f"{text!r} is not an address as in http://127.0.0.1:8080")
    return url


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _describe(error: httpx.HTTPError, base_url: str) -> str:
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        return f"cannot connect to {base_url}: {error}"
    return f"the connection to {base_url} broke: {str(error) or type(error).__name__}"


def _to_error(call: Call, response: httpx.Response) -> SandmillError:
    """Read an error answer: ours by its code, one of a proxy or a stranger by its status."""
    body = _read_error_body(response)
    code = _text(body, "code") or ""
    message = (
        _text(body, "message") or f"{call.method} {call.path} was answered with status {response.status_code}"
    )
    error = error_class(code, response.status_code)(
        message,
        code=code or None,
        status=response.status_code,
        field=_text(body, "field"),
        request_id=_text(body, "request_id") or response.headers.get("x-request-id"),
        details=[
            ErrorDetail(str(item.get("field", "")), str(item.get("message", "")))
            for item in body.get("details") or []
            if isinstance(item, dict)
        ],
    )
    error.retry_after_seconds = parse_retry_after(response.headers.get("retry-after"))
    return error


def _read_error_body(response: httpx.Response) -> dict[str, Any]:
    data = b""
    for piece in response.iter_bytes():
        data += piece
        if len(data) > _MAX_ERROR_BYTES:
            return {}
    try:
        value = json.loads(data) if data else {}
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _text(body: Mapping[str, Any], name: str) -> str | None:
    value = body.get(name)
    return value if isinstance(value, str) else None
