"""Processes killed and servers emptied under a running batch: every trial still ends once, and right."""

import base64
import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psycopg
import pytest
import redis

from runtimes.local.records import Records
from runtimes.processes import ProcessRef
from runtimes.registry import local_state
from sandmill import Client, Job, Step, Trials
from tests.support.execd import status_field
from tests.support.running_stack import RunningStack, running_stack

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

SETTINGS = {
    "SANDMILL_LEASE_SECONDS": "30",
    "SANDMILL_LEASE_MARGIN_SECONDS": "5",
    "SANDMILL_LEASE_GRACE_SECONDS": "1",
    "SANDMILL_HEARTBEAT_SECONDS": "0.5",
    "SANDMILL_RERING_SECONDS": "0.5",
    "SANDMILL_CLAIM_TIMEOUT_SECONDS": "5",
    "SANDMILL_CANARY_SECONDS": "1",
    "SANDMILL_WORKER_SLOTS": "4",
}


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    with running_stack(tmp_path_factory.mktemp("faults"), SETTINGS, flower=True) as stack:
        yield stack


def jobs(count: int = 3, seconds: float = 1.0) -> list[Job]:
    """Half pass, half fail, each prints a line at start and end."""
    return [
        Job(
            key=f"job-{number}",
            image="host",
            steps=[Step("run", f"echo start; sleep {seconds}; echo end; exit {number % 2}")],
            trials=Trials(4),
        )
        for number in range(count)
    ]


def settings_of(stack: RunningStack) -> dict[str, str]:
    """Read the stack's settings from its scheduler's environment, as an operator would."""
    (pid,) = stack.pids("-m", "scheduler")
    text = Path(f"/proc/{pid}/environ").read_bytes().decode()
    return dict(entry.split("=", 1) for entry in text.split("\0") if "=" in entry)


def check_batch(client: Client, batch_id: str) -> list:
    """Wait, then demand the right end of every trial; gives the trials."""
    client.wait(batch_id, timeout_seconds=120)
    trials = list(client.iter_trials(batch_id))
    assert {(t.job_key, t.outcome) for t in trials} == {
        ("job-0", "passed"),
        ("job-1", "failed"),
        ("job-2", "passed"),
    }
    assert len(trials) == 12
    return trials


def wait_running(client: Client, batch_id: str) -> None:
    wait_for(lambda: any(t.state == "running" for t in client.iter_trials(batch_id)))
    threading.Event().wait(0.5)


def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds, "not in time"
        threading.Event().wait(0.05)


def sandboxes(stack: RunningStack) -> list[ProcessRef]:
    """Process 1 of each sandbox that runs on the stack's node, whoever started it."""
    records = Records(local_state(stack.home / "runtimes") / "sandboxes").all()
    return [record.init for record in records if record.init is not None and record.is_alive]


def test_invariants_hold_after_each_fault(stack: RunningStack):
    """One batch per fault, one stack for all; the invariants are asked of the database at the end."""
    with stack.client() as client:
        for fault in (
            kill_worker,
            replace_worker,
            kill_scheduler,
            flush_redis,
            kill_redis,
            kill_postgres,
            kill_api,
        ):
            batch = client.submit_batch(jobs())
            wait_running(client, batch.id)
            fault(stack)
            trials = check_batch(client, batch.id)
            losses = sum(trial.infra_losses for trial in trials)
            # Only a database that is away for long costs attempts: what a worker ran, the next one goes on with.
            assert fault is kill_postgres or losses == 0, fault.__name__
        wait_for(lambda: not sandboxes(stack))
    check_invariants(settings_of(stack)["DATABASE_URL"])


def kill_worker(stack: RunningStack) -> None:
    stack.kill("-m", "workers")


def replace_worker(stack: RunningStack) -> None:
    stack.kill("-m", "workers", number=signal.SIGTERM)


def kill_scheduler(stack: RunningStack) -> None:
    stack.kill("-m", "scheduler")


def kill_api(stack: RunningStack) -> None:
    stack.kill("api.app:create_app")


def kill_redis(stack: RunningStack) -> None:
    stack.kill("valkey")


def kill_postgres(stack: RunningStack) -> None:
    stack.kill("postgres", "-D")


def flush_redis(stack: RunningStack) -> None:
    with redis.Redis.from_url(settings_of(stack)["REDIS_URL"]) as client:
        client.flushall()


INVARIANTS = {
    "a trial has more than one end": """
        SELECT trial_id FROM trial_events WHERE subject = 'trial' AND to_state = 'finished'
        GROUP BY trial_id HAVING count(*) > 1""",
    "a trial is not finished": "SELECT id FROM trials WHERE state <> 'finished'",
    "an attempt is live": "SELECT id FROM attempts WHERE state NOT IN ('finished', 'lost', 'never_started')",
    "a sandbox is not removed": """
        SELECT name FROM sandboxes b JOIN attempts a USING (trial_id, fence)
        WHERE b.state <> 'removed' AND a.state <> 'never_started'""",
    "attempts of one trial overlap": """
        SELECT a.id FROM attempts a JOIN attempts b ON a.trial_id = b.trial_id AND a.fence < b.fence
        WHERE a.finished_at > b.claimed_at""",
    "a fence is used twice": "SELECT trial_id FROM attempts GROUP BY trial_id, fence HAVING count(*) > 1",
    "a log has a gap": """
        SELECT h.trial_id FROM log_heads h LEFT JOIN log_chunks c USING (trial_id, fence)
        GROUP BY h.trial_id, h.fence, h.next_seq HAVING count(c.seq) <> h.next_seq""",
    "events do not lead to the present state": """
        SELECT t.id FROM trials t WHERE t.state <> (
          SELECT to_state FROM trial_events e WHERE e.trial_id = t.id AND subject = 'trial' ORDER BY n DESC LIMIT 1)""",
}


def check_invariants(url: str) -> None:
    with contextlib.closing(psycopg.connect(url)) as connection:
        for meaning, query in INVARIANTS.items():
            assert connection.execute(query).fetchall() == [], meaning


def test_flower_shows_the_worker(stack: RunningStack):
    url = urlsplit(stack.flower_url)
    auth = (url.username or "", url.password or "")
    base = f"http://{url.hostname}:{url.port}"
    assert httpx.get(f"{base}/workers", auth=("x", "y")).status_code == 401

    def sees_worker() -> bool:
        answer = httpx.get(f"{base}/workers", params={"json": "1"}, auth=auth, timeout=10)
        workers = answer.json()["data"]
        return any(worker["hostname"].startswith("worker-") and worker["status"] for worker in workers)

    wait_for(sees_worker)


@pytest.mark.parametrize("mode", ["graceful", "force"])
def test_cancel_reaches_the_processes(stack: RunningStack, mode):
    with stack.client() as client:
        script = "trap '' TERM; setsid sleep 300 & sleep 301; sleep 302"
        job = Job(key="stubborn", image="host", steps=[Step("run", script)], timeouts=None)
        batch_id = client.submit_job(job).batch_id
        wait_running(client, batch_id)
        assert sandboxes(stack)
        client.cancel(batch_id, mode=mode)
        client.wait(batch_id, timeout_seconds=30)
        (trial,) = client.iter_trials(batch_id)
        assert trial.outcome == "cancelled"
        wait_for(lambda: not sandboxes(stack), seconds=5)


FORGED = [
    b"garbage",
    b"",
    b"[]",
    b"null",
    b'{"body": "%%%", "properties": {}}',
    b'{"body": "e30=", "properties": null, "headers": {}}',
    json.dumps(
        {
            "body": base64.b64encode(b'[["not-a-uuid", "x"], {}, {}]').decode(),
            "content-encoding": "utf-8",
            "content-type": "application/json",
            "headers": {"task": "attempt.run", "id": "1", "lang": "py"},
            "properties": {
                "delivery_info": {"exchange": "", "routing_key": "x"},
                "delivery_tag": "t",
                "body_encoding": "base64",
            },
        }
    ).encode(),
    json.dumps(
        {
            "body": base64.b64encode(b"cos\nsystem\n(S'touch /tmp/pwned'\ntR.").decode(),
            "content-encoding": "binary",
            "content-type": "application/x-python-serialize",
            "headers": {"task": "attempt.run", "id": "2", "lang": "py"},
            "properties": {"delivery_info": {}, "delivery_tag": "u", "body_encoding": "base64"},
        }
    ).encode(),
]


def node_queue(stack: RunningStack) -> str:
    return "sandmill:node." + (stack.home / "node" / "node.id").read_text().strip()


def test_forged_messages_are_dropped_and_the_worker_works_on(stack: RunningStack):
    before = stack.pids("-m", "workers")
    with redis.Redis.from_url(settings_of(stack)["REDIS_URL"]) as broker, stack.client() as client:
        batch = client.submit_batch(jobs())
        wait_running(client, batch.id)
        broker.lpush(node_queue(stack), *FORGED)
        trials = check_batch(client, batch.id)
        assert sum(trial.infra_losses for trial in trials) == 0
    assert stack.pids("-m", "workers") == before
    assert not Path("/tmp/pwned").exists()


def test_spoilt_queue_only_slows_the_node_down(stack: RunningStack):
    with redis.Redis.from_url(settings_of(stack)["REDIS_URL"]) as broker, stack.client() as client:
        broker.delete(node_queue(stack))
        broker.set(node_queue(stack), "not a list")
        try:
            check_batch(client, client.submit_batch(jobs(seconds=0.1)).id)
        finally:
            broker.delete(node_queue(stack))


def test_two_schedulers_at_once_do_no_harm(stack: RunningStack):
    command = [sys.executable, "-m", "scheduler"]
    second = subprocess.Popen(command, env=settings_of(stack), stderr=subprocess.DEVNULL)
    try:
        # It is one of the two once it waits for signals.
        wait_for(lambda: int(status_field(second.pid, "SigCgt"), 16) & 1 << (signal.SIGTERM - 1), seconds=30)
        with stack.client() as client:
            batch = client.submit_batch(jobs(seconds=0.2))
            check_batch(client, batch.id)
    finally:
        second.terminate()
        assert second.wait(20) == 0
    check_invariants(settings_of(stack)["DATABASE_URL"])


def worker_pids(stack: RunningStack) -> set[int]:
    """Flower, too, is told of the package."""
    return set(stack.pids("-m", "workers")) - set(stack.pids("flower"))


def test_worker_that_takes_no_bells_any_more_is_started_anew(stack):
    """Its heart beats and its lease holds; only the command by which it takes messages is refused."""
    url = urlsplit(settings_of(stack)["REDIS_URL"])
    with redis.Redis.from_url(url.geturl()) as broker:
        (before,) = worker_pids(stack)
        broker.execute_command("ACL", "SETUSER", "default", "-brpop")
        try:
            wait_for(lambda: worker_pids(stack) not in ({before}, set()))
        finally:
            broker.execute_command("ACL", "SETUSER", "default", "+brpop")
    with stack.client() as client:
        check_batch(client, client.submit_batch(jobs(seconds=0.1), name="after the deaf").id)
