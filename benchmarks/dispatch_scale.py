"""What a tick of the dispatcher costs by depth of the queue and number of tenants, and whether its shares are fair."""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
from sqlalchemy import Engine

from core.database import create_database_engine
from core.ids import new_id
from core.logging import configure_logging
from launcher.embedded import embedded_services
from migrations.migrate import upgrade
from repositories.dispatch import Bell
from services.dispatch import Dispatcher, DispatchPolicy

SLOTS = 100
"""Trials per tick, as in the settings."""


class Silent:
    """Rings no bell: the broker is not what is measured here."""

    def ring(self, bells: Sequence[Bell], *, again: bool = False) -> None:
        """Do nothing."""


class Tick(NamedTuple):
    """Milliseconds of one tick: by the clock, and on the processors. The latter hardly depends on what else runs."""

    wall: float
    cpu: float


class Queue:
    """A database with as many queued trials and tenants as asked for, and one large node."""

    def __init__(self, url: str) -> None:
        """url: of an empty, migrated database."""
        self.database = psycopg.connect(url, autocommit=True)
        # As the scheduler makes it.
        self.engine: Engine = create_database_engine(
            url, actor="scheduler", by_key_only=True, pool_size=1, statement_timeout_seconds=60.0
        )
        self.backend: int | None = None
        policy = DispatchPolicy(slots_per_tick=SLOTS, rering_seconds=60.0, claim_timeout_seconds=60.0)
        self.dispatcher = Dispatcher(self.engine, Silent(), policy)
        self.node = new_id()

    def close(self) -> None:
        """Close the connections."""
        self.engine.dispose()
        self.database.close()

    def fill(self, trials: int, weights: Sequence[float]) -> None:
        """Start anew with so many queued trials, evenly over one tenant per weight, and a node of 100 slots."""
        run = self.database.execute
        run(
            "TRUNCATE trials, jobs, batches, attempts, nodes, worker_sessions, tenant_schedule, tenants CASCADE"
        )
        tenants = [
            run(
                "INSERT INTO tenants (name, weight, max_running) VALUES (%s, %s, 1000000) RETURNING id",
                (f"t{n}", w),
            ).fetchone()[0]  # type: ignore[index]  # one row is returned
            for n, w in enumerate(weights)
        ]
        # Nothing that loads the rows is measured, so the triggers need not run.
        run("SET session_replication_role = replica")
        for tenant in tenants:
            self.add(tenant, trials // len(tenants))
        run("SET session_replication_role = origin")
        run(
            "INSERT INTO nodes (id, name, runtimes, cpu_millicores, memory_bytes, slots)"
            " VALUES (%s, 'n', '{fake}', 1000000000, 1::bigint << 50, %s)",
            (self.node, SLOTS),
        )
        run(
            "INSERT INTO worker_sessions (id, node_id, pid, version, lease_until)"
            " VALUES (%s, %s, 1, '0', now() + interval '1 day')",
            (new_id(), self.node),
        )
        run("VACUUM ANALYZE")
        run("CHECKPOINT")

    def add(self, tenant: int, trials: int) -> None:
        """Queue trials of one tenant."""
        batch, job = new_id(), new_id()
        run = self.database.execute
        run(
            "INSERT INTO batches (id, tenant_id, job_count, trial_count) VALUES (%s, %s, 1, %s)",
            (batch, tenant, trials),
        )
        run(
            "INSERT INTO jobs (id, tenant_id, batch_id, ordinal, key, kind, digest, spec, trial_count)"
            " VALUES (%s, %s, %s, 0, 'job', 'run', 'd', '{}', %s)",
            (job, tenant, batch, trials),
        )
        run(
            "INSERT INTO trials (id, tenant_id, batch_id, job_id, index, runtime, cpu_millicores, memory_bytes)"
            " SELECT new_uuid7(), %s, %s, %s, n, 'fake', 1000, 1 << 20 FROM generate_series(1, %s) n",
            (tenant, batch, job, trials),
        )

    def free(self, number: int | None = None) -> None:
        """End so many running trials, the oldest first; None: all."""
        with self.database.transaction():
            rows = self.database.execute(
                "UPDATE attempts SET state = 'never_started', finished_at = now() WHERE (trial_id, fence) IN"
                " (SELECT trial_id, fence FROM attempts WHERE state = 'dispatched' ORDER BY created_at LIMIT %s)"
                " RETURNING trial_id",
                (number,),
            ).fetchall()
            self.database.execute(
                "UPDATE trials SET state = 'finished', outcome = 'passed' WHERE id = ANY(%s)",
                ([row[0] for row in rows],),
            )

    def ticks(self, number: int) -> list[Tick]:
        """Give the times of so many full ticks."""
        times = []
        for _ in range(number):
            self.free()
            cpu, started = self.cpu_seconds(), time.perf_counter()
            dispatched = self.dispatcher.tick()
            wall = time.perf_counter() - started
            times.append(Tick(1000 * wall, 1000 * (self.cpu_seconds() - cpu)))
            if dispatched != SLOTS:
                message = f"a tick started {dispatched} trials instead of {SLOTS}"
                raise RuntimeError(message)
        return times

    def cpu_seconds(self) -> float:
        """What the dispatcher has used: this process, and the backend of its connection."""
        if self.backend is None:
            with self.engine.connect() as connection:
                self.backend = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
        # Nanoseconds on the processor; the other files of /proc count hundredths of a second.
        return time.process_time() + int(Path(f"/proc/{self.backend}/schedstat").read_text().split()[0]) / 1e9

    def running(self) -> dict[int, int]:
        """How many trials of which tenant run."""
        rows = self.database.execute(
            "SELECT tenant_id, count(*) FROM attempts WHERE state = 'dispatched' GROUP BY 1 ORDER BY 1"
        )
        return dict(rows.fetchall())  # type: ignore[arg-type]  # two columns


def main() -> None:
    """Measure all sizes and print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--depths", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--tenants", type=int, nargs="+", default=[10, 100, 1_000])
    parser.add_argument("--ticks", type=int, default=60)
    arguments = parser.parse_args()
    configure_logging(level="warning", style="console")
    with (
        tempfile.TemporaryDirectory(prefix="sandmill-bench-") as home,
        embedded_services(Path(home)) as services,
    ):
        upgrade(services.database_url)
        queue = Queue(services.database_url)
        try:
            costs = {
                (depth, tenants): measure(queue, depth, tenants, arguments.ticks)
                for depth in arguments.depths
                for tenants in arguments.tenants
            }
            result = report(costs, arguments.depths, arguments.tenants)
            result |= {"weights_1_2_4": weights(queue), "noisy_neighbour": noisy_neighbour(queue)}
        finally:
            queue.close()
    print(json.dumps(result))


def measure(queue: Queue, depth: int, tenants: int, ticks: int) -> list[Tick]:
    """Fill the queue, warm up, and give the times of full ticks."""
    queue.fill(depth, [1.0] * tenants)
    queue.ticks(10)
    return queue.ticks(ticks)


def report(
    costs: dict[tuple[int, int], list[Tick]], depths: Sequence[int], tenants: Sequence[int]
) -> dict[str, Any]:
    """Give figures per size, and the cost of the deepest queue over that of the shallowest."""
    sizes = {
        f"{depth}x{number}": {
            "tick_ms_p50": round(statistics.median(tick.wall for tick in times), 1),
            "tick_ms_p99": round(sorted(tick.wall for tick in times)[len(times) * 99 // 100], 1),
            "tick_cpu_ms_p50": round(statistics.median(tick.cpu for tick in times), 1),
            "dispatched_per_s": round(SLOTS * len(times) / sum(tick.wall for tick in times) * 1000),
        }
        for (depth, number), times in costs.items()
    }
    ratios = {
        name: {
            str(number): round(
                statistics.median(getattr(tick, name) for tick in costs[max(depths), number])
                / statistics.median(getattr(tick, name) for tick in costs[min(depths), number]),
                2,
            )
            for number in tenants
        }
        for name in Tick._fields
    }
    return {"benchmark": "dispatch_scale", "sizes": sizes, "cost_ratio_by_tenants": ratios}


def weights(queue: Queue) -> dict[str, float]:
    """Let tenants of weight 1, 2 and 4 take turns for 2,000 starts; the share of each over what is due to it."""
    queue.fill(6_000, [1.0, 2.0, 4.0])
    counts: dict[int, int] = {}
    queue.dispatcher.tick()
    for _ in range(40):
        for tenant, number in queue.running().items():
            counts[tenant] = counts.get(tenant, 0) + number
        queue.free(50)
        queue.dispatcher.tick()
    total = sum(counts.values())
    due = dict(zip(sorted(counts), (1 / 7, 2 / 7, 4 / 7), strict=True))
    return {
        str(number): round(counts[tenant] / total / due[tenant], 3)
        for number, tenant in enumerate(sorted(counts))
    }


def noisy_neighbour(queue: Queue) -> dict[str, float]:
    """Ticks until a tenant's only trial starts: alone with its trial, and behind 200,000 of a neighbour."""
    queue.fill(200_000, [1.0])
    queue.ticks(5)
    waits = []
    for number in range(20):
        row = queue.database.execute(
            "INSERT INTO tenants (name) VALUES (%s) RETURNING id", (f"q{number}",)
        ).fetchone()
        quiet: int = row[0]  # type: ignore[index]  # one row is returned
        queue.add(quiet, 1)
        wait = 0
        while quiet not in queue.running():
            wait += 1
            queue.free(1)
            queue.dispatcher.tick()
        waits.append(wait)
    return {"freed_slots_until_start_p50": statistics.median(waits), "max": max(waits)}


if __name__ == "__main__":
    main()
