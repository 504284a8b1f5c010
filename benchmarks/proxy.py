"""A command in a live sandbox through the ingress and through the server proxy, against the same one straight to execd.

One sandbox of the `local` runtime; real processes of ingress and API over a real database. Each side keeps one
connection. The sides take turns, so that a busy moment hits all; the medians of their times are compared, and the CPU
time that ingress and API took for each call is told, which the load of the machine does not change.
"""

import argparse
import http.client
import json
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from uuid import UUID

from pydantic import SecretStr
from sqlalchemy import Connection

from core.config import Settings
from core.database import create_database_engine
from core.ids import new_id
from launcher.embedded import EmbeddedServices, embedded_services
from launcher.ports import find_free_port
from launcher.probes import answers_ok
from launcher.programs import api_command, child_environment
from migrations.migrate import upgrade
from runtimes.base import EXECD_PORT, ResourceLimits, Runtime, SandboxHandle, SandboxSpec
from runtimes.node import node_runtimes
from services.tenants import create_api_key, ensure_tenant

TOKEN = secrets.token_urlsafe(24)
START_SECONDS = 60.0
LIMITS = ResourceLimits(cpu_millicores=2000, memory_bytes=256 << 20, disk_bytes=32 << 20, pids=64)

INSERTS = """
INSERT INTO nodes (id, name, runtimes, cpu_millicores, memory_bytes, slots, ingress_url)
VALUES (%(node)s, 'bench', '{local}', 8000, 1 << 30, 8, %(url)s);
INSERT INTO batches (id, tenant_id, job_count, trial_count, is_session) VALUES (%(batch)s, %(tenant)s, 1, 1, true);
INSERT INTO jobs (id, tenant_id, batch_id, ordinal, key, kind, digest, spec, trial_count)
VALUES (%(job)s, %(tenant)s, %(batch)s, 0, 'k', 'session', 'd', '{}', 1);
INSERT INTO trials (id, tenant_id, batch_id, job_id, index, runtime, cpu_millicores, memory_bytes)
VALUES (%(trial)s, %(tenant)s, %(batch)s, %(job)s, 0, 'local', 1000, 1 << 28);
INSERT INTO sandbox_sessions (trial_id, tenant_id, entrypoint, access_token, node_id, runtime, sandbox_name, state)
VALUES (%(trial)s, %(tenant)s, '{}', %(token)s, %(node)s, 'local', %(name)s, 'Running')
"""


def main() -> None:
    """Measure and print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=300, help="of each kind on each side")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sandmill-bench-")))
        services = stack.enter_context(embedded_services(home / "services"))
        upgrade(services.database_url)
        print(json.dumps(measure(stack, home, services, arguments.calls)))


def measure(stack: ExitStack, home: Path, services: EmbeddedServices, calls: int) -> dict[str, object]:
    """Start all, take the sides in turn."""
    settings = Settings(
        database_url=SecretStr(services.database_url),
        redis_url=SecretStr(services.redis_url),
        home=home,
        runtimes=("local",),
    )
    runtime = node_runtimes(settings)["local"]
    spec = SandboxSpec(name=f"sm-bench-{secrets.token_hex(4)}", image="host", limits=LIMITS)
    handle = runtime.create(spec, timeout_seconds=START_SECONDS)
    stack.callback(runtime.close)
    stack.callback(runtime.remove, handle)
    ingress_port, api_port = find_free_port(), find_free_port()
    key, trial = fill(settings, spec.name, home, ingress_port)
    env = child_environment(
        {
            "SANDMILL_HOME": str(home),
            "DATABASE_URL": services.database_url,
            "REDIS_URL": services.redis_url,
            "SANDMILL_INGRESS_PORT": str(ingress_port),
            "SANDMILL_LOG_LEVEL": "warning",
        }
    )
    ingress = stack.enter_context(
        program((sys.executable, "-m", "ingress"), env, lambda: answers_ok(ingress_port, "/status.ok"))
    )
    api = stack.enter_context(
        program(api_command("127.0.0.1", api_port), env, lambda: answers_ok(api_port, "/healthz"))
    )
    sides = {
        "direct": Side(lambda: direct(runtime, handle), "", {}),
        "ingress": Side(
            lambda: http.client.HTTPConnection("127.0.0.1", ingress_port),
            f"/{trial}/{EXECD_PORT}",
            {"OpenSandbox-Secure-Access": TOKEN},
        ),
        "server_proxy": Side(
            lambda: http.client.HTTPConnection("127.0.0.1", api_port),
            f"/v1/sandboxes/{trial}/proxy/{EXECD_PORT}",
            {"OPEN-SANDBOX-API-KEY": key},
        ),
    }
    result: dict[str, object] = {}
    for kind in ("command", "ping"):
        for side in sides.values():
            for _ in range(20):
                side.call(kind)
        times: dict[str, list[float]] = {name: [] for name in sides}
        cpu: dict[str, list[float]] = {name: [0.0, 0.0] for name in sides}
        for _ in range(calls):
            for name, side in sides.items():
                used = (cpu_seconds(ingress), cpu_seconds(api))
                started = time.perf_counter()
                side.call(kind)
                times[name].append(time.perf_counter() - started)
                cpu[name][0] += cpu_seconds(ingress) - used[0]
                cpu[name][1] += cpu_seconds(api) - used[1]
        middle = {name: statistics.median(values) for name, values in times.items()}
        for name in sides:
            result[f"{kind}_{name}_ms_p50"] = round(1000 * middle[name], 3)
            if name != "direct":
                result[f"{kind}_{name}_per_direct"] = round(middle[name] / middle["direct"], 2)
                result[f"{kind}_{name}_ingress_cpu_ms"] = round(1000 * cpu[name][0] / calls, 3)
        result[f"{kind}_server_proxy_api_cpu_ms"] = round(1000 * cpu["server_proxy"][1] / calls, 3)
    return result


class Side:
    """One way to execd, over one connection that is kept."""

    def __init__(
        self, connect: Callable[[], http.client.HTTPConnection], prefix: str, headers: dict[str, str]
    ) -> None:
        """prefix: of the path."""
        self._connection = connect()
        self._prefix = prefix
        self._headers = headers

    def call(self, kind: str) -> None:
        """Run `true`, or only ask whether execd is there."""
        if kind == "ping":
            self._connection.request("GET", f"{self._prefix}/ping", headers=self._headers)
        else:
            headers = {**self._headers, "Content-Type": "application/json"}
            self._connection.request("POST", f"{self._prefix}/command", b'{"argv":["true"]}', headers)
        response = self._connection.getresponse()
        body = response.read()
        if response.status != 200 or (kind == "command" and b"execution_complete" not in body):
            raise RuntimeError(f"{response.status}: {body[:500]!r}")


def direct(runtime: Runtime, handle: SandboxHandle) -> http.client.HTTPConnection:
    """A connection to execd itself."""
    connection = http.client.HTTPConnection("execd")
    connection.sock = runtime.connect(handle, EXECD_PORT, timeout_seconds=5.0)
    connection.sock.setblocking(True)
    return connection


def fill(settings: Settings, name: str, home: Path, ingress_port: int) -> tuple[str, UUID]:
    """Write the rows of a live sandbox; gives a key of its tenant, and its id."""
    node, trial = new_id(), new_id()
    (home / "node").mkdir()
    (home / "node" / "node.id").write_text(f"{node}\n")
    engine = create_database_engine(settings.database_url.get_secret_value(), actor="bench", pool_size=1)
    with engine.begin() as connection:
        tenant = ensure_tenant(connection, "bench")
        key = create_api_key(connection, tenant, "bench")
        insert(
            connection,
            node=node,
            trial=trial,
            tenant=tenant,
            batch=new_id(),
            job=new_id(),
            name=name,
            token=TOKEN,
            url=f"http://127.0.0.1:{ingress_port}",
        )
    engine.dispose()
    return key, trial


def insert(connection: Connection, **values: object) -> None:
    """Write all rows."""
    for statement in INSERTS.split(";"):
        connection.exec_driver_sql(statement, values)


@contextmanager
def program(argv: tuple[str, ...], env: dict[str, str], is_ready: Callable[[], bool]) -> Iterator[int]:
    """Run a program; gives its process id once it answers."""
    with subprocess.Popen(argv, env=env) as process:
        try:
            deadline = time.monotonic() + START_SECONDS
            while not is_ready():
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{argv} does not answer")
                time.sleep(0.05)
            yield process.pid
        finally:
            process.terminate()


def cpu_seconds(pid: int) -> float:
    """Time on processors so far, of all its threads, in nanoseconds' resolution."""
    return (
        sum(int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{pid}/task").iterdir())
        / 1e9
    )


if __name__ == "__main__":
    main()
