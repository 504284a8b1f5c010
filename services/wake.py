"""Wake-ups over Redis: best effort, sent after the commit. Who sleeps also looks by the clock, so one may be lost."""

import json
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

import redis
import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from core.ids import read_id

__all__ = [
    "BATCH_CHANNEL",
    "CANCEL_CHANNEL",
    "POOLS_MESSAGE",
    "SANDBOX_CHANNEL",
    "SCHEDULER_CHANNEL",
    "TRAFFIC_CHANNEL",
    "Wake",
    "read_start",
    "subscriber",
]

SCHEDULER_CHANNEL = "sched:wake"
CANCEL_CHANNEL = "cancel:{node_id}"
BATCH_CHANNEL = "log:{batch_id}"
SANDBOX_CHANNEL = "log:{sandbox_id}"
"""Both beside the channels of logs, so that one subscription of the API serves all."""
TRAFFIC_CHANNEL = "sandbox:{sandbox_id}"
"""By itself, for programs that listen for all sandboxes and for no logs."""
POOLS_MESSAGE = "pools"
"""On the scheduler's channel: look at the pools, too."""
_STARTED = "started:{node_id}"
_PAUSE_SECONDS = 2.0
"""After a failure no call is tried for this long: a Redis that is away must not cost every request its timeout."""


class Wake:
    """Sends wake-ups. Never raises; a call takes at most about a second."""

    def __init__(self, client: redis.Redis) -> None:
        """client: with socket timeouts of about a second, as `connect` makes it. The caller closes it."""
        self._client = client
        self._lock = threading.Lock()
        self._resume_at = 0.0

    @staticmethod
    def connect(url: str) -> redis.Redis:
        """Make a client fit for wake-ups; connects on first use."""
        return redis.Redis.from_url(
            url, socket_timeout=1.0, socket_connect_timeout=1.0, retry_on_timeout=False
        )

    def scheduler(self) -> None:
        """Tell the scheduler that there is something to do."""
        self._publish(SCHEDULER_CHANNEL, "1")

    def pools(self) -> None:
        """Tell the scheduler that a warm pool has changed, or was taken from."""
        self._publish(SCHEDULER_CHANNEL, POOLS_MESSAGE)

    def cancelled(self, nodes: Mapping[UUID, Sequence[UUID]]) -> None:
        """Tell workers which of their trials are to be cancelled, by node, and the scheduler; the rows say how."""
        for node_id, trial_ids in nodes.items():
            message = json.dumps({"trial_ids": [str(trial_id) for trial_id in trial_ids]})
            self._publish(CANCEL_CHANNEL.format(node_id=node_id), message)
        self.scheduler()

    def moved(self, batch_ids: Iterable[UUID]) -> None:
        """Tell readers of these batches' events that there are new ones."""
        for batch_id in batch_ids:
            self._publish(BATCH_CHANNEL.format(batch_id=batch_id), "1")

    def sandbox(self, sandbox_id: UUID, *, started_on: UUID | None = None) -> None:
        """Tell those who wait for a live sandbox, and those who lead traffic to it, that it has changed.

        started_on: the node where it has just begun to run for somebody, so that its ingress can get ready.
        """
        start = "1" if started_on is None else _STARTED.format(node_id=started_on)
        self._publish_all(
            (SANDBOX_CHANNEL.format(sandbox_id=sandbox_id), "1"),
            (TRAFFIC_CHANNEL.format(sandbox_id=sandbox_id), start),
        )

    def _publish(self, channel: str, message: str) -> None:
        self._publish_all((channel, message))

    def _publish_all(self, *messages: tuple[str, str]) -> None:
        """Send these in one round trip."""
        with self._lock:
            if time.monotonic() < self._resume_at:
                return
        try:
            if len(messages) == 1:
                self._client.publish(*messages[0])
                return
            pipeline = self._client.pipeline(transaction=False)
            for channel, message in messages:
                pipeline.publish(channel, message)
            pipeline.execute()
        except (redis.RedisError, OSError):
            with self._lock:
                self._resume_at = time.monotonic() + _PAUSE_SECONDS


def read_start(message: bytes | str) -> UUID | None:
    """Read, from a message about a sandbox's traffic, on which node it has just begun to run; None: it says no such."""
    text = message.decode("ascii", "replace") if isinstance(message, bytes) else message
    kind, _, node_id = text.partition(":")
    return read_id(node_id) if kind == _STARTED.partition(":")[0] else None


def subscriber(url: str) -> redis.asyncio.Redis:
    """Make a client that hears wake-ups; connects on first use. Whoever has it reconnects by itself."""
    return redis.asyncio.Redis.from_url(
        url,
        socket_connect_timeout=1.0,
        socket_timeout=5.0,
        health_check_interval=10,
        socket_keepalive=True,
        # What this catches, the library reconnects after, in whichever task it is, while another one reads.
        retry=Retry(NoBackoff(), 0, supported_errors=()),
    )
