"""A page of 10,000 live sandboxes through the API, beside a bare SELECT of as many rows in the same run."""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import psycopg
from fastapi.testclient import TestClient
from psycopg.types.json import Jsonb
from pydantic import SecretStr

from api.app import create_app
from benchmarks.timing import median
from core.config import Settings
from core.database import create_database_engine
from core.ids import new_id
from launcher.embedded import embedded_services
from migrations.migrate import upgrade
from services.tenants import create_api_key, ensure_tenant

PAGE = 200
BARE = """
SELECT * FROM sandbox_sessions WHERE tenant_id = %s AND hidden_at IS NULL
ORDER BY created_at DESC, trial_id DESC LIMIT 200
"""
FILL = """
WITH ids AS MATERIALIZED (SELECT n, gen_random_uuid() AS id FROM generate_series(1, %(count)s) n),
trial AS (
  INSERT INTO trials (id, tenant_id, batch_id, job_id, index, runtime, cpu_millicores, memory_bytes, slots)
  SELECT id, %(tenant)s, %(batch)s, %(job)s, n, 'fake', 100, 1 << 28, 0 FROM ids RETURNING id
)
INSERT INTO sandbox_sessions (trial_id, tenant_id, image, entrypoint, metadata, extensions, state_reason, expires_at,
                              access_token, created_at)
SELECT i.id, %(tenant)s, 'python:3.12', '{tail,-f,/dev/null}',
       jsonb_build_object('user', 'u' || n %% 100, 'task', 't' || n), '{}', 'SANDBOX_ACCEPTED',
       clock_timestamp() + interval '1 h', 'token', clock_timestamp() - n * interval '1 s'
FROM ids i JOIN trial t ON t.id = i.id
"""
QUERIES = {
    "first_page": "",
    "middle_page": "&page=25",
    "one_state": "&state=pending",
    "by_metadata": f"&metadata={quote('user=u7')}",
}


def main() -> None:
    """Fill a database, ask, and print milliseconds (median, wall and CPU of this process) and ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, embedded_services(Path(folder)) as services:
        upgrade(services.database_url)
        result = _measure(
            services.database_url, services.redis_url, Path(folder), options.count, options.rounds
        )
    print(json.dumps(result))


def _measure(database_url: str, redis_url: str, home: Path, count: int, rounds: int) -> dict[str, float]:
    engine = create_database_engine(database_url, actor="benchmark", pool_size=1)
    with engine.begin() as connection:
        tenant = ensure_tenant(connection, "bench")
        key = create_api_key(connection, tenant, "bench")
    engine.dispose()
    settings = Settings(
        database_url=SecretStr(database_url), redis_url=SecretStr(redis_url), home=home, log_level="error"
    )
    result: dict[str, float] = {}
    headers = {"OPEN-SANDBOX-API-KEY": key}
    with (
        psycopg.connect(database_url, autocommit=True) as database,
        TestClient(create_app(settings)) as client,
    ):
        _fill(database, tenant, count)
        bare = _times(lambda: database.execute(BARE, (tenant,)).fetchall(), rounds)
        result["bare_select_ms"] = round(median([wall for wall, _ in bare]), 2)
        for name, query in QUERIES.items():
            times = _times(
                lambda query=query: client.get(  # type: ignore[misc]
                    f"/v1/sandboxes?pageSize={PAGE}{query}", headers=headers
                ).raise_for_status(),
                rounds,
            )
            result[f"{name}_ms"] = round(median([wall for wall, _ in times]), 2)
            result[f"{name}_cpu_ms"] = round(median([cpu for _, cpu in times]), 2)
            result[f"{name}_per_bare"] = round(result[f"{name}_ms"] / result["bare_select_ms"], 1)
    return result


def _fill(database: "psycopg.Connection[tuple[object, ...]]", tenant: int, count: int) -> None:
    batch, job = new_id(), new_id()
    database.execute(
        "INSERT INTO batches (id, tenant_id, implicit, is_session, job_count, trial_count)"
        " VALUES (%s, %s, true, true, 1, %s)",
        (batch, tenant, count),
    )
    database.execute(
        "INSERT INTO jobs (id, tenant_id, batch_id, ordinal, key, kind, digest, spec, trial_count)"
        " VALUES (%s, %s, %s, 0, 'sandbox', 'session', 'd', %s, %s)",
        (job, tenant, batch, Jsonb({}), count),
    )
    database.execute(FILL, {"tenant": tenant, "batch": batch, "job": job, "count": count})
    database.execute("VACUUM ANALYZE sandbox_sessions")


def _times(action: Callable[[], object], rounds: int) -> list[tuple[float, float]]:
    """Give milliseconds by the clock and on the processor, after one round that does not count."""
    action()
    found = []
    for _ in range(rounds):
        wall, cpu = time.perf_counter(), time.process_time()
        action()
        found.append((1000 * (time.perf_counter() - wall), 1000 * (time.process_time() - cpu)))
    return found


if __name__ == "__main__":
    main()
