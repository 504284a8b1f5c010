"""The ingress of a node: leads requests to the ports of its sandboxes."""

import asyncio
import hmac
import socket
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from core.errors import NotFoundError, UnavailableError
from core.logging import get_logger
from core.metrics import INGRESS_CONNECT_SECONDS, INGRESS_CONNECTIONS, INGRESS_RELAYED
from ingress.connection import Connection
from ingress.errors import IngressError, NotServedError, RouteError
from ingress.limits import Limits
from ingress.relaying import Relaying
from ingress.routing import Route, find_route
from ingress.sandboxes import Sandboxes
from models.live_sandboxes import WireState
from runtimes.base import EXECD_PORT
from services.sandbox_directory import SandboxDirectory, SandboxEndedError, SandboxTarget
from traffic.access import AccessNotes
from traffic.backends import Backend
from traffic.bodies import BodyReader
from traffic.errors import BackendError, MessageError
from traffic.headers import SECURE_ACCESS, Forwarded, upgrade_of
from traffic.heads import RequestHead, keeps_alive, values_of
from traffic.messages import SAFE_TO_REPEAT, outgoing_head
from traffic.streams import Stream

__all__ = ["EGRESS_PORT", "IngressServer"]

log = get_logger(__name__)

EGRESS_PORT: Final = 18080
"""Where clients look for the control of a sandbox's outgoing traffic; fixed by the wire protocol."""

_HEALTH_TARGET: Final = b"/status.ok"
_EXECD_DROPPED: Final = frozenset([b"authorization", b"cookie"])
_BACKLOG: Final = 1024

_READY_AT_ONCE: Final = 16
"""Connections made before anybody asks for them; each has a thread while it is made."""


class IngressServer:
    """Accepts connections on one listening socket."""

    def __init__(
        self,
        directory: SandboxDirectory,
        sandboxes: Sandboxes,
        *,
        notes: AccessNotes,
        limits: Limits | None = None,
    ) -> None:
        """notes: told of every request that may pass."""
        self._directory = directory
        self._sandboxes = sandboxes
        self._notes = notes
        self._limits = limits or Limits()
        self._connections: dict[asyncio.Task[None], Connection] = {}
        self._under_way: Counter[UUID] = Counter()
        self._getting_ready: dict[UUID, asyncio.Task[None]] = {}
        self._server: asyncio.Server | None = None

    async def start(self, listener: socket.socket) -> None:
        """Serve on a bound socket, which is owned from now on."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _ServedStream(self._accept), sock=listener, backlog=_BACKLOG
        )

    async def stop(self, *, grace_seconds: float) -> None:
        """Accept no more, drop idle connections, let running exchanges end within the grace, then drop them."""
        if self._server is not None:
            self._server.close()
        for task, connection in self._connections.items():
            if not connection.is_busy:
                task.cancel()
        if self._connections:
            await asyncio.wait(list(self._connections), timeout=grace_seconds)
        for task in self._connections:
            task.cancel()
        if self._connections:
            await asyncio.wait(list(self._connections))
        for task in self._getting_ready.values():
            task.cancel()
        self._sandboxes.close()

    def get_ready(self, sandbox_id: UUID, node_id: UUID) -> None:
        """Connect to execd of a sandbox that has just begun to run, if it is of this node: a client comes soon.

        Best effort, and for a few at a time: who comes and finds no connection makes one.
        """
        is_ours = node_id == self._sandboxes.node_id
        if not is_ours or sandbox_id in self._getting_ready or len(self._getting_ready) >= _READY_AT_ONCE:
            return
        task = asyncio.get_running_loop().create_task(self._get_ready(sandbox_id))
        self._getting_ready[sandbox_id] = task
        task.add_done_callback(lambda _: self._getting_ready.pop(sandbox_id, None))

    async def _get_ready(self, sandbox_id: UUID) -> None:
        try:
            target = await self._directory.resolve(sandbox_id)
            _check_state(target)
            self._sandboxes.check(target)
            self._sandboxes.give_back(await self._sandboxes.connect(target, EXECD_PORT, is_new=True))
        except (IngressError, NotFoundError, UnavailableError) as error:
            log.debug("ingress_not_ready", sandbox_id=str(sandbox_id), error=error.message)
        except Exception:
            # Nobody waits for this task's result: without a word here, its failure would be lost.
            log.exception("ingress_not_ready", sandbox_id=str(sandbox_id))

    async def handle(self, connection: Connection, request: RequestHead, body: BodyReader) -> bool:
        """Answer one request; see `connection.Handler`."""
        is_head = request.method == b"HEAD"
        try:
            try:
                route = find_route(request)
            except RouteError as error:
                if error.status != 404 or not _is_health(request):
                    raise
                goes_on = body.is_complete and keeps_alive(request)
                await connection.reply(200, b"OK", is_head=is_head, goes_on=goes_on)
                return goes_on
            return await self._lead(connection, request, body, route)
        except IngressError as error:
            goes_on = body.is_complete and keeps_alive(request)
            await connection.reply_error(error, goes_on=goes_on, is_head=is_head)
            return goes_on

    async def _lead(
        self, connection: Connection, request: RequestHead, body: BodyReader, route: Route
    ) -> bool:
        target = await self._find(request, route)
        is_known = self._check_access(request, target, route)
        _check_state(target)
        self._sandboxes.check(target)
        if route.port == EGRESS_PORT:
            raise NotServedError(
                "EGRESS::API_NOT_SUPPORTED", "network policies of sandboxes are not supported in this release"
            )
        if self._under_way[target.id] >= self._limits.per_sandbox:
            raise IngressError(503, "too many requests to this sandbox are under way", retry_after_seconds=1)
        self._notes.note(target.id, request.headers)
        self._under_way[target.id] += 1
        try:
            return await self._relay(connection, request, body, route, target, is_known=is_known)
        finally:
            self._under_way[target.id] -= 1
            if not self._under_way[target.id]:
                del self._under_way[target.id]

    async def _find(self, request: RequestHead, route: Route) -> SandboxTarget:
        try:
            return await self._directory.resolve(route.sandbox_id)
        except SandboxEndedError as error:
            if _has_token(request, route, error.access_token):
                raise IngressError(404, error.told) from error
            raise RouteError(f"there is no sandbox {route.sandbox_id}", status=404) from error
        except NotFoundError as error:
            raise RouteError(f"there is no sandbox {route.sandbox_id}", status=404) from error
        except UnavailableError as error:
            raise IngressError(503, error.message, retry_after_seconds=1) from error

    def _check_access(self, request: RequestHead, target: SandboxTarget, route: Route) -> bool:
        """Say whether the request has the sandbox's access token. Raises IngressError where it must, and has not."""
        has_token = _has_token(request, route, target.access_token)
        if not has_token and (route.port == EXECD_PORT or target.is_secure):
            said = "wrong" if _shown_tokens(request, route) else "missing"
            raise IngressError(
                401, f"the header OpenSandbox-Secure-Access is {said}: it comes with the endpoint"
            )
        return has_token

    async def _relay(
        self,
        connection: Connection,
        request: RequestHead,
        body: BodyReader,
        route: Route,
        target: SandboxTarget,
        *,
        is_known: bool,
    ) -> bool:
        is_execd = route.port == EXECD_PORT
        forwarded = Forwarded.told(request.headers) if is_known else None
        added = (forwarded or _forwarded(connection.stream, request, route)).headers()
        if is_execd:
            token = await self._sandboxes.execd_token(target)
            added += [] if token is None else [(b"X-EXECD-ACCESS-TOKEN", token.encode())]
        upgrade = upgrade_of(request.headers) if body.framing == 0 else None
        head = outgoing_head(
            request,
            route.target,
            added=added,
            dropped=_EXECD_DROPPED if is_execd else (),
            upgrade=upgrade,
        )
        can_repeat = request.method in SAFE_TO_REPEAT and body.framing == 0
        job = _Job(connection, request, body, target, route.port, head, upgrade is not None, can_repeat)
        # Of a program we do not know nobody knows how long it keeps a connection; of execd we do.
        is_new = job.upgrades or not (is_execd or can_repeat)
        try:
            return await self._relay_once(job, is_new=is_new)
        except _StaleError:
            return await self._relay_once(job, is_new=True)

    async def _relay_once(self, job: "_Job", *, is_new: bool) -> bool:
        backend = await self._connect(job.target, job.port, is_new=is_new)
        relaying = Relaying(
            job.connection.stream,
            job.request,
            job.body,
            backend,
            upgrades=job.upgrades,
            body_silence_seconds=self._limits.body_silence_seconds,
        )
        try:
            goes_on = await relaying.run(job.head)
        except (BackendError, MessageError) as error:
            backend.stream.abort()
            if job.connection.stream.is_lost:
                raise ConnectionResetError("the client has gone") from error
            self._directory.forget(job.target.id)
            if not relaying.is_started:
                raise _refusal(job, backend, error) from error
            if not relaying.is_framed:
                job.connection.stream.reset()  # else nobody could tell that it is not the end
            return False
        except BaseException:
            backend.stream.abort()
            raise
        finally:
            if relaying.status:
                INGRESS_RELAYED.labels(_status_class(relaying.status)).inc()
        if relaying.is_backend_reusable:
            self._sandboxes.give_back(backend)
        else:
            backend.stream.close()
        return goes_on

    async def _connect(self, target: SandboxTarget, port: int, *, is_new: bool) -> Backend:
        began = time.monotonic()
        coming = self._getting_ready.get(target.id)
        if coming is not None and port == EXECD_PORT and not is_new:
            await asyncio.wait([coming])
        try:
            backend = await self._sandboxes.connect(target, port, is_new=is_new)
        except IngressError:
            # It may have ended, or be started anew: what is remembered of it counts no more.
            self._sandboxes.forget(target)
            self._directory.forget(target.id)
            raise
        if not backend.is_reused:
            INGRESS_CONNECT_SECONDS.observe(time.monotonic() - began)
        return backend

    def _accept(self, stream: Stream) -> None:
        connection = Connection(stream, self.handle, self._limits)
        task = asyncio.get_running_loop().create_task(self._run(connection))
        self._connections[task] = connection
        INGRESS_CONNECTIONS.set(len(self._connections))
        task.add_done_callback(self._end)

    async def _run(self, connection: Connection) -> None:
        try:
            if len(self._connections) > self._limits.connections:
                await connection.refuse(IngressError(503, "too many connections", retry_after_seconds=1))
            else:
                await connection.run()
        except ConnectionError:
            log.debug("ingress_client_gone")
        except asyncio.CancelledError:
            log.debug("ingress_connection_dropped")
        except Exception:
            log.exception("ingress_request_failed")
        finally:
            _drop(connection.stream)

    def _end(self, task: "asyncio.Task[None]") -> None:
        self._connections.pop(task, None)
        INGRESS_CONNECTIONS.set(len(self._connections))


class _StaleError(Exception):
    """A connection that was used before turned out closed; the same request may go over a new one."""


@dataclass(frozen=True, slots=True)
class _Job:
    """A request that may pass. head: as the program gets it. can_repeat: it may be sent twice."""

    connection: Connection
    request: RequestHead
    body: BodyReader
    target: SandboxTarget
    port: int
    head: bytes
    upgrades: bool
    can_repeat: bool


class _ServedStream(Stream):
    """A stream that is handed on as soon as it is connected."""

    def __init__(self, on_connection: Callable[[Stream], None]) -> None:
        super().__init__()
        self._on_connection = on_connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        super().connection_made(transport)
        self._on_connection(self)


def _refusal(job: _Job, backend: Backend, error: BackendError | MessageError) -> Exception:
    """Say what becomes of a request that was not answered."""
    if isinstance(error, MessageError):
        return IngressError(error.status, error.message)
    if backend.is_reused and job.can_repeat:
        return _StaleError()
    said = f"port {job.port} of the sandbox: {error.message}"
    return IngressError(502, said, code="BACKEND_RESPONSE_FAILED")


def _status_class(status: int) -> str:
    """Give 2xx and the like: a program in a sandbox may answer any number, and each would be a series."""
    return "101" if status == 101 else f"{status // 100}xx"


def _is_health(request: RequestHead) -> bool:
    return request.target == _HEALTH_TARGET and request.method in (b"GET", b"HEAD")


def _has_token(request: RequestHead, route: Route, access_token: str) -> bool:
    shown = _shown_tokens(request, route)
    return len(shown) == 1 and hmac.compare_digest(shown[0], access_token.encode())


def _shown_tokens(request: RequestHead, route: Route) -> list[bytes]:
    """Give what the header shows, else the path."""
    shown = values_of(request.headers, SECURE_ACCESS)
    return [route.token] if not shown and route.token is not None else shown


def _check_state(target: SandboxTarget) -> None:
    """Raise IngressError for a sandbox that does not run."""
    match target.state:
        case WireState.RUNNING:
            return
        case WireState.PAUSED | WireState.PAUSING:
            raise IngressError(
                503, "the sandbox is paused: resume it first", code="DOCKER::SANDBOX_NOT_RUNNING"
            )
        case WireState.PENDING | WireState.RESUMING:
            raise IngressError(
                503, f"the sandbox is not running yet, it is {target.state}", retry_after_seconds=1
            )
        case _:
            raise IngressError(404, f"the sandbox has ended, it is {target.state}")


def _forwarded(stream: Stream, request: RequestHead, route: Route) -> Forwarded:
    peer = stream.info("peername")
    client = peer[0].encode() if isinstance(peer, tuple) else b"unknown"
    host = values_of(request.headers, b"host")
    return Forwarded(client, b"http", host[0] if host else b"", route.prefix)


def _drop(stream: Stream) -> None:
    """Close; a client that does not take what is still buffered loses it after a while."""
    stream.close()
    if stream.unsent_bytes:
        asyncio.get_running_loop().call_later(60.0, stream.abort)
