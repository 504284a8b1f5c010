from collections.abc import Mapping, Sequence
from contextlib import nullcontext

from celery import Celery
from kombu.exceptions import BatchPublishError, OperationalError
from kombu.messaging import Producer
from kombu.utils.uuid import uuid
from redis.exceptions import RedisError

from core.broker import ATTEMPT_TASK, node_queue
from core.failpoints import failpoint
from core.logging import get_logger
from core.metrics import BELLS_RUNG
from core.tracing import current_traceparent
from repositories.dispatch import Bell

__all__ = ["CeleryBellRinger"]

log = get_logger(__name__)

_TOGETHER = 64
"""Messages in one round trip to the broker."""


class CeleryBellRinger:
    """Rings over Celery. No eta and no expiry: Celery would compare them with the worker's own clock."""

    def __init__(self, app: Celery) -> None:
        """app: made by `core.broker.create_celery`."""
        self._app = app

    def ring(self, bells: Sequence[Bell], *, again: bool = False) -> None:
        """Send one message per bell, some dozens at a time; the first failure ends it: the others have the same broker.

        A message's header `traceparent` names the dispatch, where traces are on.
        """
        if not bells:
            return
        context = current_traceparent()
        headers = {} if context is None else {"traceparent": context}
        try:
            with self._app.producer_pool.acquire(block=True, timeout=5) as producer:
                # To set up a batch costs as much as to send one message.
                together = producer.batch(max_size=_TOGETHER) if len(bells) > 1 else nullcontext()
                with together:
                    for bell in bells:
                        failpoint("dispatch.mid_send")
                        self._send(producer, bell, headers)
        except (OperationalError, BatchPublishError, RedisError, OSError) as error:
            BELLS_RUNG.labels("failed").inc(len(bells))
            log.warning("bells_not_rung", count=len(bells), error=str(error))
        else:
            BELLS_RUNG.labels("again" if again else "first").inc(len(bells))

    def _send(self, producer: Producer, bell: Bell, headers: Mapping[str, str]) -> None:
        """Send what `send_task` would, without looking up again for each what is the same for all."""
        queue = node_queue(bell.node_id)
        args = (str(bell.trial_id), bell.fence)
        message = self._app.amqp.create_task_message(
            uuid(), ATTEMPT_TASK, args, {}, argsrepr=repr(args), kwargsrepr="{}", ignore_result=True
        )
        producer.publish(  # type: ignore[no-untyped-call]  # kombu has no types
            message.body,
            exchange="",
            routing_key=queue,
            serializer="json",
            headers={**message.headers, **headers},
            **message.properties,
        )
