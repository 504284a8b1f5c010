"""Live sandboxes over the wire while one part of the installation is killed, away, or wrong about the time.

One stack for all. After each fault everything converges: the sandbox is what the wire says it is, can be deleted, and
leaves neither a process nor a part of the quota.
"""

import os
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from uuid import UUID

import httpx
import pytest
import redis
from sqlalchemy.engine import make_url

from core.ids import new_id
from launcher.service import Service, wait_until_ready
from tests.chaos.harness import ChaosStack, chaos_stack, wait_for
from tests.chaos.judge import sandboxes_left
from tests.chaos.live import CONVERGE_SECONDS, LiveClient, live_problems
from tests.chaos.programs import JUMP_SIGNAL
from tests.support.invariants import InvariantWatch
from tests.support.rotation import of_today
from tests.support.tcp_proxy import TcpProxy, tcp_proxy

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

RUNTIME = "local" if os.geteuid() == 0 else "fake"
TENANT = "live"
AWAY_SECONDS = 3.0
"""More than a lease of this stack."""
SLOW = "sleep:3"
"""Of a step: it goes on when the API has answered that it waits no longer, in the middle of what happens meanwhile."""


@pytest.fixture(scope="module")
def ways(tmp_path_factory) -> Iterator[tuple[ChaosStack, dict[str, TcpProxy]]]:
    """A stack whose programs reach the database and the broker by proxies."""
    home = tmp_path_factory.mktemp("live-faults") / "home"
    with chaos_stack(home, runtimes=(RUNTIME,)) as stack:
        ports = (stack.services.postgres.port, stack.services.valkey.port)
        with tcp_proxy(*ports) as (postgres, valkey):
            database = make_url(stack.database_url).set(port=postgres.port)
            urls = (
                database.render_as_string(hide_password=False),
                stack.redis_url.replace(f":{ports[1]}/", f":{valkey.port}/"),
            )
            stack.urls = lambda _name: urls
            stack.add_tenant(TENANT, max_running=4)
            yield stack, {"postgres": postgres, "valkey": valkey}
            for proxy in (postgres, valkey):
                proxy.heal()
            stack.end_sandboxes()


@pytest.fixture
def stack(ways) -> Iterator[ChaosStack]:
    """All programs run, and unbroken; afterwards the invariants hold."""
    made = ways[0]
    made.chaos = lambda _name: {}
    for name in ("api", "worker-a", "scheduler-1"):
        replace(made, name)
    made.wait_ready()
    yield made
    violations = InvariantWatch(made.database_url).ask(live=False)
    assert [str(each) for each in violations] == []


@pytest.fixture
def client(stack) -> LiveClient:
    return LiveClient(stack, TENANT, RUNTIME)


def replace(stack: ChaosStack, name: str, armed: str = "") -> None:
    """Start a program anew. armed: what breaks it."""
    if name in stack.programs:
        stack.end(name)
    stack.start(name, armed=armed)
    if name == "api":
        wait_for(stack._answers, what="the API")


def delete(client: LiveClient, sandbox_id: UUID) -> None:
    """Delete one that runs; nothing of it is left, and everybody says so."""
    client.delete(sandbox_id)
    is_deleted(client, sandbox_id)


def is_deleted(client: LiveClient, sandbox_id: UUID) -> None:
    record = client.until_state(sandbox_id, "Terminated")
    assert record["endReason"] == "SANDBOX_DELETED"
    assert live_problems(client, sandbox_id) == []
    assert client.ask("GET", f"/sandboxes/{sandbox_id}").status_code == 404


def is_running(client: LiveClient, sandbox_id: UUID) -> None:
    """It runs, by the word of the wire and by the runtime's own list."""
    client.until_state(sandbox_id, "Running")
    assert sandbox_id in client.listed()
    assert sandboxes_left(client.stack) == []  # what its list has are sandboxes of attempts that live


def count(stack: ChaosStack) -> list[int]:
    tables = ("batches", "jobs", "trials", "sandbox_sessions", "idempotency")
    return [stack.rows(f"SELECT count(*)::int AS n FROM {table}")[0]["n"] for table in tables]


def test_create_whose_request_is_cut_before_its_commit_leaves_nothing(stack, client):
    before = count(stack), client.listed()
    replace(stack, "api", "api.before_commit:kill9")
    key = str(new_id())
    with pytest.raises(httpx.HTTPError):
        client.call("POST", "/sandboxes", json=client.body(), headers={"Idempotency-Key": key})
    wait_for(lambda: stack.has_ended("api"), what="the end of the API")
    stack.keep_up()
    wait_for(stack._answers, what="the API")
    assert (count(stack), client.listed()) == before
    sandbox_id = client.create(key=key)
    is_running(client, sandbox_id)
    delete(client, sandbox_id)


def test_create_whose_answer_is_lost_is_there_once(stack, client):
    replace(stack, "api", "api.after_commit:kill9")
    before = client.listed()
    stack_rows = count(stack)
    key, body = str(new_id()), client.body()
    with pytest.raises(httpx.HTTPError):
        client.call("POST", "/sandboxes", json=body, headers={"Idempotency-Key": key})
    wait_for(lambda: stack.has_ended("api"), what="the end of the API")
    stack.keep_up()
    (made,) = client.listed() - before
    again = client.ask("POST", "/sandboxes", json=body, headers={"Idempotency-Key": key})
    assert (again.status_code, again.headers.get("Idempotent-Replayed")) == (202, "true")
    assert UUID(again.json()["id"]) == made
    assert count(stack) == [rows + 1 for rows in stack_rows]
    is_running(client, made)
    delete(client, made)


def test_start_goes_on_while_the_api_is_away(stack, client):
    replace(stack, "worker-a", f"session.before_create:{SLOW}")
    sandbox_id = client.create()
    assert client.record(sandbox_id)["status"]["state"] == "Pending"
    stack.end("api")
    sql = "SELECT state FROM sandbox_sessions WHERE trial_id = %(id)s"
    wait_for(lambda: stack.rows(sql, id=sandbox_id)[0]["state"] == "Running", what="its start", seconds=60)
    replace(stack, "api")
    is_running(client, sandbox_id)
    delete(client, sandbox_id)


def test_delete_whose_request_is_cut_before_its_commit_has_no_effect(stack, client):
    sandbox_id = client.create()
    is_running(client, sandbox_id)
    replace(stack, "api", "api.before_commit:kill9")
    with pytest.raises(httpx.HTTPError):
        client.call("DELETE", f"/sandboxes/{sandbox_id}")
    wait_for(lambda: stack.has_ended("api"), what="the end of the API")
    stack.keep_up()
    is_running(client, sandbox_id)
    delete(client, sandbox_id)


def test_delete_whose_answer_is_lost_is_done(stack, client):
    sandbox_id = client.create()
    is_running(client, sandbox_id)
    replace(stack, "api", "api.after_commit:kill9")
    with pytest.raises(httpx.HTTPError):
        client.call("DELETE", f"/sandboxes/{sandbox_id}")
    wait_for(lambda: stack.has_ended("api"), what="the end of the API")
    stack.keep_up()
    is_deleted(client, sandbox_id)
    client.delete(sandbox_id)  # again is no error


def kill_for_a_while(service: Service) -> None:
    """Kill it with all its processes, as a power cut does; it is back some seconds later."""
    assert service.child is not None
    service.child.kill()
    time.sleep(AWAY_SECONDS)
    service.start()
    wait_until_ready([service])


def hold_for_a_while(proxy: TcpProxy) -> None:
    """Let nothing through, and tell nobody, as a paused server does."""
    proxy.hold()
    time.sleep(AWAY_SECONDS)
    proxy.heal()


def flush(stack: ChaosStack) -> None:
    with redis.Redis.from_url(stack.redis_url, socket_timeout=5) as broker:
        broker.flushall()


FAULTS: dict[str, Callable[[ChaosStack, dict[str, TcpProxy]], None]] = {
    "postgres-killed": lambda stack, _: kill_for_a_while(stack.services.postgres),
    "postgres-paused": lambda _, proxies: hold_for_a_while(proxies["postgres"]),
    "valkey-killed": lambda stack, _: kill_for_a_while(stack.services.valkey),
    "valkey-paused": lambda _, proxies: hold_for_a_while(proxies["valkey"]),
    "valkey-flushed": lambda stack, _: flush(stack),
}


@pytest.mark.parametrize("fault", of_today(FAULTS, count=2))
def test_servers_may_be_away_in_the_middle_of_a_create_and_of_a_delete(ways, stack, client, fault):
    replace(stack, "worker-a", f"session.before_create:{SLOW},session.before_remove:{SLOW}")
    sandbox_id = client.create()
    assert client.record(sandbox_id)["status"]["state"] == "Pending"
    FAULTS[fault](*ways)
    is_running(client, sandbox_id)
    client.delete(sandbox_id)
    assert client.record(sandbox_id)["status"]["state"] == "Stopping"
    FAULTS[fault](*ways)
    is_deleted(client, sandbox_id)


@pytest.mark.parametrize("fault", of_today(FAULTS, count=2))
def test_create_that_meets_the_fault_is_answered_truly(ways, stack, client, fault):
    """The request itself meets it: 202 after a repeat under its key, and one sandbox."""
    before = count(stack)
    if fault == "valkey-flushed":
        FAULTS[fault](*ways)
    else:
        service = getattr(stack.services, fault.partition("-")[0])
        if fault.endswith("killed"):
            service.child.kill()
        else:
            ways[1][fault.partition("-")[0]].hold()
    key, body = str(new_id()), client.body()
    statuses = set()
    for _ in range(2):
        try:
            answer = client.call("POST", "/sandboxes", json=body, headers={"Idempotency-Key": key})
            statuses.add(answer.status_code)
        except httpx.ReadTimeout:
            statuses.add(0)
    assert statuses <= {0, 202, 503}
    if fault.endswith("killed"):
        service.start()
        wait_until_ready([service])
    for proxy in ways[1].values():
        proxy.heal()
    answer = client.ask("POST", "/sandboxes", json=body, headers={"Idempotency-Key": key})
    assert answer.status_code == 202
    assert count(stack) == [rows + 1 for rows in before]
    sandbox_id = UUID(answer.json()["id"])
    is_running(client, sandbox_id)
    delete(client, sandbox_id)


def test_what_is_asked_for_while_no_scheduler_is_there_is_done_by_the_next(stack, client):
    stack.end("scheduler-1")
    sandbox_id = client.create()
    assert client.record(sandbox_id)["status"]["state"] == "Pending"
    deleted = client.create()
    delete(client, deleted)  # nobody has it, so it is over at once
    stack.start("scheduler-1")
    is_running(client, sandbox_id)
    stack.end("scheduler-1")
    client.delete(sandbox_id)
    record = client.until_state(sandbox_id, "Terminated")
    assert record["endReason"] == "SANDBOX_DELETED"
    stack.start("scheduler-1")
    assert live_problems(client, sandbox_id) == []


def test_renewals_outlive_the_api_and_the_scheduler(stack, client):
    """B-002: each of two sandboxes ends at its newer expiry, and at no other, after both were killed."""
    longer, shorter = client.create(), client.create()
    for sandbox_id in (longer, shorter):
        is_running(client, sandbox_id)
    old = datetime.now(UTC) + timedelta(seconds=15)
    late, early = old + timedelta(seconds=600), datetime.now(UTC) + timedelta(seconds=10)
    for sandbox_id, expiries in {longer: (old, late), shorter: (late, early)}.items():
        for expiry in expiries:
            assert renew(client, sandbox_id, expiry).status_code == 200
    for name in ("api", "scheduler-1"):
        stack.end(name)
    for name in ("api", "scheduler-1"):
        replace(stack, name)
    record = client.until_state(shorter, "Terminated")
    assert record["endReason"] == "SANDBOX_EXPIRED"
    assert datetime.fromisoformat(record["endedAt"]) >= early
    # One that ends at the first expiry of the longer, or later, shows that what had expired by then was looked for.
    third = client.create()
    assert renew(client, third, max(old, datetime.now(UTC) + timedelta(seconds=1))).status_code == 200
    client.until_state(third, "Terminated")
    is_running(client, longer)
    assert datetime.fromisoformat(client.record(longer)["expiresAt"]) == late
    # And the newer one counts.
    soon = datetime.now(UTC) + timedelta(seconds=1)
    assert renew(client, longer, soon).status_code == 200
    for name in ("api", "scheduler-1"):
        replace(stack, name)
    assert client.until_state(longer, "Terminated")["endReason"] == "SANDBOX_EXPIRED"
    for sandbox_id in (longer, shorter, third):
        assert live_problems(client, sandbox_id) == []


HOURS = 6 * 3600.0
APART = {"api": HOURS, "worker-a": -HOURS, "scheduler-1": 2 * HOURS}
CLOCKS = {
    "wrong": ("skew_seconds", APART),
    "wrong-otherwise": ("skew_seconds", {name: -seconds for name, seconds in APART.items()}),
    "jumping-ahead": ("jump_seconds", dict.fromkeys(APART, HOURS)),
    "jumping-back": ("jump_seconds", dict.fromkeys(APART, -HOURS)),
}


@pytest.mark.parametrize("clock", of_today(CLOCKS, count=2))
def test_clocks_of_the_programs_count_for_nothing(stack, client, clock):
    """Expiry, renewal and states go by the database's clock alone. jumping: somebody sets the clocks meanwhile."""
    kind, shifts = CLOCKS[clock]
    stack.chaos = lambda name: {kind: shifts[name]}
    for name in shifts:
        replace(stack, name)
    stack.wait_ready()
    short, long = client.create(), client.create()
    for sandbox_id in (short, long):
        is_running(client, sandbox_id)
    if kind == "jump_seconds":
        for name in shifts:
            stack.kill(name, JUMP_SIGNAL)
    made = client.record(short)
    created, expires = (datetime.fromisoformat(made[key]) for key in ("createdAt", "expiresAt"))
    assert expires - created == timedelta(seconds=600)
    assert abs(datetime.now(UTC) - created) < timedelta(minutes=2)
    past = renew(client, short, datetime.now(UTC) - timedelta(seconds=1))
    assert (past.status_code, past.json()["code"]) == (400, "DOCKER::INVALID_EXPIRATION")
    soon = datetime.now(UTC) + timedelta(seconds=8)
    assert renew(client, short, soon).status_code == 200
    record = client.until_state(short, "Terminated")
    assert record["endReason"] == "SANDBOX_EXPIRED"
    assert datetime.fromisoformat(record["endedAt"]) >= soon
    assert live_problems(client, short) == []
    # By now each program has looked for what has expired, more than once.
    is_running(client, long)
    assert client.record(long)["status"]["reason"] == "CONTAINER_RUNNING"
    delete(client, long)


def test_node_whose_clock_is_wrong_ends_at_the_right_time_without_a_scheduler(stack, client):
    stack.chaos = lambda _name: {"skew_seconds": -HOURS}
    replace(stack, "worker-a")
    stack.wait_ready()
    sandbox_id = client.create()
    is_running(client, sandbox_id)
    stack.end("scheduler-1")
    soon = datetime.now(UTC) + timedelta(seconds=2)
    assert renew(client, sandbox_id, soon).status_code == 200
    record = client.until_state(sandbox_id, "Terminated", seconds=CONVERGE_SECONDS)
    assert record["endReason"] == "SANDBOX_EXPIRED"
    assert record["endedBy"].startswith("worker:")
    assert datetime.fromisoformat(record["endedAt"]) >= soon
    stack.start("scheduler-1")
    assert live_problems(client, sandbox_id) == []


def renew(client: LiveClient, sandbox_id: UUID, at: datetime) -> httpx.Response:
    return client.ask("POST", f"/sandboxes/{sandbox_id}/renew-expiration", json={"expiresAt": at.isoformat()})
