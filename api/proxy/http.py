"""Requests through the server proxy."""

import asyncio
import contextlib
from typing import Final

from starlette.types import Receive, Scope, Send

from api.proxy.backends import Backends
from api.proxy.calls import Call, ProxyError, ingress_headers, request_head
from services.sandbox_directory import SandboxTarget
from traffic.bodies import CHUNKED, UNTIL_CLOSE, BodyReader, BodyWriter, request_framing
from traffic.errors import BackendError, MessageError
from traffic.headers import INGRESS_ERROR
from traffic.heads import Headers, ResponseHead, keeps_alive, values_of
from traffic.messages import SAFE_TO_REPEAT, outgoing_head, read_answer, returned_headers
from traffic.streams import Stream

__all__ = ["HttpRelay", "own_error", "rewritten_location"]

_DROPPED: Final = frozenset([b"authorization", b"cookie", b"expect"])
"""The first two are for us, and asking for a 100 is the server's below us."""

_MAX_ERROR_BYTES: Final = 16 << 10
_PREFIX: Final = "OpenSandbox Ingress: "


class HttpRelay:
    """One request. is_started: an answer has begun. status: its own."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, *, answer_seconds: float) -> None:
        """answer_seconds: from the end of the request to the beginning of the answer."""
        self.is_started = False
        self.status = 0
        self._scope = scope
        self._receive = receive
        self._send = send
        self._answer_seconds = answer_seconds
        self._is_body_over = asyncio.Event()
        self._stream: Stream
        self._is_client_gone = False

    async def run(self, call: Call, target: SandboxTarget, backends: Backends) -> None:
        """Relay. Raises ProxyError as long as is_started is false; what breaks later is cut off."""
        method = self._scope["method"].encode()
        if any(b"websocket" in value.lower() for value in values_of(call.headers, b"upgrade")):
            raise ProxyError(400, "SANDBOX::INVALID_PARAMETER", "this is no proper WebSocket handshake")
        request = request_head(method, call)
        try:
            framing = request_framing(request)
            added = ingress_headers(self._scope, call, target)
            head = outgoing_head(request, call.target, added=added, dropped=_DROPPED)
        except (MessageError, ValueError) as error:
            raise ProxyError(400, "SANDBOX::INVALID_PARAMETER", str(error)) from error
        can_repeat = method in SAFE_TO_REPEAT and framing == 0
        writer = BodyWriter(is_chunked=framing == CHUNKED)
        backend = await backends.get(target.ingress_url or "")
        self._stream = backend.stream
        following = asyncio.get_running_loop().create_task(self._follow_client(head, writer))
        try:
            try:
                answer, body = await self._answer(method)
            except BackendError:
                if not (backend.is_reused and can_repeat) or self._is_client_gone:
                    raise
                backend.stream.abort()
                backend = await backends.get(target.ingress_url or "", is_new=True)
                self._stream = backend.stream
                await backend.stream.write(head)
                answer, body = await self._answer(method)
            await self._send_back(call, answer, body)
        except (BackendError, MessageError, ConnectionError) as error:
            backend.stream.abort()
            if not self.is_started and not self._is_client_gone:
                raise ProxyError(502, "BACKEND_RESPONSE_FAILED", str(error)) from error
            # Without its end the server below cuts the answer off.
        except BaseException:
            backend.stream.abort()
            raise
        else:
            if self._is_body_over.is_set() and body.framing != UNTIL_CLOSE and keeps_alive(answer):
                backends.give_back(backend)
            else:
                backend.stream.close()
        finally:
            following.cancel()
            await asyncio.wait([following])

    async def _follow_client(self, head: bytes, writer: BodyWriter) -> None:
        """Send the request, then wait for the client to leave."""
        stream = self._stream
        held = head
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self._is_client_gone = True
                self._stream.abort()
                return
            if self._is_body_over.is_set():
                continue
            held += writer.frame(message.get("body", b""))
            if not message.get("more_body"):
                held += writer.end([])
            if held:
                with contextlib.suppress(ConnectionError):  # its answer, if it gave one, says why
                    await stream.write(held)
            held = b""
            if not message.get("more_body"):
                self._is_body_over.set()

    async def _answer(self, method: bytes) -> tuple[ResponseHead, BodyReader]:
        reading = asyncio.ensure_future(
            read_answer(self._stream, method=method, upgrades=False, on_interim=_ignore)
        )
        body_over = asyncio.ensure_future(self._is_body_over.wait())
        try:
            await asyncio.wait({reading, body_over}, return_when=asyncio.FIRST_COMPLETED)
            async with asyncio.timeout(self._answer_seconds):
                return await reading
        except TimeoutError as error:
            said = f"no answer within {self._answer_seconds:g} s"
            raise ProxyError(504, "BACKEND_TIMEOUT", said) from error
        finally:
            body_over.cancel()
            reading.cancel()

    async def _send_back(self, call: Call, answer: ResponseHead, body: BodyReader) -> None:
        code = values_of(answer.headers, INGRESS_ERROR.lower())
        if code and answer.status != 501:
            raise await own_error(answer, body, code[0].decode())
        headers = [
            (name.lower(), rewritten_location(value, call.prefix) if name.lower() == b"location" else value)
            for name, value in returned_headers(answer, body.framing, is_chunked=False)
            if name.lower() != b"date"  # the server below says it
        ]
        headers += self._own_headers(headers)
        self.is_started = True
        self.status = answer.status
        await self._send({"type": "http.response.start", "status": answer.status, "headers": headers})
        content = body.at_hand()
        while not body.is_complete:
            if content:
                await self._send({"type": "http.response.body", "body": content, "more_body": True})
            content = await body.read()
        await self._send({"type": "http.response.body", "body": content})

    def _own_headers(self, headers: Headers) -> Headers:
        if values_of(headers, b"x-request-id"):
            return []
        return [(b"x-request-id", self._scope["state"]["request_id"].encode())]


async def own_error(answer: ResponseHead, body: BodyReader, code: str) -> ProxyError:
    """Give in our words what the ingress says by itself. Raises MessageError."""
    said = b""
    while (part := await body.read()) and len(said) < _MAX_ERROR_BYTES:
        said += part
    message = said.decode("utf-8", "replace").strip().removeprefix(_PREFIX)
    return ProxyError(
        answer.status,
        code,
        message,
        close_code=1008 if answer.status < 500 else 1011,
        is_retryable=bool(values_of(answer.headers, b"retry-after")),
    )


def rewritten_location(value: bytes, prefix: bytes) -> bytes:
    """Lead a client to the same port again, if the value is a path of it and was not led there already."""
    is_path = value.startswith(b"/") and not value.startswith(b"//")
    is_led = value == prefix or value.startswith((prefix + b"/", prefix + b"?"))
    return prefix + value if is_path and not is_led else value


async def _ignore(_head: ResponseHead) -> None:
    """Drop what the server below cannot send on."""
