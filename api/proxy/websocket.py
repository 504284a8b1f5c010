"""WebSockets through the server proxy: messages both ways."""

import asyncio
import base64
import contextlib
import os
from typing import Any, Final

from starlette.types import Receive, Scope, Send
from wsproto import ConnectionType
from wsproto.connection import Connection
from wsproto.events import BytesMessage, CloseConnection, Event, Message, Ping, TextMessage
from wsproto.frame_protocol import CloseReason
from wsproto.utilities import LocalProtocolError, RemoteProtocolError, generate_accept_token

from api.proxy.backends import Backends
from api.proxy.calls import Call, ProxyError, ingress_headers, request_head
from api.proxy.http import own_error
from services.sandbox_directory import SandboxTarget
from traffic.errors import BackendError, MessageError
from traffic.headers import INGRESS_ERROR, passing_headers
from traffic.heads import Headers, ResponseHead, values_of
from traffic.messages import outgoing_head, read_answer
from traffic.streams import Stream

__all__ = ["WebSocketRelay"]

_MAX_MESSAGE_BYTES: Final = 16 << 20
"""As large as the server below takes them from clients."""

_HANDSHAKE: Final = frozenset(
    b"sec-websocket-" + part for part in (b"key", b"version", b"extensions", b"protocol", b"accept")
)
_NO_STATUS: Final = 1005
_UNSENDABLE: Final = frozenset([1004, 1005, 1006, 1015])
_REASON_BYTES: Final = 123


class WebSocketRelay:
    """One WebSocket. is_accepted: the client has been told so."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, *, answer_seconds: float) -> None:
        """answer_seconds: for the handshake of the program."""
        self.is_accepted = False
        self._scope = scope
        self._receive = receive
        self._send = send
        self._answer_seconds = answer_seconds
        self._frames = Connection(ConnectionType.CLIENT)
        self._parts: list[bytes] = []
        self._size = 0
        self._stream: Stream

    async def run(self, call: Call, target: SandboxTarget, backends: Backends) -> None:
        """Relay until either side closes. Raises ProxyError."""
        backend = await backends.get(target.ingress_url or "", is_new=True)
        self._stream = backend.stream
        try:
            answer = await self._shake_hands(call, target)
            await self._accept(answer)
            await self._relay()
        except (BackendError, MessageError, ConnectionError) as error:
            raise ProxyError(502, "BACKEND_RESPONSE_FAILED", str(error)) from error
        finally:
            self._stream.close()
            asyncio.get_running_loop().call_later(5.0, self._stream.abort)

    async def _shake_hands(self, call: Call, target: SandboxTarget) -> ResponseHead:
        key = base64.b64encode(os.urandom(16))
        asked: Headers = [(b"Sec-WebSocket-Key", key), (b"Sec-WebSocket-Version", b"13")]
        protocols = self._scope.get("subprotocols") or []
        if protocols:
            asked.append((b"Sec-WebSocket-Protocol", ", ".join(protocols).encode()))
        head = outgoing_head(
            request_head(b"GET", call),
            call.target,
            added=[*ingress_headers(self._scope, call, target), *asked],
            dropped=_HANDSHAKE | {b"authorization", b"cookie"},
            upgrade=b"websocket",
        )
        await self._stream.write(head)
        try:
            async with asyncio.timeout(self._answer_seconds):
                answer, body = await read_answer(
                    self._stream, method=b"GET", upgrades=True, on_interim=_ignore
                )
                code = values_of(answer.headers, INGRESS_ERROR.lower())
                if code:
                    raise await own_error(answer, body, code[0].decode())
        except TimeoutError as error:
            raise ProxyError(504, "BACKEND_TIMEOUT", "the program does not answer the handshake") from error
        accepted = values_of(answer.headers, b"sec-websocket-accept")
        if answer.status != 101 or accepted != [generate_accept_token(key)]:
            said = f"the program refuses the handshake: it answers {answer.status}"
            raise ProxyError(502, "BACKEND_RESPONSE_FAILED", said, close_code=1008)
        return answer

    async def _accept(self, answer: ResponseHead) -> None:
        chosen = values_of(answer.headers, b"sec-websocket-protocol")
        headers = passing_headers(answer.headers, is_request=False, also=_HANDSHAKE | {b"date"})
        message = await self._receive()
        if message["type"] != "websocket.connect":
            raise ConnectionResetError("the client has gone")
        self.is_accepted = True
        await self._send(
            {
                "type": "websocket.accept",
                "subprotocol": chosen[0].decode("latin-1") if chosen else None,
                "headers": [(name.lower(), value) for name, value in headers],
            }
        )

    async def _relay(self) -> None:
        loop = asyncio.get_running_loop()
        ways = {loop.create_task(self._from_client()), loop.create_task(self._from_program())}
        try:
            done, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for way in done:
                way.result()
        finally:
            for way in ways:
                way.cancel()
            await asyncio.wait(ways)

    async def _from_client(self) -> None:
        while True:
            message = await self._receive()
            if message["type"] == "websocket.disconnect":
                code = message.get("code") or _NO_STATUS
                await self._say(CloseConnection(code=_sendable(code), reason=message.get("reason") or None))
                return
            text = message.get("text")
            await self._say(
                Message(data=message.get("bytes") or b"") if text is None else TextMessage(data=text)
            )

    async def _from_program(self) -> None:
        while True:
            data = await self._stream.read()
            if not data:
                raise BackendError("the program broke off")
            try:
                self._frames.receive_data(data)
                for event in self._frames.events():
                    if await self._take(event):
                        return
            except (RemoteProtocolError, LocalProtocolError) as error:
                raise BackendError(f"the program's frames are broken: {error}") from error

    async def _take(self, event: Event) -> bool:
        """Pass an event on; True: it was the last one."""
        if isinstance(event, CloseConnection):
            with contextlib.suppress(ConnectionError, LocalProtocolError):
                await self._say(event.response())
            await self._close(event.code if event.code not in _UNSENDABLE else 1000, event.reason or "")
            return True
        if isinstance(event, Ping):
            await self._say(event.response())
        elif isinstance(event, TextMessage | BytesMessage):
            await self._take_part(event)
        return False

    async def _take_part(self, event: TextMessage | BytesMessage) -> None:
        data = event.data.encode() if isinstance(event, TextMessage) else bytes(event.data)
        self._parts.append(data)
        self._size += len(data)
        if self._size > _MAX_MESSAGE_BYTES:
            said = f"a message is larger than {_MAX_MESSAGE_BYTES >> 20} MiB"
            raise ProxyError(502, "BACKEND_RESPONSE_FAILED", said, close_code=1009)
        if event.message_finished:
            whole: Any = b"".join(self._parts)
            self._parts, self._size = [], 0
            key = "bytes"
            if isinstance(event, TextMessage):
                key, whole = "text", whole.decode()
            await self._send({"type": "websocket.send", key: whole})

    async def _say(self, event: Event) -> None:
        await self._stream.write(self._frames.send(event))

    async def _close(self, code: int, reason: str) -> None:
        await self._send({"type": "websocket.close", "code": code, "reason": reason})


def _sendable(code: int) -> int:
    """A code that may be written: those that only name what happened become the one for no code, or for a break."""
    if code in (_NO_STATUS, 1006):
        return CloseReason.NO_STATUS_RCVD if code == _NO_STATUS else CloseReason.GOING_AWAY
    return code


async def _ignore(_head: ResponseHead) -> None:
    """Announcements have no place before a 101."""
