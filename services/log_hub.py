"""One Redis subscription for all live log readers of this process.

Messages only say early what the store will say anyway: they may be lost, and a reader that missed some is told so.
"""

import asyncio
import base64
import binascii
import contextlib
import json
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any
from uuid import UUID

from redis.asyncio.client import PubSub
from redis.exceptions import RedisError

from core.ending import end_task
from core.logging import get_logger
from repositories.log_reading import LogChunkRow
from services.wake import subscriber

__all__ = ["CHANNEL", "LogHub", "LogListener"]

log = get_logger(__name__)

CHANNEL = "log:{attempt_id}"
_KEEP_OPEN = "log:-"
"""Always subscribed: a subscription to nothing cannot be waited on."""

_BUFFERED_CHUNKS = 64
"""Chunks kept for a reader whose client is slow, 4 MiB at most; what comes then it reads from the store later."""

_LOST = (RedisError, OSError, AttributeError)
"""What a call on a broken connection raises; the last one if another task has closed it meanwhile."""

_CONFIRM_SECONDS = 1.0
_RETRY_SECONDS = 1.0


class LogListener:
    """What has come in for one reader.

    confirmed: Redis has it from here on. is_read: its reader has begun, and may have looked at the store already.
    """

    def __init__(self) -> None:
        """Start empty."""
        self._chunks: asyncio.Queue[LogChunkRow | None] = asyncio.Queue(_BUFFERED_CHUNKS)
        self._missed = False
        self.confirmed = asyncio.Event()
        self.is_read = False

    async def next(self, timeout_seconds: float) -> LogChunkRow | None:
        """Wait for the next chunk. None: look at the store, because nothing came in time or something was missed."""
        try:
            async with asyncio.timeout(timeout_seconds):
                chunk = await self._chunks.get()
        except TimeoutError:
            return None
        if chunk is None:
            self._missed = False
        return chunk

    def offer(self, chunk: LogChunkRow | None) -> None:
        """Hand in a chunk, or None for "look at the store"."""
        if self._missed:
            return
        try:
            self._chunks.put_nowait(chunk)
        except asyncio.QueueFull:
            # The client may never read again: what it would find here it finds in the store as well.
            self._missed = True
            while not self._chunks.empty():
                self._chunks.get_nowait()
            self._chunks.put_nowait(None)


class LogHub:
    """Subscribes while somebody listens. Works without Redis: then nobody hears anything."""

    def __init__(self, redis_url: str) -> None:
        """redis_url: connects on `start`."""
        self._client = subscriber(redis_url)
        self._listeners: dict[str, set[LogListener]] = {}
        self._telling = asyncio.Lock()
        self._pubsub: PubSub | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to receive; must be called in the event loop that will listen."""
        self._task = asyncio.create_task(self._run(), name="log-hub")

    async def aclose(self) -> None:
        """End all."""
        if self._task is not None:
            await end_task(self._task)
        await self._client.aclose()

    @contextlib.asynccontextmanager
    async def listen(self, attempt_id: UUID) -> AsyncIterator[LogListener]:
        """Listen to one attempt; returns when Redis has confirmed, or after a second without it."""
        channel = CHANNEL.format(attempt_id=attempt_id)
        listener = LogListener()
        others = self._listeners.setdefault(channel, set())
        others.add(listener)
        try:
            # A further reader of the same attempt asks again: only so does it know that it is heard from here on.
            if await self._subscribe(channel):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_CONFIRM_SECONDS):
                        await listener.confirmed.wait()
            listener.is_read = True
            yield listener
        finally:
            others.discard(listener)
            if not others and self._listeners.get(channel) is others:
                del self._listeners[channel]
                await asyncio.shield(self._unsubscribe(channel))

    async def _subscribe(self, channel: str) -> bool:
        """Ask for a channel. False: Redis is away; what is wanted then is asked for on connecting."""
        async with self._telling:
            if self._pubsub is None or not _is_connected(self._pubsub):
                return False
            with contextlib.suppress(*_LOST):
                await self._pubsub.subscribe(channel)
                return True
            return False

    async def _unsubscribe(self, channel: str) -> None:
        async with self._telling:
            # Somebody may have come meanwhile.
            pubsub = self._pubsub
            if pubsub is not None and _is_connected(pubsub) and channel not in self._listeners:
                with contextlib.suppress(*_LOST):
                    await pubsub.unsubscribe(channel)

    async def _run(self) -> None:
        while True:
            pause = _RETRY_SECONDS
            try:
                async with self._client.pubsub() as pubsub:
                    async with self._telling:
                        # Who comes while this is under way waits for it, and then asks for its own channel.
                        await pubsub.subscribe(_KEEP_OPEN, *self._listeners)
                        self._pubsub = pubsub
                    pause = 0.0
                    await self._receive(pubsub)
            except _LOST as error:
                log.warning("log_hub_disconnected", error=type(error).__name__)
            finally:
                self._pubsub = None
            await asyncio.sleep(pause)

    async def _receive(self, pubsub: PubSub) -> None:
        while _is_connected(pubsub):
            message = await pubsub.get_message(timeout=2.0)
            if message is None:
                continue
            listeners = self._listeners.get(message["channel"].decode("ascii", "replace"), ())
            if message["type"] == "subscribe":
                for listener in listeners:
                    listener.confirmed.set()
                    if listener.is_read:
                        # After a reconnect, or a late answer, there may be a hole.
                        listener.offer(None)
            elif message["type"] == "message" and listeners:
                chunk = _parse(message["data"])
                for listener in listeners:
                    listener.offer(chunk)


def _is_connected(pubsub: PubSub) -> bool:
    """Ask before each call, without awaiting anything in between: on a closed connection, any would connect anew."""
    connection: Any = pubsub.connection
    return connection is not None and bool(connection.is_connected)


def _parse(data: bytes) -> LogChunkRow | None:
    """Read a message. None: it holds no chunk, and so says only that the store has changed."""
    try:
        value: dict[str, Any] = json.loads(data)
        return LogChunkRow(
            seq=int(value["seq"]),
            at=datetime.fromisoformat(value["t"]),
            stream=str(value["stream"]),
            step=str(value["step"]),
            data=base64.b64decode(value["b64"], validate=True),
        )
    except (ValueError, KeyError, TypeError, binascii.Error):
        return None
