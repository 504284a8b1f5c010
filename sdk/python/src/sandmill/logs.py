"""Reads the log of an attempt, once and whole, over connections that may break."""

import json
import time
from collections.abc import Generator, Iterator
from contextlib import closing
from typing import Any, Self

from sandmill.errors import ConnectionLostError, ProtocolError, SandmillError
from sandmill.outputs import LogChunk
from sandmill.record import Record
from sandmill.sse import ServerEvent, parse_events
from sandmill.transport import Call, Transport

__all__ = ["LogStream"]

_SILENCE_SECONDS = 45.0
"""The server sends a comment every 15 s; three missing ones mean that it, or the way to it, is gone."""


class LogStream:
    """Iterator over the chunks of a log with seq > after, each once, in order. Also a context manager.

    truncated_bytes: cut from the middle by the size limit; known when the iteration has come to its end.
    Between two chunks a broken connection is made again; raises SandmillError when that has no success.
    """

    def __init__(
        self,
        transport: Transport,
        attempt_id: str,
        *,
        after: int = -1,
        follow: bool = True,
        step: str | None = None,
    ) -> None:
        """follow: wait for more until the log ends; else stop at what there is. step: only its output."""
        self.truncated_bytes: int | None = None
        self._transport = transport
        self._path = f"/v1/attempts/{attempt_id}/logs"
        self._last = after
        self._step = step
        self._chunks = self._follow() if follow else self._read_pages()

    def __iter__(self) -> Iterator[LogChunk]:
        """Give itself."""
        return self

    def __next__(self) -> LogChunk:
        """Give the next chunk, waiting for it when the log is followed."""
        return next(self._chunks)

    def __enter__(self) -> Self:
        """Give itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connection."""
        self.close()

    def close(self) -> None:
        """Close the connection; only the thread that iterates may do it."""
        self._chunks.close()

    def _read_pages(self) -> Generator[LogChunk, None, None]:
        while True:
            params = {"after": self._last, "step": self._step}
            page = self._transport.json(Call("GET", self._path, params=params))
            found = Record(page, "log")
            chunks = found.each("items", LogChunk.from_json)
            yield from chunks
            following = found.text_or_none("next_cursor")
            self.truncated_bytes = found.integer("truncated_bytes")
            if following is None or not chunks:
                return
            self._last = int(following)

    def _follow(self) -> Generator[LogChunk, None, None]:
        tried = 0
        failed_at = 0.0
        while True:
            try:
                with closing(self._connect()) as chunks:
                    for chunk in chunks:
                        self._last = chunk.seq
                        tried = 0
                        yield chunk
            except SandmillError as error:
                tried += 1
                if tried == 1:
                    failed_at = time.monotonic()
                elapsed = time.monotonic() - failed_at
                pause = self._transport.retry.delay(error, tried=tried, elapsed_seconds=elapsed)
                if pause is None:
                    raise
            else:
                return
            self._transport.sleep(pause)

    def _connect(self) -> Generator[LogChunk, None, None]:
        """Read one connection up to the event `end`. Raises ConnectionLostError when it ends before that."""
        headers = {} if self._last < 0 else {"Last-Event-ID": str(self._last)}
        call = Call(
            "GET",
            self._path,
            params={"follow": "true", "step": self._step},
            headers=headers,
            accept="text/event-stream",
        )
        with self._transport.stream(call, read_timeout_seconds=_SILENCE_SECONDS) as response:
            for event in parse_events(response.iter_bytes()):
                value = _parse(event)
                if event.name == "end":
                    self.truncated_bytes = Record(value, "end of the log").integer("truncated_bytes")
                    return
                if event.name == "message":
                    chunk = LogChunk.from_json(value)
                    # The server drops what was seen, but a proxy may have kept an older answer.
                    if chunk.seq > self._last:
                        yield chunk
        raise ConnectionLostError("the log stream ended before the log did")


def _parse(event: ServerEvent) -> Any:
    try:
        return json.loads(event.data)
    except ValueError as error:
        raise ProtocolError(f"the log stream holds an event {event.name!r} that is not JSON") from error
