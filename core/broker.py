"""The Celery application: bells only. Its messages carry a trial id and a fence, never work or results.

Every setting has its reason in `docs/decisions/0004`. The lease in Postgres is the only redelivery: late acks and
visibility timeouts would be a second one, and the two would fight.
"""

from typing import Final
from uuid import UUID

from celery import Celery
from kombu.entity import Queue

__all__ = ["ATTEMPT_TASK", "CANARY_TASK", "create_celery", "node_queue"]

ATTEMPT_TASK: Final = "attempt.run"
CANARY_TASK: Final = "node.canary"


def node_queue(node_id: UUID) -> str:
    """Name the queue of one node."""
    return f"node.{node_id}"


def create_celery(
    redis_url: str, *, node_id: UUID | None = None, slots: int = 1, task_events: bool = False
) -> Celery:
    """Build the application. node_id: of a worker, which then consumes its own queue and no other.

    task_events: tell Flower of every bell, not only of the worker.
    """
    app = Celery("sandmill", broker=redis_url)
    app.conf.update(
        task_ignore_result=True,
        result_backend=None,
        task_acks_late=False,
        task_reject_on_worker_lost=False,
        task_publish_retry=False,
        worker_prefetch_multiplier=1,
        worker_disable_prefetch=True,
        worker_pool="threads",
        # The spare threads drop duplicates and stale bells while all slots are busy.
        worker_concurrency=slots + 4,
        task_soft_time_limit=None,
        task_time_limit=None,
        worker_soft_shutdown_timeout=20,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        worker_send_task_events=task_events,
        task_send_sent_event=False,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        worker_enable_remote_control=False,
        broker_transport="core.guarded_redis:Transport",
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_pool_acquire_timeout=5,
        broker_transport_options={
            "visibility_timeout": 3600,
            "socket_timeout": 10,
            "socket_connect_timeout": 3,
            "socket_keepalive": True,
            "health_check_interval": 10,
            "global_keyprefix": "sandmill:",
            "fanout_prefix": True,
            "fanout_patterns": True,
        },
        task_serializer="json",
        result_serializer="json",
        accept_content=["json"],
        task_default_queue="dead-end",
    )
    if node_id is not None:
        # no_ack: a bell taken is a bell gone. Keeping it in kombu's `unacked` set until the ack, a moment later, would
        # double the cost of each and bring nothing back, since the visibility timeout plays no part here.
        queue = Queue(node_queue(node_id), no_ack=True)  # type: ignore[no-untyped-call]  # kombu has no types
        app.conf.update(task_queues=[queue], task_default_queue=queue.name, task_create_missing_queues=False)
    return app
