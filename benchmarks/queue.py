"""How much the durable queue costs, against plain Celery on the same Redis in the same run."""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, LiteralString

import httpx
import psycopg
import redis

from launcher.stack import Stack, StackConfig

ROOT = Path(__file__).resolve().parent.parent
SLOTS = 64
STORM = 10_000
DEADLINE_SECONDS = 120.0


def main() -> None:
    """Run all measurements and print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=2000, help="no-op trials per round")
    parser.add_argument("--repeat", type=int, default=3, help="rounds of each side, taken in turn")
    arguments = parser.parse_args()
    environment = {
        "SANDMILL_RUNTIME": "fake",
        "SANDMILL_RUNTIMES": '["fake", "local"]',
        "SANDMILL_WORKER_SLOTS": str(SLOTS),
        "SANDMILL_WORKER_CPU_MILLICORES": "1000000",
        "SANDMILL_WORKER_MEMORY_BYTES": str(1 << 40),
        "SANDMILL_LOG_LEVEL": "warning",
    }
    with tempfile.TemporaryDirectory(prefix="sandmill-bench-") as home:
        config = StackConfig(home=Path(home), with_flower=False, environment=environment)
        with Stack(config) as stack:
            print(json.dumps(measure(stack, arguments.trials, arguments.repeat)))


def measure(stack: Stack, trials: int, repeat: int) -> dict[str, Any]:
    """Take both sides in turn, so that a busy minute hits both."""
    ours, reference = [], []
    with httpx.Client(
        base_url=stack.api_url, headers={"Authorization": f"Bearer {stack.api_key}"}, timeout=60
    ) as api:
        run_noops(stack, api, 200)  # warm
        inserts = [insert_seconds(api, stack) for _ in range(repeat)]
        latencies = [submit_to_step_ms(stack, api, {"image": "fake"}) for _ in range(30)]
        # A whole core: what a tenth of one does to the start of the sandbox is another question.
        local = {"image": "host", "runtime": "local", "resources": {"cpu": 1, "memory_mb": 256}}
        real_latencies = [submit_to_step_ms(stack, api, local) for _ in range(30)]
        for _ in range(repeat):
            ours.append(run_noops(stack, api, trials))
            with celery_worker(stack):
                reference.append(drain_celery(stack, trials))
        storm = cancel_storm_seconds(stack, api)
        memory = waiting_slot_kib(stack, api)
    with celery_worker(stack):
        round_trips = celery_round_trips_ms(stack)
    with celery_worker(stack, concurrency=SLOTS):
        celery_memory = celery_waiting_slot_kib(stack)
    return {
        "benchmark": "queue",
        "trials": trials,
        "noop_per_s": [round(value) for value in ours],
        "celery_noop_per_s": [round(value) for value in reference],
        "ratio": round(statistics.median(ours) / statistics.median(reference), 3),
        "submit_to_step_ms_p50": round(statistics.median(latencies), 1),
        "submit_to_step_local_ms_p50": round(statistics.median(real_latencies), 1),
        "celery_round_trip_ms_p50": round(statistics.median(round_trips), 2),
        "insert_1000_jobs_s": round(statistics.median(inserts), 3),
        **{name: round(seconds, 2) for name, seconds in storm.items()},
        "waiting_slot_kib": round(memory),
        "celery_waiting_slot_kib": round(celery_memory),
    }


def batch_of(jobs: int, trials: int, *, run: str = "true") -> dict[str, Any]:
    """Make a batch of jobs that do nothing, or what `run` says."""
    step = {"name": "run", "run": run}
    return {
        "jobs": [
            {
                "key": f"noop-{number}",
                "image": "fake",
                "steps": [step],
                "resources": {"cpu": 0.1, "memory_mb": 64},
                "trials": {"count": trials},
            }
            for number in range(jobs)
        ]
    }


def run_noops(stack: Stack, api: httpx.Client, trials: int) -> float:
    """Queue trials while the node takes none, let it go, and give trials per second from 10 % to 90 % of them."""
    with psycopg.connect(stack.database_url, autocommit=True) as database:
        database.execute("UPDATE nodes SET cordoned_at = now()")
        reply = api.post("/v1/batches", json=batch_of(10, trials // 10))
        reply.raise_for_status()
        batch = reply.json()["id"]
        database.execute("UPDATE nodes SET cordoned_at = NULL")
        deadline = time.monotonic() + DEADLINE_SECONDS
        while time.monotonic() < deadline:
            row = database.execute(
                "SELECT count(*) FROM trials WHERE batch_id = %s AND state <> 'finished'", (batch,)
            )
            if row.fetchone() == (0,):
                break
            time.sleep(0.2)
        rows = database.execute(
            "SELECT extract(epoch FROM finished_at)::float8 FROM trials"
            " WHERE batch_id = %s AND outcome = 'passed' ORDER BY 1",
            (batch,),
        ).fetchall()
    times = [row[0] for row in rows]
    if len(times) != trials // 10 * 10:
        sys.exit(f"only {len(times)} of {trials} trials passed in time")
    low, high = len(times) // 10, len(times) * 9 // 10
    return (high - low) / (times[high] - times[low])


def insert_seconds(api: httpx.Client, stack: Stack) -> float:
    """Time the insert of 1,000 jobs as an evaluation has them, then wait until they are gone."""
    batch = batch_of(1000, 1)
    for job in batch["jobs"]:
        job["steps"] = [
            {"name": "setup", "role": "setup", "run": "true"},
            {"name": "verify", "role": "verify", "run": "python3 -m unittest -v", "timeout": 60},
        ]
        job["inputs"] = [{"path": "/testbed/patch.diff", "text": "x" * 500, "before": "verify"}]
        tests = [f"t.T.test_{number}" for number in range(20)]
        job["verdict"] = {"from": "log", "parser": "unittest", "fail_to_pass": tests}
    started = time.monotonic()
    reply = api.post("/v1/batches", json=batch)
    reply.raise_for_status()
    took = time.monotonic() - started
    with psycopg.connect(stack.database_url, autocommit=True) as database:
        deadline = time.monotonic() + DEADLINE_SECONDS
        open_trials = "SELECT count(*) FROM trials WHERE state <> 'finished'"
        while time.monotonic() < deadline and database.execute(open_trials).fetchone() != (0,):
            time.sleep(0.1)
    return took


def submit_to_step_ms(stack: Stack, api: httpx.Client, changes: dict[str, Any]) -> float:
    """Submit one job to the idle system; milliseconds from the request to the first step's start.

    changes: which image and runtime.

    The start is the database's clock, which here is the clock of this machine.
    """
    job = {**batch_of(1, 1)["jobs"][0], **changes}
    before = time.time()
    reply = api.post("/v1/jobs", json=job)
    reply.raise_for_status()
    with psycopg.connect(stack.database_url, autocommit=True) as database:
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            row = database.execute(
                "SELECT extract(epoch FROM t.started_at)::float8, t.state FROM trials t WHERE t.job_id = %s",
                (reply.json()["id"],),
            ).fetchone()
            if row is not None and row[1] == "finished":
                return float(1000 * (row[0] - before))
            time.sleep(0.005)
    sys.exit("a single job did not finish within 10 s")


def cancel_storm_seconds(stack: Stack, api: httpx.Client) -> dict[str, float]:
    """Cancel a batch of 10,000 trials while it runs; seconds to the answer and until all have ended.

    The reference is one statement that touches as many rows of the same table.
    """
    reply = api.post("/v1/batches", json=batch_of(10, STORM // 10, run="sleep 30"))
    reply.raise_for_status()
    batch = reply.json()["id"]
    with psycopg.connect(stack.database_url, autocommit=True) as database:
        wait_until(
            database, "SELECT 1 FROM attempts WHERE state = 'running' HAVING count(*) >= %s", (SLOTS // 2,)
        )
        started = time.monotonic()
        api.post(f"/v1/batches/{batch}/cancel", json={"mode": "force"}).raise_for_status()
        answered = time.monotonic() - started
        wait_until(database, "SELECT 1 FROM batches WHERE id = %s AND state = 'finished'", (batch,))
        ended = time.monotonic() - started
        started = time.monotonic()
        database.execute("UPDATE trials SET desired = desired WHERE batch_id = %s", (batch,))
        reference = time.monotonic() - started
    return {"cancel_10k_answered_s": answered, "cancel_10k_ended_s": ended, "update_10k_rows_s": reference}


def wait_until(database: psycopg.Connection[Any], sql: LiteralString, parameters: tuple[Any, ...]) -> None:
    """Ask until a row comes."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while database.execute(sql, parameters).fetchone() is None:
        if time.monotonic() > deadline:
            sys.exit(f"not in time: {sql}")
        time.sleep(0.05)


def waiting_slot_kib(stack: Stack, api: httpx.Client) -> float:
    """Give the memory of the whole worker for each of its slots, while an attempt waits in every one."""
    (worker,) = [service for service in stack.services if service.name == "worker"]
    assert worker.child is not None
    reply = api.post("/v1/batches", json=batch_of(1, SLOTS, run="sleep 300"))
    reply.raise_for_status()
    with psycopg.connect(stack.database_url, autocommit=True) as database:
        wait_until(database, "SELECT 1 FROM attempts WHERE state = 'running' HAVING count(*) >= %s", (SLOTS,))
        busy = proportional_kib(worker.child.pid)
        batch = reply.json()["id"]
        api.post(f"/v1/batches/{batch}/cancel", json={"mode": "force"}).raise_for_status()
        wait_until(database, "SELECT 1 FROM batches WHERE id = %s AND state = 'finished'", (batch,))
    return busy / SLOTS


def celery_waiting_slot_kib(stack: Stack) -> float:
    """Give the same of the reference worker, whose tasks sleep."""
    process: subprocess.Popen[bytes] = celery_worker.process  # type: ignore[attr-defined]
    app, client = celery_app(stack), redis.Redis.from_url(stack.redis_url, socket_timeout=60)
    for _ in range(SLOTS):
        app.send_task("wait", args=(5.0,), queue="celery")
    deadline = time.monotonic() + 30
    while client.llen("reference:celery") and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(1.0)
    return proportional_kib(process.pid) / SLOTS


def proportional_kib(pid: int) -> int:
    """Give the proportional set size of a process."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1])
    sys.exit(f"no Pss of process {pid}")


@contextmanager
def celery_worker(stack: Stack, *, concurrency: int = 8) -> Iterator[None]:
    """Run the reference worker, stopped by SIGSTOP until the caller wakes it by `resume`."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "celery", "-A", "benchmarks.celery_reference", "worker"),
            *(
                "--pool=threads",
                f"--concurrency={concurrency}",
                "--without-gossip",
                "--without-mingle",
                "--loglevel=ERROR",
            ),
        ],
        cwd=ROOT,
        env={**os.environ, "BENCH_REDIS_URL": stack.redis_url, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
    )
    try:
        celery_app(stack).send_task("answer", args=("ready",), queue="celery")
        redis.Redis.from_url(stack.redis_url, socket_timeout=60).blpop(["ready"], timeout=30)
        celery_worker.process = process  # type: ignore[attr-defined]  # the drain stops and continues it
        yield
    finally:
        process.send_signal(signal.SIGCONT)
        process.terminate()
        process.wait(30)


def celery_app(stack: Stack) -> Any:
    """Give the reference application for sending."""
    os.environ["BENCH_REDIS_URL"] = stack.redis_url
    from benchmarks import celery_reference  # noqa: PLC0415 -- needs the URL in the environment

    return celery_reference.app


def drain_celery(stack: Stack, tasks: int) -> float:
    """Fill the queue while the worker is stopped, continue it, and give tasks per second until the queue is empty."""
    process: subprocess.Popen[bytes] = celery_worker.process  # type: ignore[attr-defined]
    app, client = celery_app(stack), redis.Redis.from_url(stack.redis_url, socket_timeout=60)
    process.send_signal(signal.SIGSTOP)
    with app.producer_or_acquire() as producer:
        for _ in range(tasks):
            app.send_task("noop", producer=producer, queue="celery")
    started = time.monotonic()
    process.send_signal(signal.SIGCONT)
    while client.llen("reference:celery") and time.monotonic() - started < DEADLINE_SECONDS:
        time.sleep(0.002)
    return tasks / (time.monotonic() - started)


def celery_round_trips_ms(stack: Stack) -> list[float]:
    """Send a task to the idle worker and wait for its answer, 50 times."""
    app, client = celery_app(stack), redis.Redis.from_url(stack.redis_url, socket_timeout=60)
    times = []
    for number in range(50):
        started = time.monotonic()
        app.send_task("answer", args=(f"answer-{number}",), queue="celery")
        client.blpop([f"answer-{number}"], timeout=10)
        times.append(1000 * (time.monotonic() - started))
    return times


if __name__ == "__main__":
    main()
