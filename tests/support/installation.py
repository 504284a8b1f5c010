"""A whole installation that tests of queue, scale and observability share: short leases, fake and local sandboxes."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import psycopg
from psycopg.rows import dict_row

from launcher.bootstrap import create_admin_key, create_api_key
from sandmill import Client
from tests.support.running_stack import PATIENT, RunningStack, running_stack

__all__ = ["Installation", "fake", "installation", "local", "wait_for"]

SETTINGS = {
    "SANDMILL_LEASE_SECONDS": "6",
    "SANDMILL_LEASE_MARGIN_SECONDS": "2",
    "SANDMILL_LEASE_GRACE_SECONDS": "1",
    "SANDMILL_HEARTBEAT_SECONDS": "0.5",
    "SANDMILL_RERING_SECONDS": "0.5",
    "SANDMILL_CLAIM_TIMEOUT_SECONDS": "5",
    "SANDMILL_RUNTIME": "fake",
    "SANDMILL_RUNTIMES": '["fake", "local"]',
    "SANDMILL_WORKER_SLOTS": "8",
    # So that slots are what there is least of, on any machine.
    "SANDMILL_WORKER_CPU_MILLICORES": "64000",
    "SANDMILL_WORKER_MEMORY_BYTES": str(64 << 30),
    "SANDMILL_WORKER_LABELS": '{"worker": "first"}',
    "SANDMILL_WEBHOOK_ALLOWED_NETWORKS": '["127.0.0.0/8"]',
}
LEASE_SECONDS = float(SETTINGS["SANDMILL_LEASE_SECONDS"])


def fake(run: str = "true", key: str = "job", **changes: Any) -> dict[str, Any]:
    """A job that starts nothing."""
    return {"key": key, "image": "fake", "steps": [{"name": "run", "run": run}], **changes}


def local(run: str, key: str = "job", **changes: Any) -> dict[str, Any]:
    """A job in a real sandbox."""
    return fake(run, key, **{"image": "host", "runtime": "local", **changes})


def wait_for(condition: Callable[[], object], *, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not come true in time"
        threading.Event().wait(0.05)


class Installation:
    """The stack with clients of a tenant and of an operator, and its database as its owner sees it."""

    def __init__(self, stack: RunningStack) -> None:
        self.stack = stack
        (pid,) = stack.pids("-m", "scheduler")
        text = Path(f"/proc/{pid}/environ").read_bytes().decode()
        self.settings = dict(entry.split("=", 1) for entry in text.split("\0") if "=" in entry)
        self.database_url, self.redis_url = self.settings["DATABASE_URL"], self.settings["REDIS_URL"]
        self.http = self.client_of(stack.api_key)
        # The client that users have, which repeats what may be repeated.
        self.patient = Client(stack.api_url, stack.api_key, retry=PATIENT)
        self.admin = self.client_of(create_admin_key(self.database_url, name="test"))

    def client_of(self, key: str) -> httpx.Client:
        """A bare client: no repeats."""
        limits = httpx.Limits(max_connections=None)
        headers = {"Authorization": f"Bearer {key}"}
        return httpx.Client(base_url=self.stack.api_url, headers=headers, timeout=60, limits=limits)

    def new_tenant(self, name: str, **limits: Any) -> httpx.Client:
        """Make a tenant with limits; gives a bare client of it."""
        key = create_api_key(self.database_url, tenant=name, name="test")
        if limits:
            changed = self.admin.patch(f"/v1/admin/tenants/{name}", json=limits)
            assert changed.status_code == 200, changed.text
        return self.client_of(key)

    def submit(self, *jobs: Mapping[str, Any], http: httpx.Client | None = None, **batch: Any) -> str:
        answer = (http or self.http).post("/v1/batches", json={"jobs": list(jobs), **batch})
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    def batch(self, batch_id: str) -> dict[str, Any]:
        """Look at it, across restarts of the API."""
        return dict(self.patient._get(f"/v1/batches/{batch_id}"))

    def wait(self, batch_id: str, *, seconds: float = 90) -> dict[str, Any]:
        """Wait for the batch's end; gives it."""
        self.patient.wait(batch_id, timeout_seconds=seconds)
        return self.batch(batch_id)

    def trials(self, batch_id: str, http: httpx.Client | None = None) -> list[dict[str, Any]]:
        """All trials of the batch as the API shows them."""
        found: list[dict[str, Any]] = []
        cursor: str | None = None
        while True:
            params = {"limit": 500, **({"cursor": cursor} if cursor else {})}
            page = (http or self.http).get(f"/v1/batches/{batch_id}/trials", params=params).json()
            found += page["items"]
            cursor = page["next_cursor"]
            if cursor is None:
                return found

    def trial(self, batch_id: str) -> dict[str, Any]:
        """The only trial of the batch, with its attempts."""
        (found,) = self.trials(batch_id)
        return dict(self.http.get(f"/v1/trials/{found['id']}").json())

    def failure(self, batch_id: str) -> tuple[str, str, str]:
        """Outcome, class and code of the only trial of the batch once it has ended."""
        self.wait(batch_id)
        trial = self.trial(batch_id)
        return trial["outcome"], trial["failure"]["class"], trial["failure"]["code"]

    def wait_running(self, batch_id: str, count: int = 1) -> None:
        wait_for(lambda: sum(trial["state"] == "running" for trial in self.trials(batch_id)) >= count)

    def rows(self, query: str, *parameters: Any) -> list[dict[str, Any]]:
        """Ask the database."""
        with psycopg.connect(self.database_url, row_factory=dict_row) as connection:
            return connection.execute(query, parameters).fetchall()

    def hurry_webhooks(self) -> None:
        """Let what waits for its next try be due now."""
        with psycopg.connect(self.database_url) as connection:
            connection.execute(
                "UPDATE webhook_deliveries SET next_try_at = clock_timestamp() WHERE state = 'pending'"
            )

    def log(self, program: str) -> str:
        """What a program has written so far."""
        return (self.stack.home / "logs" / f"{program}.log").read_text()

    @contextlib.contextmanager
    def program(self, argv: Sequence[str], **env: str) -> Iterator["subprocess.Popen[bytes]"]:
        """Run one more program of the installation, until the block ends."""
        process = subprocess.Popen(
            [sys.executable, *argv],
            env={**self.settings, **env},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield process
        finally:
            process.send_signal(signal.SIGINT)  # a worker ends its session; by SIGTERM it would hand over
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    @contextlib.contextmanager
    def second_worker(self, home: Path, **env: str) -> Iterator["subprocess.Popen[bytes]"]:
        """One more node, for fake sandboxes only."""
        home.mkdir(parents=True, exist_ok=True)
        values = {"SANDMILL_HOME": str(home), "SANDMILL_RUNTIMES": '["fake"]', **env}
        before = self.nodes()
        with self.program(["-m", "workers"], **values) as process:
            wait_for(lambda: self.nodes() > before)
            yield process

    def nodes(self) -> int:
        """How many worker sessions live."""
        return int(self.rows("SELECT count(*) AS n FROM worker_sessions WHERE ended_at IS NULL")[0]["n"])

    def close(self) -> None:
        self.http.close()
        self.admin.close()
        self.patient.close()


@contextlib.contextmanager
def installation(home: Path, **env: str) -> Iterator[Installation]:
    """Run one until the block ends; what must always hold is asked of its database at the end."""
    with running_stack(home, {**SETTINGS, **env}) as stack:
        running = Installation(stack)
        try:
            yield running
            _check_invariants(running)
        finally:
            running.close()


def _check_invariants(running: Installation) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "launcher.cli", "verify"],
        env={**os.environ, **running.settings},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
