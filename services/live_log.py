"""Tells live readers what was stored, over Redis, on a thread of its own: a Redis that hangs holds nobody up.

A message says early what the store says anyway, so any may be dropped; a reader that sees a gap, or nothing for a
while, reads the store.
"""

import base64
import json
import threading
from collections import OrderedDict, deque
from collections.abc import Sequence
from uuid import UUID

import redis

from core.logging import get_logger
from repositories.log_chunks import Chunk
from services.log_hub import CHANNEL

__all__ = ["LivePublisher"]

log = get_logger(__name__)

_BUFFER_BYTES = 8 << 20
"""Untold output that is kept. Beyond it the oldest is forgotten: readers find it in the store."""

_PIPELINE_BYTES = 1 << 20
_PAUSE_SECONDS = 1.0
"""After a failure nothing is tried for so long."""

_REMEMBERED = 4096
"""Attempts of which it is known whether somebody listens."""

_LOOK = "{}"
"""What readers take for "the store has changed"."""


class LivePublisher:
    """Publishes chunks in the order they come in. Whole while somebody listens, else only that there is something."""

    def __init__(self, client: redis.Redis) -> None:
        """client: with socket timeouts; the caller closes it."""
        self._client = client
        self._waiting: deque[Chunk] = deque()
        self._waiting_bytes = 0
        self._heard: OrderedDict[UUID, bool] = OrderedDict()
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="live-log", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; what was not told yet is not told."""
        self._stopping.set()
        with self._changed:
            self._changed.notify_all()
        self._thread.join(timeout=5)

    @property
    def waiting_bytes(self) -> int:
        """Output that was handed in and is neither told nor forgotten."""
        return self._waiting_bytes

    def publish(self, chunks: Sequence[Chunk]) -> None:
        """Hand in stored chunks. Returns at once."""
        with self._changed:
            self._waiting.extend(chunks)
            self._waiting_bytes += sum(len(chunk.data) for chunk in chunks)
            while self._waiting_bytes > _BUFFER_BYTES:
                self._waiting_bytes -= len(self._waiting.popleft().data)
            self._changed.notify()

    def _run(self) -> None:
        while not self._stopping.is_set():
            chunks = self._next()
            try:
                self._tell(chunks)
            except (redis.RedisError, OSError) as error:
                log.debug("messages_not_published", count=len(chunks), error=str(error))
                self._stopping.wait(_PAUSE_SECONDS)
            except Exception:
                log.exception("live_log_failed")
                self._stopping.wait(_PAUSE_SECONDS)

    def _next(self) -> list[Chunk]:
        """Wait for something to tell; gives about a pipeline full, or nothing when it is time to stop."""
        chunks: list[Chunk] = []
        size = 0
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._stopping.is_set())
            while self._waiting and size < _PIPELINE_BYTES:
                chunks.append(self._waiting.popleft())
                size += len(chunks[-1].data)
            self._waiting_bytes -= size
        return chunks

    def _tell(self, chunks: Sequence[Chunk]) -> None:
        pipeline = self._client.pipeline(transaction=False)
        told: list[UUID] = []
        hinted: set[UUID] = set()
        for chunk in chunks:
            # Until it is known that nobody listens, somebody may.
            is_heard = self._heard.get(chunk.attempt_id, True)
            if not is_heard and chunk.attempt_id in hinted:
                continue
            if not is_heard:
                hinted.add(chunk.attempt_id)
            pipeline.publish(
                CHANNEL.format(attempt_id=chunk.attempt_id), _message(chunk) if is_heard else _LOOK
            )
            told.append(chunk.attempt_id)
        for attempt_id, count in zip(told, pipeline.execute(), strict=True):
            self._heard[attempt_id] = count > 0
            self._heard.move_to_end(attempt_id)
        while len(self._heard) > _REMEMBERED:
            self._heard.popitem(last=False)


def _message(chunk: Chunk) -> str:
    return json.dumps(
        {
            "seq": chunk.seq,
            "t": chunk.at.isoformat(),
            "stream": chunk.stream,
            "step": chunk.step,
            "b64": base64.b64encode(chunk.data).decode("ascii"),
        }
    )
