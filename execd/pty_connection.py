"""Letting a client in to a terminal: all checks before the upgrade, then the WebSocket to its end."""

import time
from collections.abc import Collection

from execd.errors import AlreadyConnectedError, ExecdError, InvalidQueryError
from execd.exchange import Exchange
from execd.handshake import check_handshake, check_origin
from execd.launch import StartFailedError
from execd.pty_client import PtyClient
from execd.pty_session import PtySession
from execd.pty_table import PtyTable
from execd.websocket import WebSocket

__all__ = ["serve_client"]

_MAX_OFFSET = 2**63 - 1


async def serve_client(
    exchange: Exchange, session: PtySession, table: PtyTable, allowed_origins: Collection[str] | None
) -> None:
    """Connect a client to a session until either side ends it.

    Raises AlreadyConnectedError, InvalidQueryError, PermissionDeniedError, UpgradeError, before anyone was evicted.
    """
    since = exchange.target.whole_number("since", default=0, maximum=_MAX_OFFSET)
    on_terminal = _flag(exchange, "pty", default=True)
    takes_over = _flag(exchange, "takeover", default=False)
    if session.client is not None and not takes_over:
        raise AlreadyConnectedError("another client is connected to this terminal; takeover=1 replaces it")
    if allowed_origins is not None:
        check_origin(exchange, allowed_origins)
    key = check_handshake(exchange)
    client = PtyClient(session)
    # Nothing was awaited since the check: no other client can have come in between.
    if isinstance(session.client, PtyClient):
        session.client.take_over()
    session.client = client

    def start() -> None:
        if session.mode is None:
            session.start(on_terminal=on_terminal, on_over=table.sweep_later)

    try:
        socket = await WebSocket.accept(exchange, key)
        try:
            await client.run(socket, since, start)
        except (StartFailedError, ExecdError) as error:
            await client.refuse_start(socket, str(error))
    finally:
        _disconnect(session, client, table)


def _disconnect(session: PtySession, client: PtyClient, table: PtyTable) -> None:
    if session.client is client:
        session.client = None
        session.changed_at = time.monotonic()
        if session.is_over:
            table.sweep_later()
        session.resume()


def _flag(exchange: Exchange, name: str, *, default: bool) -> bool:
    text = exchange.target.optional(name)
    if text not in (None, "0", "1"):
        raise InvalidQueryError(f"query parameter '{name}' is not 0 or 1")
    return default if text is None else text == "1"
