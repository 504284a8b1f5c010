"""Reads what happens in a batch, once and whole, over connections that may break."""

import json
import time
from collections.abc import Generator, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sandmill.errors import ConnectionLostError, ProtocolError, SandmillError
from sandmill.record import Record
from sandmill.sse import parse_events
from sandmill.transport import Call, Transport

__all__ = ["BatchEvent", "follow_events"]

_SILENCE_SECONDS = 45.0
"""The server sends a comment every 15 s; three missing ones mean that it, or the way to it, is gone."""


@dataclass(frozen=True, slots=True)
class BatchEvent:
    """Something that happened in a batch. seq: its place, without gaps.

    kind: trial.finished, trial.regraded, batch.stopped, batch.finished or batch.reopened. outcome: as it was then;
    failure_code and rewards: of the trial as it is now.
    """

    seq: int
    kind: str
    at: datetime
    trial_id: str | None
    job_id: str | None
    job_key: str | None
    index: int | None
    outcome: str | None
    failure_code: str | None
    rewards: Mapping[str, float]
    detail: Mapping[str, Any]

    @classmethod
    def from_json(cls, value: Any) -> "BatchEvent":
        """Read the wire form."""
        found = Record(value, "event")
        return cls(
            seq=found.integer("seq"),
            kind=found.text("type"),
            at=found.time("at"),
            trial_id=found.text_or_none("trial_id"),
            job_id=found.text_or_none("job_id"),
            job_key=found.text_or_none("job_key"),
            index=found.integer_or_none("index"),
            outcome=found.text_or_none("outcome"),
            failure_code=found.text_or_none("failure_code"),
            rewards=found.numbers("rewards"),
            detail=found.json_object("detail"),
        )


def follow_events(
    transport: Transport, batch_id: str, *, after: int = 0
) -> Generator[BatchEvent, None, None]:
    """Give every event with seq > after once, in order, until the batch is finished.

    Between two events a broken connection is made again; raises SandmillError when that has no success.
    """
    tried, failed_at = 0, 0.0
    while True:
        try:
            with closing(_connect(transport, batch_id, after)) as events:
                for event in events:
                    after, tried = event.seq, 0
                    yield event
        except SandmillError as error:
            tried += 1
            if tried == 1:
                failed_at = time.monotonic()
            elapsed = time.monotonic() - failed_at
            pause = transport.retry.delay(error, tried=tried, elapsed_seconds=elapsed)
            if pause is None:
                raise
        else:
            return
        transport.sleep(pause)


def _connect(transport: Transport, batch_id: str, after: int) -> Generator[BatchEvent, None, None]:
    """Read one connection up to the event `end`. Raises ConnectionLostError when it ends before that."""
    call = Call(
        "GET",
        f"/v1/batches/{batch_id}/events",
        params={"follow": "true", "after": after},
        accept="text/event-stream",
    )
    with transport.stream(call, read_timeout_seconds=_SILENCE_SECONDS) as response:
        for event in parse_events(response.iter_bytes()):
            if event.name == "end":
                return
            try:
                found = BatchEvent.from_json(json.loads(event.data))
            except ValueError as error:
                raise ProtocolError(
                    f"the event stream holds an event {event.name!r} that is not JSON"
                ) from error
            if found.seq > after:
                yield found
    raise ConnectionLostError("the event stream ended before the batch did")
