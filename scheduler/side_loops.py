"""Work of the leader that no trial waits for: webhooks, schedules, retention, warm pools.

On its own threads and its own database connections, and a failure here gives up no leadership: whatever a receiver
does, dispatch goes on.
"""

from collections.abc import Callable

from sqlalchemy import Engine

from core.blobstore import BlobStore
from core.config import Settings
from core.database import create_database_engine
from core.outbound import AddressGuard
from core.sealing import make_box
from scheduler.loops import Loop
from services.live_sandboxes import SandboxPolicy
from services.pool_keeping import PoolKeeper
from services.retention import Retention, RetentionPolicy
from services.sandbox_caps import sandbox_caps
from services.schedule_firing import ScheduleFirer
from services.wake import Wake
from services.webhook_delivery import WebhookPolicy, WebhookSender

__all__ = ["SideLoops"]

_MONTHS_SECONDS = 3600.0
_POOLS_SECONDS = 1.0
"""A pool from which somebody took is looked at without waiting for this."""
_RETENTION_SECONDS = 15.0
"""One of the 256 folders of the blob store is looked through at a time: all of them in about an hour."""
_SCHEDULE_SECONDS = 1.0
_WEBHOOK_SECONDS = 0.5
"""Longest wait of a message that was written while nothing was under way."""


class SideLoops:
    """All of them, with what they share."""

    def __init__(
        self, settings: Settings, *, enabled: Callable[[], bool], on_submitted: Callable[[], None]
    ) -> None:
        """enabled: whether this process leads. on_submitted: called when there is something to dispatch.

        Connects to nothing yet.
        """
        self._engine: Engine = create_database_engine(
            settings.database_url.get_secret_value(),
            actor="scheduler",
            by_key_only=True,
            pool_size=4,
            statement_timeout_seconds=30.0,
        )
        self._sender = WebhookSender(
            self._engine,
            make_box(settings),
            AddressGuard(settings.webhook_allowed_networks),
            WebhookPolicy(
                parallel=settings.webhook_parallel,
                timeout_seconds=settings.webhook_timeout_seconds,
                public_url=settings.public_url or "",
            ),
            on_done=self._wake_webhooks,
        )
        self._webhooks = Loop("webhooks", self._send, interval_seconds=_WEBHOOK_SECONDS, enabled=enabled)
        store = BlobStore(settings.home_path / "blobs")
        self._firer = ScheduleFirer(
            self._engine,
            store,
            default_runtime=settings.runtime,
            caps=sandbox_caps(settings),
        )
        self._retention = Retention(self._engine, store, _retention_policy(settings))
        self._on_submitted = on_submitted
        self._pools = Loop(
            "pools",
            _make_keeper(settings, self._engine, on_submitted).tick,
            interval_seconds=_POOLS_SECONDS,
            enabled=enabled,
        )
        self._loops = [
            self._webhooks,
            self._pools,
            Loop("schedules", self._fire, interval_seconds=_SCHEDULE_SECONDS, enabled=enabled),
            Loop("retention", self._retention.tick, interval_seconds=_RETENTION_SECONDS, enabled=enabled),
            Loop("months", self._turn_months, interval_seconds=_MONTHS_SECONDS, enabled=enabled),
        ]

    def start(self) -> None:
        """Start all threads."""
        for loop in self._loops:
            loop.start()

    def stop(self) -> None:
        """End after what is under way."""
        for loop in self._loops:
            loop.stop()
        self._sender.close()
        self._engine.dispose()

    def wake_pools(self) -> None:
        """Look at the warm pools now. Cheap, from any thread."""
        self._pools.wake()

    def _wake_webhooks(self) -> None:
        """A place is free again."""
        self._webhooks.wake()

    def _fire(self) -> bool:
        if self._firer.tick():
            self._on_submitted()
        return False

    def _turn_months(self) -> bool:
        self._retention.turn_months()
        return False

    def _send(self) -> bool:
        return self._sender.tick() > 0


def _make_keeper(settings: Settings, engine: Engine, on_submitted: Callable[[], None]) -> PoolKeeper:
    return PoolKeeper(
        engine,
        box=make_box(settings),
        policy=SandboxPolicy(
            default_runtime=settings.runtime,
            cpu_request=settings.sandbox_cpu_request,
            memory_request=settings.sandbox_memory_request,
            start_seconds=settings.sandbox_start_timeout_seconds,
            pull_seconds=settings.sandbox_pull_timeout_seconds,
        ),
        max_age_seconds=settings.pool_member_age_seconds,
        tell_nodes=Wake(Wake.connect(settings.redis_url.get_secret_value())).cancelled,
        on_submitted=on_submitted,
    )


def _retention_policy(settings: Settings) -> RetentionPolicy:
    return RetentionPolicy(
        batch_days=settings.retention_batch_days,
        artifact_days=settings.retention_artifact_days,
        log_days=settings.retention_log_days,
        history_days=settings.retention_history_days,
        delivery_days=settings.retention_delivery_days,
        blob_days=settings.retention_blob_days,
    )
