"""A real stack, every process of which may be killed, stopped and cut off: servers, API, schedulers, two nodes."""

import base64
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from typing import Any
from uuid import UUID

import httpx
from sqlalchemy import Engine, create_engine
from sqlalchemy.pool import NullPool

from core.database import create_database_engine, to_driver_url
from core.ids import new_id
from launcher.embedded import EmbeddedServices, embedded_services
from launcher.ports import find_free_port
from migrations.migrate import upgrade
from services.tenants import create_api_key, ensure_tenant
from tests.support.launching import REPOSITORY, launcher_environment
from tests.support.receiver import Receiver
from tests.support.services import THROWAWAY

__all__ = ["LEASE_SECONDS", "WEBHOOK", "ChaosStack", "Submitted", "chaos_stack", "wait_for"]

LEASE_SECONDS, MARGIN_SECONDS, GRACE_SECONDS, HEARTBEAT_SECONDS = 2.0, 0.5, 0.3, 0.3

SETTINGS = {
    "SANDMILL_LEASE_SECONDS": str(LEASE_SECONDS),
    "SANDMILL_LEASE_MARGIN_SECONDS": str(MARGIN_SECONDS),
    "SANDMILL_LEASE_GRACE_SECONDS": str(GRACE_SECONDS),
    "SANDMILL_HEARTBEAT_SECONDS": str(HEARTBEAT_SECONDS),
    "SANDMILL_RERING_SECONDS": "0.5",
    "SANDMILL_CLAIM_TIMEOUT_SECONDS": "3",
    "SANDMILL_WORKER_SLOTS": "4",
    "SANDMILL_WORKER_CPU_MILLICORES": "64000",
    "SANDMILL_WORKER_MEMORY_BYTES": str(64 << 30),
    "SANDMILL_RUNTIME": "fake",
    "SANDMILL_SANDBOX_CREATE_WAIT_SECONDS": "2",
    "SANDMILL_LOG_LEVEL": "info",
    "SANDMILL_SECRET_KEY": base64.b64encode(bytes(range(32))).decode(),
    "SANDMILL_WEBHOOK_ALLOWED_NETWORKS": '["127.0.0.0/8"]',
    # A message whose sender died is due again a minute and a half after that.
    "SANDMILL_WEBHOOK_TIMEOUT_SECONDS": "1",
}
WEBHOOK = "chaos"
ORPHAN_SECONDS = LEASE_SECONDS - MARGIN_SECONDS - HEARTBEAT_SECONDS


@dataclass
class Program:
    """One running program. armed: its failpoints. log_start: where in the log its lines begin."""

    name: str
    pid: int
    armed: str
    log: Path
    log_start: int

    def said(self) -> str:
        """What this process, and no earlier one of the name, has logged."""
        with self.log.open("rb") as log:
            log.seek(self.log_start)
            return log.read().decode(errors="replace")


@dataclass(frozen=True)
class Submitted:
    """What the client knows: the key under which it asked, and the batch it was promised. exit_codes: by job key.

    is_told: a receiver was to hear of each of its trials.
    """

    key: str
    batch_id: UUID
    exit_codes: Mapping[str, int]
    trials: int
    is_told: bool = False


class Nursery:
    """The process that forks the programs."""

    def __init__(self, log: Path) -> None:
        self.ended: dict[int, int] = {}
        self._replies: Queue[dict[str, Any]] = Queue()
        self._lock = threading.Lock()
        with log.open("ab") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.nursery"],
                cwd=REPOSITORY,
                env=launcher_environment({}),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self._replies.get(timeout=60).get("ready")

    def fork(self, program: str, *, env: Mapping[str, str], log: Path, chaos: Mapping[str, Any]) -> int:
        order = {"program": program, "env": dict(env), "log": str(log), "chaos": dict(chaos)}
        assert self._process.stdin is not None
        with self._lock:
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()
            return int(self._replies.get(timeout=30)["pid"])

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(5)
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            message = json.loads(line)
            if "ended" in message:
                self.ended[message["ended"]] = message["status"]
            else:
                # The number of one that ended long ago, and is now given out again. Here, since messages are in order.
                self.ended.pop(message.get("pid", 0), None)
                self._replies.put(message)


class ChaosStack:
    """All of it. `keep_up` starts again what has ended, without its failpoints, as a supervisor does."""

    def __init__(
        self, home: Path, services: EmbeddedServices, nursery: Nursery, *, runtimes: tuple[str, ...]
    ) -> None:
        self.home = home
        self.services = services
        self.runtimes = runtimes
        self.programs: dict[str, Program] = {}
        self._nodes_in_use: set[str] = set()
        self.exec_log = home / "exec.log"
        self.api_port = find_free_port()
        self.database_url = services.database_url
        self.redis_url = services.redis_url
        self.urls: Callable[[str], tuple[str, str]] = lambda _name: (self.database_url, self.redis_url)
        self.chaos: Callable[[str], Mapping[str, Any]] = lambda _name: {}
        self._nursery = nursery
        self.engine: Engine = create_engine(to_driver_url(services.database_url), poolclass=NullPool)
        self.keys: dict[str, str] = {}
        self.receiver = Receiver()
        # Against the machine, not against a program that is slow to answer.
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{self.api_port}", timeout=10.0)

    def add_tenant(self, name: str, **limits: Any) -> int:
        engine = create_database_engine(self.services.database_url, actor="test", pool_size=1)
        with engine.begin() as connection:
            tenant = ensure_tenant(connection, name)
            self.keys[name] = create_api_key(connection, tenant, "chaos")
            for column, value in limits.items():
                connection.exec_driver_sql(
                    f"UPDATE tenants SET {column} = %(value)s WHERE id = %(id)s",
                    {"value": value, "id": tenant},
                )
        engine.dispose()
        return tenant

    def add_webhook(self, tenant: str, *events: str) -> None:
        """Let the receiver hear of these events; its secret is there for batches with a receiver of their own."""
        body = {"name": WEBHOOK, "url": self.receiver.url(), "events": list(events)}
        headers = {"Authorization": f"Bearer {self.keys[tenant]}"}
        self.client.post("/v1/webhooks", json=body, headers=headers).raise_for_status()

    def start(self, name: str, *, armed: str = "") -> Program:
        """Start `api`, `scheduler-N` or `worker-X`. armed: what SANDMILL_FAILPOINTS says."""
        kind = name.partition("-")[0]
        if kind == "worker":
            self._nodes_in_use.add(name)
        database_url, redis_url = self.urls(name)
        env = launcher_environment(
            {
                **SETTINGS,
                "DATABASE_URL": database_url,
                "REDIS_URL": redis_url,
                # The API and all workers share the blobs; a node has its own id.
                "SANDMILL_HOME": str(self.home / (name if kind == "worker" else "shared")),
                "SANDMILL_RUNTIMES": json.dumps(list(self.runtimes)),
                "SANDMILL_CANARY_SECONDS": "600",
                **({"SANDMILL_FAILPOINTS": armed, "SANDMILL_ALLOW_FAILPOINTS": "1"} if armed else {}),
            }
        )
        chaos: dict[str, Any] = dict(self.chaos(name))
        if kind == "api":
            chaos["port"] = self.api_port
        if kind == "worker":
            chaos |= {"exec_log": str(self.exec_log), "orphan_seconds": ORPHAN_SECONDS}
        log = self.home / f"{name}.log"
        log_start = log.stat().st_size if log.exists() else 0
        pid = self._nursery.fork(kind, env=env, log=log, chaos=chaos)
        log.touch()
        program = self.programs[name] = Program(name, pid, armed, log, log_start)
        return program

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """Signal a program with all it has in its process group; one that has ended already is left alone."""
        program = self.programs[name]
        if not self.has_ended(name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(program.pid, number)

    def wake(self, pid: int) -> None:
        """Let a stopped program go on, if it is still there."""
        if pid not in self._nursery.ended:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def has_ended(self, name: str) -> bool:
        return self.programs[name].pid in self._nursery.ended

    def end(self, name: str) -> None:
        """Kill and wait; it is not started again by `keep_up`."""
        self.kill(name)
        wait_for(lambda: self.has_ended(name), what=f"end of {name}")
        del self.programs[name]

    def end_sandboxes(self) -> None:
        """Let each node's worker remove what outlives a worker, as the stop of a stack does; once for each start."""
        nodes = sorted(self._nodes_in_use)
        if set(self.runtimes) == {"fake"} or not nodes:
            return
        for name in nodes:
            if name not in self.programs or self.has_ended(name):
                self.start(name)
        with contextlib.suppress(TimeoutError):
            self.wait_ready()
        for name in nodes:
            self.kill(name, signal.SIGINT)
        with contextlib.suppress(TimeoutError):
            wait_for(lambda: all(map(self.has_ended, nodes)), what="the end of the workers", seconds=30)
        self._nodes_in_use.clear()

    def keep_up(self) -> list[str]:
        """Start again, without failpoints, what has ended; gives their names."""
        ended = [name for name in self.programs if self.has_ended(name)]
        for name in ended:
            self.start(name)
        return ended

    def rows(self, sql: str, **parameters: Any) -> list[dict[str, Any]]:
        with self.engine.begin() as connection:
            result = connection.exec_driver_sql(sql, parameters)
            return [dict(row) for row in result.mappings()] if result.returns_rows else []

    def wait_ready(self) -> None:
        """Wait until the API answers and every worker holds a lease."""
        wanted = sum(name.startswith("worker") for name in self.programs)
        sql = "SELECT count(*) AS n FROM worker_sessions WHERE ended_at IS NULL AND lease_until > clock_timestamp()"
        wait_for(lambda: self.rows(sql)[0]["n"] >= wanted, what="the workers' sessions")
        wait_for(self._answers, what="the API")

    def _answers(self) -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return self.client.get("/healthz").status_code == 200
        return False

    def submit(
        self,
        body: Mapping[str, Any],
        exit_codes: Mapping[str, int],
        *,
        tenant: str,
        patience_seconds: float = 60.0,
    ) -> Submitted:
        """Submit a batch as a client does that gives up on no answer: again and again under the same key."""
        key, deadline = str(new_id()), time.monotonic() + patience_seconds
        headers = {"Authorization": f"Bearer {self.keys[tenant]}", "Idempotency-Key": key}
        while True:
            with contextlib.suppress(httpx.HTTPError):
                answer = self.client.post("/v1/batches", json={**body, "name": key}, headers=headers)
                if answer.status_code in {200, 202}:
                    trials = sum(job["trials"]["count"] for job in body["jobs"])
                    batch_id = UUID(answer.json()["id"])
                    return Submitted(key, batch_id, exit_codes, trials, is_told="on_complete" in body)
                assert answer.status_code >= 500 or answer.status_code == 429, answer.text
            assert time.monotonic() < deadline, "the API took no batch"
            self.keep_up()
            time.sleep(0.05)

    def cancel(self, batch_id: UUID, *, tenant: str, mode: str, patience_seconds: float = 60.0) -> None:
        """Cancel a batch, asking until it is answered."""
        headers, deadline = (
            {"Authorization": f"Bearer {self.keys[tenant]}"},
            time.monotonic() + patience_seconds,
        )
        while True:
            with contextlib.suppress(httpx.HTTPError):
                path = f"/v1/batches/{batch_id}/cancel"
                answer = self.client.post(path, json={"mode": mode}, headers=headers)
                if answer.status_code == 200:
                    return
                assert answer.status_code >= 500, answer.text
            assert time.monotonic() < deadline, "the API took no cancel"
            self.keep_up()
            time.sleep(0.05)

    def is_finished(self, batch_id: UUID) -> bool:
        """Whether the batch, and so every trial of it, has ended."""
        rows = self.rows("SELECT state FROM batches WHERE id = %(id)s", id=batch_id)
        return bool(rows) and rows[0]["state"] == "finished"


@contextlib.contextmanager
def chaos_stack(home: Path, *, runtimes: tuple[str, ...] = ("fake",)) -> Iterator[ChaosStack]:
    """Start the servers and the nursery, no program yet; the end of the block ends everything."""
    (home / "shared").mkdir(parents=True)
    with contextlib.ExitStack() as held:
        nursery = Nursery(home / "nursery.log")
        held.callback(nursery.close)
        services = held.enter_context(embedded_services(home / "services", settings=THROWAWAY))
        upgrade(services.database_url)
        stack = ChaosStack(home, services, nursery, runtimes=runtimes)
        held.callback(stack.client.close)
        held.enter_context(stack.receiver)
        try:
            yield stack
        finally:
            stack.end_sandboxes()


def wait_for(condition: Callable[[], bool], *, what: str, seconds: float = 40.0) -> None:
    """Poll until it holds. Raises TimeoutError."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {seconds:g} s")
        time.sleep(0.03)
