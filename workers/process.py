"""The worker process: a Celery worker on the threads pool around one NodeWorker."""

import os
import threading
import time
from typing import Any
from uuid import UUID

from celery import Celery, signals
from celery.worker.request import Request
from sqlalchemy.exc import SQLAlchemyError

from core.broker import ATTEMPT_TASK, CANARY_TASK, create_celery, node_queue
from core.config import Settings
from core.heap import settle_heap
from core.logging import get_logger
from core.metrics import serve_metrics
from core.tracing import configure_tracing, shut_down_tracing, tracing_on
from runtimes.base import Runtime
from runtimes.node import node_runtimes
from workers.canary import Canary
from workers.identity import NodeIdentity
from workers.node import NodeWorker

__all__ = ["run_worker"]

log = get_logger(__name__)

_DEAF = 70
"""Exit code of a worker that takes no bells any more; `EX_SOFTWARE` of sysexits.h."""


def run_worker(settings: Settings) -> None:
    """Run until SIGTERM, which leaves what runs to the next worker of this node, or SIGINT, which gives it back.

    Raises RuntimeUnavailableError if a runtime of this node cannot work here.
    """
    identity = NodeIdentity(settings.home_path / "node")
    runtimes = build_runtimes(settings)
    node = NodeWorker(settings, identity, runtimes)
    app = create_celery(
        settings.redis_url.get_secret_value(),
        node_id=identity.id,
        slots=settings.worker_slots,
        task_events=settings.celery_task_events,
    )
    canary = _make_canary(app, node, settings.canary_seconds)
    _connect(app, node, canary)
    configure_tracing("sandmill-worker", instance=str(identity.id))
    serve_metrics(settings.metrics_host, settings.worker_metrics_port)
    app.worker_main(
        [
            "worker",
            "--pool=threads",
            f"--hostname=worker-{identity.id}@%h",
            "--without-mingle",
            "--without-gossip",
            "--loglevel=WARNING",
        ]
    )


class BellRequest(Request):  # type: ignore[misc]  # Celery has no types
    """A bell as the worker holds it: its queue is consumed without acks, so there is nothing to tell the broker.

    kombu's Redis transport would remove each message from a set in which it never was, for two commands a bell.
    """

    def acknowledge(self) -> None:
        """Only remember it, as the caller expects."""
        self.acknowledged = True


def _start_when_possible(node: NodeWorker) -> None:
    """Start the node, again and again while the database is away. Celery would swallow the error and idle for ever."""
    pause = 0.2
    while True:
        try:
            node.start()
        except SQLAlchemyError as error:
            log.warning("worker_waits_for_database", error=str(error).splitlines()[0])
            time.sleep(pause)
            pause = min(2 * pause, 5.0)
        except Exception:
            log.exception("worker_start_failed")
            os._exit(1)  # the supervisor starts it again; a worker without a session would only look alive
        else:
            return


def build_runtimes(settings: Settings) -> dict[str, Runtime]:
    """Build and check what the node offers. Raises RuntimeUnavailableError that says what to do."""
    runtimes = node_runtimes(settings)
    for name, runtime in runtimes.items():
        runtime.check()
        limitations = runtime.limitations()
        if limitations:
            log.warning("runtime_has_limitations", runtime=name, limitations=list(limitations))
    return runtimes


def _traceparent(task: Any) -> str | None:
    """Give the header a bell may carry. Whatever else is there was not rung by us."""
    headers = task.request.headers if tracing_on() else None
    value = headers.get("traceparent") if isinstance(headers, dict) else None
    return value if isinstance(value, str) else None


def _make_canary(app: Celery, node: NodeWorker, interval_seconds: float) -> Canary:
    def ring(nonce: str) -> None:
        app.send_task(
            CANARY_TASK, args=(nonce,), queue=node_queue(node.node_id), ignore_result=True, retry=False
        )

    def leave() -> None:
        # Not by the warm way: what hangs may hang there, too. The supervisor starts another worker, which goes on
        # with the sandboxes of this one.
        os._exit(_DEAF)

    return Canary(ring=ring, on_answer=node.note_canary, on_dead=leave, interval_seconds=interval_seconds)


def _connect(app: Celery, node: NodeWorker, canary: Canary) -> None:
    @app.task(name=ATTEMPT_TASK, ignore_result=True, bind=True, Request=BellRequest)  # type: ignore[untyped-decorator]  # Celery has no types
    def run_attempt(task: Any, trial_id: str, fence: int) -> None:
        node.run_attempt(UUID(trial_id), fence, rung_by=_traceparent(task))

    @app.task(name=CANARY_TASK, ignore_result=True, Request=BellRequest)  # type: ignore[untyped-decorator]  # Celery has no types
    def answer_canary(nonce: str) -> None:
        canary.answer(nonce)

    # Ready means: consuming. A session opened earlier would draw bells that nobody answers.
    def on_ready(**_: Any) -> None:
        settle_heap()
        threading.Thread(target=_start_when_possible, args=(node,), name="node-start", daemon=True).start()
        canary.start()

    def on_shutting_down(sig: str | None = None, **_: Any) -> None:
        canary.stop()
        if sig == "SIGTERM":
            # On a thread: whatever this one was doing, it may hold locks.
            threading.Thread(target=node.hand_over, name="hand-over", daemon=True).start()
        else:
            node.drain()

    def on_shutdown(**_: Any) -> None:
        node.stop()
        shut_down_tracing()

    signals.worker_ready.connect(on_ready, weak=False)
    signals.worker_shutting_down.connect(on_shutting_down, weak=False)
    signals.worker_shutdown.connect(on_shutdown, weak=False)
