"""The API's side of HTTP/1.1: Uvicorn's, with heads read as strictly as the ingress reads them."""

import asyncio
import json
import re
from typing import Any, Final

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol
from uvicorn.server import ServerState

from traffic.bodies import request_framing
from traffic.errors import MessageError
from traffic.heads import parse_request

__all__ = ["StrictHttpProtocol"]

_LINGER_SECONDS: Final = 1.0
"""For what a refused client still sends: a reset would destroy the answer on its way."""

_HEAD_END: Final = re.compile(rb"\n\r?\n")
"""What h11 takes for the end of a head."""


class StrictHttpProtocol(H11Protocol):
    """Refuses what two readers could take for different requests, and closes. So it does with heads that do not come.

    head_seconds: for the head of a request, and for the first one to begin; as at the ingress.
    """

    head_seconds = 20.0
    conn: "_StrictConnection"

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """As Uvicorn makes it, one for each connection."""
        super().__init__(config, server_state, app_state, _loop)
        self.conn = _StrictConnection(h11.SERVER)
        self._is_refused = False
        self._head_timer: asyncio.TimerHandle | None = None
        self._has_begun = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as Uvicorn has it
        """Begin to wait for a first head."""
        super().connection_made(transport)
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes of the client; those after a refusal are dropped."""
        if not self._is_refused:
            super().data_received(data)

    def handle_events(self) -> None:
        """Take what is complete; from then on the rest of a head that has begun has so long to come."""
        super().handle_events()
        if self._is_refused:
            return
        if self.conn.their_state is not h11.IDLE:
            self._stop_waiting()
        elif not self.conn.trailing_data[0]:
            self._stop_waiting()
            # Uvicorn forgets it where a body ends after its answer.
            if self.timeout_keep_alive_task is None:
                self.timeout_keep_alive_task = self.loop.call_later(
                    self.timeout_keep_alive, self.timeout_keep_alive_handler
                )
        elif not self._has_begun:
            self._wait_for_head()
            self._has_begun = True

    def send_400_response(self, msg: str) -> None:
        """Answer what is no request, and close. msg: unused, since it is always the same."""
        status, reason = self.conn.refusal or (400, msg)
        self._refuse(status, reason)

    def _wait_for_head(self) -> None:
        self._stop_waiting()
        self._head_timer = self.loop.call_later(self.head_seconds, self._end_wait)

    def _end_wait(self) -> None:
        if self.transport.is_closing():
            return
        if self.conn.trailing_data[0]:
            self._refuse(408, "the head of the request does not come")
        else:
            self.transport.close()

    def _stop_waiting(self) -> None:
        self._has_begun = False
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _refuse(self, status: int, message: str) -> None:
        self._is_refused = True
        self._stop_waiting()
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            # In the middle of an answer there is no room for another one.
            self.transport.abort()
            return
        code = "request_timeout" if status == 408 else "bad_request"
        body = json.dumps({"code": code, "message": message}).encode()
        headers = [
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(body))),
            ("Connection", "close"),
        ]
        head = h11.Response(status_code=status, headers=headers, reason=STATUS_PHRASES[status])
        for event in (head, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(_LINGER_SECONDS, self.transport.close)


class _StrictConnection(h11.Connection):
    """refusal: status and message for what was raised last."""

    refusal: tuple[int, str] | None = None

    def next_event(self) -> Any:
        """Give the next event. Raises h11.RemoteProtocolError."""
        try:
            if self.their_state is h11.IDLE:
                _check_head(self.trailing_data[0])
            return super().next_event()
        except MessageError as error:
            self.refusal = error.status, error.message
            raise h11.RemoteProtocolError(error.message) from error
        except h11.RemoteProtocolError as error:
            self.refusal = error.error_status_hint, str(error)
            raise


def _check_head(data: bytes) -> None:
    """Judge a head once it is complete. Raises MessageError."""
    end = _HEAD_END.search(data)
    if end is None:
        return
    start = end.start() - 1
    if data[start : end.end()] != b"\r\n\r\n":
        raise MessageError("a line of the head ends in other than CR and LF")
    request_framing(parse_request(data[:start]))
