"""kombu's Redis transport, with one difference: what others did to a queue does not end the worker.

kombu lets the error of a forged or damaged entry pass up to the consumer, which then ends the process and every attempt
it runs. Bells are rung again from the database, and who waits too long is found there, so losing one costs seconds.
"""

import time
from queue import Empty
from typing import Any

from kombu.transport import redis
from redis.exceptions import ResponseError

from core.logging import get_logger

__all__ = ["Channel", "Transport"]

log = get_logger(__name__)

_PAUSE_SECONDS = 0.5
"""Between two looks at a queue that is no list: each look fails at once."""


class Channel(redis.Channel):
    """A channel that outlives what others push into its queues."""

    def _brpop_read(self, **options: Any) -> Any:
        try:
            return super()._brpop_read(**options)  # type: ignore[no-untyped-call]  # kombu has no types
        except ResponseError as error:
            log.error("queue_spoilt", error=str(error))  # noqa: TRY400 -- the trace would say nothing more
            time.sleep(_PAUSE_SECONDS)
            raise Empty from error
        except (ValueError, TypeError, AttributeError, LookupError) as error:
            log.error("forged_message_dropped", error=f"{type(error).__name__}: {error}")  # noqa: TRY400
            return True


class Transport(redis.Transport):
    """The transport of `core.broker`."""

    Channel = Channel
