"""The scheduler process: wires the loops and runs them while it leads."""

import signal
import threading
import time

import redis

from core.broker import create_celery
from core.config import Settings
from core.database import create_database_engine
from core.heap import settle_heap
from core.logging import get_logger
from core.metrics import serve_metrics
from core.tracing import configure_tracing, shut_down_tracing
from scheduler.bells import CeleryBellRinger
from scheduler.leader import Leadership
from scheduler.loops import Loop, has_given_up
from scheduler.side_loops import SideLoops
from services.batch_progress import BatchProgressKeeper, ProgressTold
from services.dispatch import Dispatcher, DispatchPolicy
from services.fan_out import Materialiser
from services.preemption import Preemptor
from services.reaping import Reaper
from services.session_sweeping import SessionSweeper
from services.tenant_accounts import TenantAccounts
from services.wake import POOLS_MESSAGE, SCHEDULER_CHANNEL, Wake

__all__ = ["Scheduler"]

log = get_logger(__name__)


class Scheduler:
    """All loops of one scheduler. Run two or more: all but the leader wait."""

    def __init__(self, settings: Settings) -> None:
        """Connects to nothing yet."""
        self._settings = settings
        self._engine = create_database_engine(
            settings.database_url.get_secret_value(),
            actor="scheduler",
            by_key_only=True,
            pool_size=6,
            statement_timeout_seconds=5.0,
        )
        redis_url = settings.redis_url.get_secret_value()
        self._leadership = Leadership(settings.database_url.get_secret_value())
        self._redis = redis.Redis.from_url(redis_url, socket_connect_timeout=3, health_check_interval=10)
        policy = DispatchPolicy(
            slots_per_tick=settings.dispatch_slots,
            rering_seconds=settings.rering_seconds,
            claim_timeout_seconds=settings.claim_timeout_seconds,
            hold_seconds=settings.hold_seconds,
            avoid_node_seconds=settings.avoid_node_seconds,
            usage_weight=settings.usage_weight,
            newcomer_reserve=settings.newcomer_reserve,
        )
        self._dispatcher = Dispatcher(self._engine, CeleryBellRinger(create_celery(redis_url)), policy)
        self._accounts = TenantAccounts(self._engine, half_life_seconds=settings.usage_half_life_seconds)
        self._preemptor = Preemptor(
            self._engine,
            Wake(Wake.connect(redis_url)).cancelled,
            after_seconds=settings.preempt_after_seconds,
        )
        self._reaper = Reaper(
            self._engine,
            lease_grace_seconds=settings.lease_grace_seconds,
            lease_seconds=settings.lease_seconds,
        )
        wake = Wake(Wake.connect(redis_url))
        told = ProgressTold(stopped=wake.cancelled, moved=wake.moved, queued=self._wake_dispatch)
        self._progress = BatchProgressKeeper(self._engine, told)
        self._sessions = SessionSweeper(self._engine, tell_nodes=wake.cancelled, tell=wake.sandbox)
        self._materialiser = Materialiser(self._engine)
        self._stopping = threading.Event()
        self._loops = self._build_loops()
        self._side_loops = SideLoops(
            settings, enabled=lambda: self._leadership.held, on_submitted=self._dispatch_loop.wake
        )

    def _build_loops(self) -> list[Loop]:
        def led() -> bool:
            return self._leadership.held

        settings = self._settings
        # The gap gathers trials that end together: a tick costs the same for one as for fifty. It comes after a tick
        # that dispatched something, so a submission to an idle system does not wait for it.
        self._dispatch_loop = Loop(
            "dispatch", self._dispatch, interval_seconds=settings.tick_seconds, enabled=led, gap_seconds=0.02
        )
        # Half the age at which a bell counts as lost, so that none waits much longer than that.
        rering = settings.rering_seconds / 2
        return [
            self._dispatch_loop,
            Loop("ring_again", self._ring_again, interval_seconds=rering, enabled=led),
            Loop("reap", self._reap, interval_seconds=min(1.0, settings.lease_seconds / 3), enabled=led),
            Loop("sweep", self._sweep, interval_seconds=2 * settings.tick_seconds, enabled=led),
            Loop("progress", self._progress.advance, interval_seconds=settings.tick_seconds, enabled=led),
            Loop("fan_out", self._fan_out, interval_seconds=settings.tick_seconds, enabled=led),
            Loop("sandboxes", self._sweep_sessions, interval_seconds=1.0, enabled=led),
            Loop("force", self._force, interval_seconds=5.0, enabled=led),
            Loop("preempt", self._preempt, interval_seconds=1.0, enabled=led),
            Loop("account", self._account, interval_seconds=5.0, enabled=led),
            Loop("purge", self._purge, interval_seconds=60.0, enabled=led),
        ]

    def run(self) -> None:
        """Run until SIGTERM or SIGINT."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._stopping.set())
        configure_tracing("sandmill-scheduler")
        serve_metrics(self._settings.metrics_host, self._settings.scheduler_metrics_port)
        settle_heap()
        for loop in self._loops:
            loop.start()
        self._side_loops.start()
        listener = threading.Thread(target=self._listen, name="wake", daemon=True)
        listener.start()
        log.info("scheduler_started")
        while not self._stopping.is_set():
            self._leadership.try_or_check()
            if has_given_up(self._loops):
                self._leadership.release()
            self._stopping.wait(1.0)
        for loop in self._loops:
            loop.stop()
        self._leadership.release()
        # After the lead was given up: the next leader need not wait for a slow receiver.
        self._side_loops.stop()
        self._engine.dispose()
        shut_down_tracing()
        log.info("scheduler_stopped")

    def _dispatch(self) -> bool:
        return self._dispatcher.tick() > 0

    def _ring_again(self) -> bool:
        if self._dispatcher.ring_again():
            self._dispatch_loop.wake()
        return False

    def _reap(self) -> bool:
        since = self._leadership.since
        # Sessions could not be renewed while the database was away: give them one lease before judging.
        settled = since is not None and time.monotonic() - since > self._settings.lease_seconds
        if self._reaper.reap(lapsed_sessions=settled):
            self._dispatch_loop.wake()
        return False

    def _preempt(self) -> bool:
        self._preemptor.run()
        return False

    def _account(self) -> bool:
        self._accounts.roll()
        return False

    def _sweep(self) -> bool:
        self._reaper.sweep()
        return False

    def _wake_dispatch(self) -> None:
        self._dispatch_loop.wake()

    def _fan_out(self) -> bool:
        made = self._materialiser.advance()
        if made:
            self._dispatch_loop.wake()
        return made > 0

    def _sweep_sessions(self) -> bool:
        return self._sessions.run() > 100

    def _force(self) -> bool:
        self._progress.force_overdue()
        return False

    def _purge(self) -> bool:
        self._reaper.purge()
        return False

    def _listen(self) -> None:
        """Turn messages on the wake channel into ticks; without Redis the loops still run by the clock."""
        while not self._stopping.is_set():
            try:
                with self._redis.pubsub(ignore_subscribe_messages=True) as channel:  # type: ignore[no-untyped-call]
                    channel.subscribe(SCHEDULER_CHANNEL)
                    while not self._stopping.is_set():
                        message = channel.get_message(timeout=1.0)
                        if message is None:
                            continue
                        self._dispatch_loop.wake()
                        if message["data"] == POOLS_MESSAGE.encode():
                            self._side_loops.wake_pools()
            except (redis.RedisError, OSError) as error:
                log.warning("wake_channel_lost", error=str(error))
                self._stopping.wait(1.0)
