from collections.abc import Sequence

from celery import Celery
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from core.broker import ATTEMPT_TASK, node_queue
from core.failpoints import failpoint
from core.logging import get_logger
from core.metrics import BELLS_RUNG
from core.tracing import current_traceparent
from repositories.dispatch import Bell

__all__ = ["CeleryBellRinger"]

log = get_logger(__name__)


class CeleryBellRinger:
    """Rings over Celery. No eta and no expiry: Celery would compare them with the worker's own clock."""

    def __init__(self, app: Celery) -> None:
        """app: made by `core.broker.create_celery`."""
        self._app = app

    def ring(self, bells: Sequence[Bell], *, again: bool = False) -> None:
        """Send one message per bell; the first failure ends it, since the rest would wait for the same broker.

        A message's header `traceparent` names the dispatch, where traces are on.
        """
        if not bells:
            return
        context = current_traceparent()
        headers = None if context is None else {"traceparent": context}
        rung = 0
        try:
            with self._app.producer_pool.acquire(block=True, timeout=5) as producer:
                for bell in bells:
                    failpoint("dispatch.mid_send")
                    self._app.send_task(
                        ATTEMPT_TASK,
                        args=(str(bell.trial_id), bell.fence),
                        queue=node_queue(bell.node_id),
                        producer=producer,
                        ignore_result=True,
                        headers=headers,
                    )
                    rung += 1
        except (OperationalError, RedisError, OSError) as error:
            BELLS_RUNG.labels("failed").inc(len(bells) - rung)
            log.warning("bells_not_rung", count=len(bells) - rung, error=str(error))
        BELLS_RUNG.labels("again" if again else "first").inc(rung)
