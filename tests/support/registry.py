"""A registry that serves an OCI layout from disk, and can be told to fail in the ways real ones do."""

import json
import re
import ssl
import threading
from base64 import b64decode
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

__all__ = ["FakeRegistry", "serve_registry"]

Fault = Callable[["Handler"], bool]


@dataclass
class FakeRegistry:
    """Its state. faults: the first that handles a request wins; each gives True if it did.

    auth: none, basic, or bearer (with a token service of its own). seen: requests by `METHOD path`.
    """

    layout: Path
    auth: str = "none"
    user: str = "me"
    password: str = "secret"
    identity_token: str = "refresh-me"
    faults: list[Fault] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)
    ranges: list[str] = field(default_factory=list)
    tokens: int = 0
    address: str = ""
    scheme: str = "http"

    def blob_path(self, digest: str) -> Path:
        return self.layout / "blobs" / "sha256" / digest.removeprefix("sha256:")

    def manifest_document(self, reference: str) -> bytes | None:
        """`latest` is the layout's index; digests are found by what they are of."""
        if reference == "latest":
            return (self.layout / "index.json").read_bytes()
        path = self.blob_path(reference)
        return path.read_bytes() if reference.startswith("sha256:") and path.exists() else None


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    registry: FakeRegistry

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Say nothing."""

    def do_GET(self) -> None:
        registry = self.registry
        registry.seen[f"GET {self.path.partition('?')[0]}"] += 1
        if any(fault(self) for fault in registry.faults):
            return
        if self.path.startswith("/token"):
            self._give_token(self.headers.get("Authorization", ""), parse_qs(urlsplit(self.path).query))
        elif not self._is_allowed():
            self._challenge()
        elif found := re.fullmatch(r"/v2/team/app/(manifests|blobs)/([a-z0-9:]+)", self.path):
            self._serve(found[1], found[2])
        else:
            self.refuse(404, "NAME_UNKNOWN", "repository name not known to registry")

    def do_POST(self) -> None:
        fields = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        is_known = fields.get("refresh_token") == [self.registry.identity_token]
        if is_known and fields.get("grant_type") == ["refresh_token"]:
            self._grant(fields)
        else:
            self.refuse(401, "UNAUTHORIZED", "bad refresh token")

    def refuse(self, status: int, code: str = "X", message: str = "no", **headers: str) -> bool:
        body = json.dumps({"errors": [{"code": code, "message": message}]}).encode()
        self.answer(status, body, **headers)
        return True

    def answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _is_allowed(self) -> bool:
        given = self.headers.get("Authorization", "")
        match self.registry.auth:
            case "basic":
                return self._is_user(given)
            case "bearer":
                return given == f"Bearer token-{self.registry.tokens}"
        return True

    def _is_user(self, header: str) -> bool:
        if not header.startswith("Basic "):
            return False
        return b64decode(header[6:]).decode() == f"{self.registry.user}:{self.registry.password}"

    def _challenge(self) -> None:
        realm = f"{self.registry.scheme}://{self.registry.address}/token"
        header = (
            'Basic realm="the realm"'
            if self.registry.auth == "basic"
            else f'Bearer realm="{realm}",service="the, service",scope="repository:team/app:pull"'
        )
        self.refuse(401, "UNAUTHORIZED", "authentication required", WWW_Authenticate=header)

    def _give_token(self, header: str, fields: dict[str, list[str]]) -> None:
        if self._is_user(header):
            self._grant(fields)
        else:
            self.refuse(401, "UNAUTHORIZED", "wrong password")

    def _grant(self, fields: dict[str, list[str]]) -> None:
        assert fields["service"] == ["the, service"]
        assert fields["scope"] == ["repository:team/app:pull"]
        self.registry.tokens += 1
        self.answer(200, json.dumps({"token": f"token-{self.registry.tokens}"}).encode())

    def _serve(self, kind: str, reference: str) -> None:
        if kind == "manifests":
            document = self.registry.manifest_document(reference)
            if document is None:
                self.refuse(404, "MANIFEST_UNKNOWN", "manifest unknown")
            else:
                self.answer(200, document)
            return
        path = self.registry.blob_path(reference)
        if not path.exists():
            self.refuse(404, "BLOB_UNKNOWN", "blob unknown")
            return
        data, asked = path.read_bytes(), self.headers.get("Range")
        if asked and (begin := re.fullmatch(r"bytes=(\d+)-", asked)):
            self.registry.ranges.append(asked)
            at = int(begin[1])
            self.answer(206, data[at:], Content_Range=f"bytes {at}-{len(data) - 1}/{len(data)}")
        else:
            self.answer(200, data)


@contextmanager
def serve_registry(
    layout: Path, *, tls: ssl.SSLContext | None = None, **state: Any
) -> Iterator[FakeRegistry]:
    """Serve on a free port of 127.0.0.1 as long as the block runs."""
    registry = FakeRegistry(layout, **state)
    handler = type("OneRegistry", (Handler,), {"registry": registry})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # type: ignore[method-assign] -- clients that leave are part of the tests
    if tls:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
        registry.scheme = "https"
    registry.address = f"127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
