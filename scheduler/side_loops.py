"""Work of the leader that no trial waits for: webhooks, schedules.

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
from services.schedule_firing import ScheduleFirer
from services.webhook_delivery import WebhookPolicy, WebhookSender

__all__ = ["SideLoops"]

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
        self._firer = ScheduleFirer(
            self._engine, BlobStore(settings.home_path / "blobs"), default_runtime=settings.runtime
        )
        self._on_submitted = on_submitted
        self._loops = [
            self._webhooks,
            Loop("schedules", self._fire, interval_seconds=_SCHEDULE_SECONDS, enabled=enabled),
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

    def _wake_webhooks(self) -> None:
        """A place is free again."""
        self._webhooks.wake()

    def _fire(self) -> bool:
        if self._firer.tick():
            self._on_submitted()
        return False

    def _send(self) -> bool:
        return self._sender.tick() > 0
