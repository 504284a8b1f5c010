"""Requests to one registry: logging in, redirects, several attempts, one deadline."""

import ipaddress
import json
import random
import ssl
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import httpx

from core.errors import BadImageError, RegistryError, RegistryTlsError, RunFailure, SpecInvalidError
from runtimes.local.images.credentials import Credentials
from runtimes.local.images.names import ImageName
from runtimes.local.images.registry_auth import Challenge, authorize
from runtimes.local.images.registry_errors import CERTIFICATES, RegistryErrors, speaks_no_tls
from runtimes.retry_after import parse_retry_after

__all__ = ["RegistryConnection"]

_CONNECT_TIMEOUT_SECONDS = 10.0
_READ_TIMEOUT_SECONDS = 30.0
"""A transfer that stands still for so long is broken off and taken up again."""

_PAUSE_SECONDS = 0.2
"""After the first failure, half of it or more; doubled after each further one."""

_ATTEMPTS = 5
_LONGEST_PAUSE_SECONDS = 10.0
_MAX_REDIRECTS = 5
_MAX_ANSWER_BYTES = 1 << 20
"""Of a token or the text of an error."""

_HOSTS = {"docker.io": "registry-1.docker.io"}


class RegistryConnection:
    """Sends requests about one image. Not for several threads.

    TLS always, with certificates of the system and of Docker's folder; plain HTTP for this machine's own registries.
    """

    def __init__(
        self,
        name: ImageName,
        credentials: Credentials | None,
        *,
        deadline: float,
    ) -> None:
        """Connect to nothing yet. deadline: of `time.monotonic`."""
        self.errors = RegistryErrors(name, credentials)
        self._name = name
        self._credentials = credentials
        self._deadline = deadline
        try:
            self._base = httpx.URL(f"https://{_HOSTS.get(name.registry, name.registry)}")
        except httpx.InvalidURL as error:
            raise SpecInvalidError(f"{name.registry} is no address of a registry", field="image") from error
        self._is_local = _is_loopback(self._base.host)
        self._authorization: str | None = None
        self._http = httpx.Client(
            timeout=httpx.Timeout(_CONNECT_TIMEOUT_SECONDS, read=_READ_TIMEOUT_SECONDS),
            verify=_tls_context(name.registry),
            # A proxy has no way to this machine's own registry.
            trust_env=not self._is_local,
            headers={"User-Agent": "sandmill", "Accept-Encoding": "identity"},
            event_hooks={"request": [self._keep_deadline]},
        )

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    @contextmanager
    def get(self, path: str, headers: dict[str, str]) -> Iterator[httpx.Response]:
        """Ask for something below the image's repository. Gives the answer, unread, of status 200 or 206.

        Logs in once if asked to, and waits where that may help. Raises ImageNotFoundError and the kinds of
        RegistryError; httpx.TransportError is for `retry`.
        """
        failures, has_logged_in = 0, False
        while True:
            self.check_deadline()
            with self._send(path, headers) as answer:
                if answer.status_code in (200, 206):
                    yield answer
                    return
                body = self.read(answer, _MAX_ANSWER_BYTES)
            if answer.status_code == 401 and not has_logged_in:
                has_logged_in = True
                self._log_in(Challenge.parse(answer.headers.get("WWW-Authenticate", "")))
                continue
            failures += 1
            error = self.errors.of_status(answer.status_code, body)
            self.retry(failures, error, seconds=_asked_wait(answer))

    def read(self, answer: httpx.Response, max_bytes: int) -> bytes:
        """Read an answer whole. Raises BadImageError if it is larger."""
        data = bytearray()
        for piece in self.pieces(answer):
            data += piece
            if len(data) > max_bytes:
                raise BadImageError(f"a document of the registry is larger than {max_bytes} bytes")
        return bytes(data)

    def pieces(self, answer: httpx.Response) -> Iterator[bytes]:
        """Read an answer as it comes in: the deadline holds for those that trickle, too."""
        for piece in answer.iter_raw():
            self.check_deadline()
            yield piece

    def retry(self, failures: int, error: Exception, *, seconds: float | None = None) -> None:
        """Wait before another attempt. Raises the error instead after the last one, or if it will not go away.

        failures: so far, in a row. error: ours, or one of the connection. seconds: how long the registry says to wait.
        """
        problem = self.errors.of_connection(error) if isinstance(error, httpx.TransportError) else error
        may_pass = isinstance(problem, RegistryError) and problem.retryable
        if isinstance(problem, RunFailure):
            problem.retry_after_seconds = seconds
        if not may_pass or failures >= _ATTEMPTS or (seconds or 0) > _LONGEST_PAUSE_SECONDS:
            raise problem from (error if problem is not error else None)
        # Jitter: many that were broken off together must not come back together.
        backoff = min(_LONGEST_PAUSE_SECONDS, _PAUSE_SECONDS * 2 ** (failures - 1)) * random.uniform(0.5, 1)  # noqa: S311
        time.sleep(backoff if seconds is None else seconds)
        self.check_deadline()

    def check_deadline(self) -> None:
        """Raise RegistryUnreachableError once the time is over."""
        if time.monotonic() > self._deadline:
            raise self.errors.unreachable("the pull took longer than it may")

    def _keep_deadline(self, request: httpx.Request) -> None:
        """Let nothing stand still for longer than the pull may still take."""
        remaining = max(0.01, self._deadline - time.monotonic())
        timeouts = request.extensions["timeout"]
        request.extensions["timeout"] = {name: min(seconds, remaining) for name, seconds in timeouts.items()}

    @contextmanager
    def _send(self, path: str, headers: dict[str, str]) -> Iterator[httpx.Response]:
        """Send one request, following redirects to places that may be trusted with it."""
        url = self._base.join(f"/v2/{self._name.repository}/{path}")
        for _ in range(_MAX_REDIRECTS):
            is_ours = _origin(url) == _origin(self._base)
            more = {"Authorization": self._authorization} if is_ours and self._authorization else {}
            request = self._http.build_request("GET", url, headers={**headers, **more})
            try:
                answer = self._http.send(request, stream=True)
            except httpx.ConnectError as error:
                if not is_ours or not self._falls_back_to_plain(error):
                    raise
                url = url.copy_with(scheme="http")
                continue
            with closing(answer):
                if not answer.has_redirect_location:
                    yield answer
                    return
            url = self._trusted(url, answer.headers["Location"])
        raise self.errors.other("redirects in circles")

    def _falls_back_to_plain(self, error: httpx.ConnectError) -> bool:
        """On this machine a registry may do without TLS, which shows at the first connection."""
        if not (self._is_local and self._base.scheme == "https" and speaks_no_tls(error)):
            return False
        self._base = self._base.copy_with(scheme="http")
        return True

    def _trusted(self, base: httpx.URL, location: str) -> httpx.URL:
        """Refuse to be sent to where a registry of strangers must not send us: off TLS, or into this machine."""
        try:
            url = base.join(location)
        except httpx.InvalidURL as error:
            raise self.errors.other("sends us to what is no address") from error
        is_local = _is_loopback(url.host)
        if url.scheme == "https" and (self._is_local or not is_local):
            return url
        if url.scheme == "http" and self._is_local and is_local:
            return url
        raise self.errors.other(f"sends us to {url.scheme}://{url.host}, which is not safe: not followed")

    def _log_in(self, challenge: Challenge) -> None:
        self._authorization = authorize(
            challenge,
            self._credentials,
            registry=self._name.registry,
            fetch=self._fetch_token,
            default_scope=f"repository:{self._name.repository}:pull",
        )

    def _fetch_token(self, request: httpx.Request) -> dict[str, object]:
        self._trusted(request.url, str(request.url))
        failures = 0
        while True:
            try:
                with closing(self._http.send(request, stream=True)) as answer:
                    body = self.read(answer, _MAX_ANSWER_BYTES)
            except httpx.TransportError as error:
                failures += 1
                self.retry(failures, error)
                continue
            if answer.status_code == 200:
                return self._read_token(body)
            if answer.status_code != 429 and answer.status_code < 500:
                raise self.errors.of_auth(body)
            failures += 1
            refusal = self.errors.of_status(answer.status_code, body)
            self.retry(failures, refusal, seconds=_asked_wait(answer))

    def _read_token(self, body: bytes) -> dict[str, object]:
        try:
            value = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise self.errors.other("has a token service that gives no JSON") from error
        return value if isinstance(value, dict) else {}


def _asked_wait(answer: httpx.Response) -> float | None:
    return parse_retry_after(answer.headers.get("Retry-After"), answer.headers.get("Date"))


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _tls_context(registry: str) -> ssl.SSLContext:
    context = ssl.create_default_context()
    for path in sorted((CERTIFICATES / registry).glob("*.crt")):
        try:
            context.load_verify_locations(path)
        except (OSError, ssl.SSLError) as error:
            raise RegistryTlsError(f"{path} is no certificate that can be read: {error}") from error
    return context
