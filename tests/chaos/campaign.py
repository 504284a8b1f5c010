"""Random faults for minutes under steady work; then all heals, the work runs out, and the run is judged."""

import contextlib
import itertools
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import redis
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError

from launcher.errors import StartupError
from launcher.service import Service, wait_until_ready
from tests.chaos.cells import IMAGES, LIVE_SLACK_SECONDS, script
from tests.chaos.harness import LEASE_SECONDS, ChaosStack, Submitted, chaos_stack, wait_for
from tests.chaos.judge import judge, left_behind, untold
from tests.support.invariants import InvariantWatch
from tests.support.tcp_proxy import TcpProxy, tcp_proxy

__all__ = ["run_campaign"]

PROGRAMS = ("api", "scheduler-1", "scheduler-2", "worker-a", "worker-b")
TENANTS: Mapping[str, Mapping[str, Any]] = {"ant": {"max_running": 5}, "bee": {"max_running": 6, "weight": 2}}
OPEN_TRIALS = 120
DROPPED_BELLS, DOUBLED_BELLS = 0.04, 0.25
SKEWS_SECONDS = (0.0, 0.0, 3600.0, -3600.0)
DRAIN_SECONDS = 240.0
_RESTART_SECONDS = 30.0


def run_campaign(home: Path, *, minutes: float, seed: str | None, runtime: str = "fake") -> dict[str, Any]:
    """Run it; gives the summary. Faults stop after so many minutes, and draining takes up to four more."""
    seed = seed or datetime.now(UTC).isoformat()
    with chaos_stack(home, runtimes=(runtime,)) as stack, _proxies(stack) as proxies:
        return _Campaign(stack, proxies, random.Random(seed), runtime=runtime).run(minutes, seed)


@contextlib.contextmanager
def _proxies(stack: ChaosStack) -> Iterator[dict[tuple[str, str], TcpProxy]]:
    """Put a proxy of its own between each program and each server."""
    ports = {"postgres": stack.services.postgres.port, "redis": stack.services.valkey.port}
    keys = list(itertools.product(PROGRAMS, ports))
    with tcp_proxy(*(ports[server] for _, server in keys)) as made:
        proxies = dict(zip(keys, made, strict=True))

        def urls(name: str) -> tuple[str, str]:
            database = make_url(stack.database_url).set(port=proxies[name, "postgres"].port)
            broker = stack.redis_url.replace(f":{ports['redis']}/", f":{proxies[name, 'redis'].port}/")
            return database.render_as_string(hide_password=False), broker

        stack.urls = urls
        yield proxies


class _Campaign:
    """One run."""

    def __init__(
        self,
        stack: ChaosStack,
        proxies: Mapping[tuple[str, str], TcpProxy],
        rng: random.Random,
        *,
        runtime: str,
    ) -> None:
        self.stack, self.proxies, self.rng, self.runtime = stack, proxies, rng, runtime
        self.promised: list[Submitted] = []
        self.owners: dict[UUID, str] = {}
        self.cancelled: set[UUID] = set()
        self.faults: Counter[str] = Counter()
        self.restarts = 0
        self._timers: list[threading.Timer] = []
        self._skews = {name: rng.choice(SKEWS_SECONDS) for name in PROGRAMS}
        stack.chaos = self._chaos

    def run(self, minutes: float, seed: str) -> dict[str, Any]:
        for name, limits in TENANTS.items():
            self.stack.add_tenant(name, **limits)
        for name in PROGRAMS:
            self.stack.start(name)
        self.stack.wait_ready()
        for name in TENANTS:
            self.stack.add_webhook(name, "batch.finished")
        watch = InvariantWatch(self.stack.database_url, slack_seconds=LIVE_SLACK_SECONDS)
        safety = InvariantWatch(self.stack.database_url)
        safety.start()
        began = time.monotonic()
        next_fault = began + 3.0
        while time.monotonic() - began < 60 * minutes:
            self.restarts += len(self.stack.keep_up())
            self._feed()
            if time.monotonic() >= next_fault:
                self._break_something()
                next_fault = time.monotonic() + self.rng.uniform(0.5, 2.5)
            time.sleep(0.05)
        drained = self._drain()
        safety.stop()
        verdict = judge(self.stack, self.promised, allow_errors=True, cancelled=self.cancelled)
        verdict.untold += untold(self.stack, self.promised)
        verdict.left += left_behind(self.stack)
        found = [*safety.violations, *watch.ask()]
        for violation in found:
            kind = verdict.over_quota if violation.invariant.group in {"I4", "I5"} else verdict.broken
            kind.append(str(violation))
        states = self.stack.rows(
            "SELECT state, count(*)::int AS n FROM attempts GROUP BY state ORDER BY state"
        )
        outcomes = self.stack.rows(
            "SELECT outcome, count(*)::int AS n FROM trials GROUP BY outcome ORDER BY outcome"
        )
        return {
            "seed": seed,
            "minutes": minutes,
            "runtime": self.runtime,
            "drained": drained,
            "faults": dict(sorted(self.faults.items())),
            "restarts": self.restarts,
            "batches": len(self.promised),
            "trials": verdict.trials,
            "outcomes": {row["outcome"]: row["n"] for row in outcomes},
            "attempts": {row["state"]: row["n"] for row in states},
            "executions": verdict.executions,
            "invariant_rounds": safety.rounds,
            "lost": len(verdict.lost),
            "doubled": len(verdict.doubled),
            "over_quota": len(verdict.over_quota),
            "overlaps": len(verdict.overlaps),
            "wrong": len(verdict.wrong),
            "broken": len(verdict.broken),
            "untold": len(verdict.untold),
            "left": len(verdict.left),
            "cancelled_batches": len(self.cancelled),
            "messages": len(self.stack.receiver.messages),
            "problems": verdict.problems[:20],
        }

    def _chaos(self, name: str) -> Mapping[str, Any]:
        chaos: dict[str, Any] = {"skew_seconds": self._skews[name]}
        if name.startswith("scheduler"):
            chaos |= {"dropped_bells": DROPPED_BELLS, "doubled_bells": DOUBLED_BELLS}
        return chaos

    def _feed(self) -> None:
        """Keep so many trials open."""
        with contextlib.suppress(SQLAlchemyError):
            open_trials = self.stack.rows("SELECT count(*)::int AS n FROM trials WHERE state <> 'finished'")[
                0
            ]["n"]
            if open_trials < OPEN_TRIALS:
                self._submit()

    def _submit(self) -> None:
        jobs, codes = [], {}
        for number in range(4):
            key, code = f"job-{len(self.promised)}-{number}", self.rng.choice((0, 0, 1, 7))
            # One in eight runs for longer than a lease.
            seconds = 2 * LEASE_SECONDS if self.rng.random() < 0.125 else self.rng.uniform(0.05, 0.5)
            codes[key] = code
            jobs.append(
                {
                    "key": key,
                    "image": IMAGES[self.runtime],
                    "runtime": self.runtime,
                    "steps": [{"name": "run", "run": script(self.runtime, round(seconds, 2), code)}],
                    "resources": {"cpu": 0.1, "memory_mb": 128},
                    "trials": {"count": 5},
                    "retry": {"infra": {"max": 10, "backoff": {"initial": 0.1, "max": 0.5}}},
                }
            )
        tenant = self.rng.choice(list(TENANTS))
        with contextlib.suppress(TimeoutError):
            submitted = self.stack.submit({"jobs": jobs}, codes, tenant=tenant, patience_seconds=120.0)
            self.promised.append(submitted)
            self.owners[submitted.batch_id] = tenant

    def _break_something(self) -> None:
        fault = self.rng.choice(
            (
                self._kill_worker,
                self._kill_worker,
                self._kill_scheduler,
                self._kill_api,
                self._stop_worker,
                self._stop_worker,
                self._stop_scheduler,
                self._flush_redis,
                self._kill_redis,
                self._restart_postgres,
                self._end_backends,
                self._partition,
                self._partition,
                self._partition,
                self._cancel,
                self._cancel,
                self._change_quota,
                self._change_quota,
            )
        )
        name = fault.__name__.removeprefix("_")
        with contextlib.suppress(psycopg.Error, redis.RedisError, SQLAlchemyError):
            fault()
            self.faults[name] += 1

    def _kill_worker(self) -> None:
        self.stack.kill(self.rng.choice(("worker-a", "worker-b")))

    def _kill_scheduler(self) -> None:
        self.stack.kill(self.rng.choice(("scheduler-1", "scheduler-2")))

    def _kill_api(self) -> None:
        self.stack.kill("api")

    def _stop_worker(self) -> None:
        self._stop(self.rng.choice(("worker-a", "worker-b")))

    def _stop_scheduler(self) -> None:
        self._stop(self.rng.choice(("scheduler-1", "scheduler-2")))

    def _stop(self, name: str) -> None:
        """Stop for up to twice a lease."""
        self.stack.kill(name, signal.SIGSTOP)
        pid = self.stack.programs[name].pid
        self._later(self.rng.uniform(0.3, 2 * LEASE_SECONDS), lambda: self.stack.wake(pid))

    def _cancel(self) -> None:
        """Cancel a batch that has not ended, gracefully or by force; that is no fault, but goes on between them."""
        open_batches = self.stack.rows(
            "SELECT id FROM batches WHERE state <> 'finished' AND cancel_requested_at IS NULL"
        )
        known = sorted({row["id"] for row in open_batches} & self.owners.keys())
        if not known:
            return
        batch_id = self.rng.choice(known)
        # Asked for is enough: an answer may be lost.
        self.cancelled.add(batch_id)
        mode = self.rng.choice(("graceful", "force"))
        self.stack.cancel(batch_id, tenant=self.owners[batch_id], mode=mode, patience_seconds=120.0)

    def _change_quota(self) -> None:
        """Raise or lower what a tenant may run, also below what it runs now."""
        self.stack.rows(
            "UPDATE tenants SET max_running = %(n)s WHERE name = %(name)s",
            n=self.rng.randint(1, 7),
            name=self.rng.choice(list(TENANTS)),
        )

    def _flush_redis(self) -> None:
        with redis.Redis.from_url(self.stack.redis_url, socket_timeout=2) as client:
            client.flushall()

    def _kill_redis(self) -> None:
        self._restart(self.stack.services.valkey)

    def _restart_postgres(self) -> None:
        self._restart(self.stack.services.postgres)

    def _restart(self, service: Service) -> None:
        """Kill it with all its processes, as a power cut does, and start it again a moment later.

        Again and again, as the launcher does: on a busy machine the kernel has not taken all of the earlier one apart.
        """
        assert service.child is not None
        service.child.kill()
        time.sleep(self.rng.uniform(0.0, 1.5))
        began = time.monotonic()
        while True:
            service.start()
            try:
                wait_until_ready([service])
            except StartupError:
                if time.monotonic() - began > _RESTART_SECONDS:
                    raise
                time.sleep(0.5)
            else:
                return

    def _end_backends(self) -> None:
        with psycopg.connect(self.stack.database_url, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )

    def _partition(self) -> None:
        """Cut or hold one program's way to one server, in one direction or both, for up to twice a lease."""
        proxy = self.proxies[self.rng.choice(list(self.proxies))]
        kind = self.rng.randrange(4)
        if kind == 0:
            proxy.cut()
        else:
            proxy.hold(to_server=kind != 1, to_client=kind != 2)
        self._later(self.rng.uniform(0.3, 2 * LEASE_SECONDS), proxy.heal)

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        timer = threading.Timer(seconds, action)
        timer.daemon = True
        timer.start()
        self._timers.append(timer)

    def _drain(self) -> bool:
        """Let everything heal and the work run out; gives whether it did."""
        for timer in self._timers:
            timer.join(10)
        for proxy in self.proxies.values():
            proxy.heal()

        def is_done() -> bool:
            self.restarts += len(self.stack.keep_up())
            with contextlib.suppress(SQLAlchemyError):
                return not self.stack.rows("SELECT 1 FROM batches WHERE state <> 'finished' LIMIT 1")
            return False

        try:
            wait_for(is_done, what="the end of all work", seconds=DRAIN_SECONDS)
        except TimeoutError:
            return False
        return True
