"""Abuse and accidents of the queue and its API (threat model, T68 and T82 to T98), against one running installation.

Sizes are the model's for T68; elsewhere there are as few as show the rule. The other cases are shown by:

| case | by |
|---|---|
| T14 to T24 | `tests/security/test_exhaustion.py`, `test_commands.py` |
| T44 | `tests/integration/execd/test_background.py`; of submissions `tests/integration/api/test_batches.py` |
| T82 | `tests/chaos` (a kill at every failpoint of the worker), `tests/e2e/test_faults.py` |
| T83 | below, and `tests/chaos` (`api.after_commit`) |
| T84, T88 | `tests/e2e/test_faults.py`, `test_restart.py`, `tests/integration/api/test_deadline.py` |
| T86 | `tests/pain/test_queue.py` (B-110) |
| T87 | of the database: below; of the home: `tests/integration/launcher/test_home.py` |
| T90 | `tests/integration/api/test_deadline.py`, `test_operation.py`, `test_lease.py`; longer ones: `tests/chaos` |
| T92, T93 | `tests/integration/runtimes/test_cycles.py`, `test_leftovers.py`, `test_image_pull.py` |
| T94 | below, `tests/unit/core/test_secret_rules.py`, `tests/unit/core/test_failpoints.py` |
| T95 | below; of Compose `tests/integration/compose/test_compose_file.py` |
| T96, T97 | below, and `tests/e2e/test_faults.py` |
| T98 | below, `tests/integration/api/test_errors.py`, `tests/e2e/test_traces.py` |

T91 is shown for trials and batches; sandboxes get lifecycle calls of their own with the sandbox API.
"""

import base64
import contextlib
import json
import socket
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote, urlsplit

import httpx
import psycopg
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from core.broker import create_celery
from launcher.errors import StartupError
from launcher.external import check_external_postgres, check_external_redis
from tests.support.installation import Installation, fake, installation, local, wait_for
from tests.support.receiver import Receiver

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

SPANS = "/v1/traces"


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    collector = Receiver((200, {}))
    with collector:
        settings = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.port}",
            "OTEL_BSP_SCHEDULE_DELAY": "200",
            "SANDMILL_CELERY_TASK_EVENTS": "true",
        }
        with installation(tmp_path_factory.mktemp("security"), **settings) as running:
            running.spans = collector.messages
            yield running


def outcomes(home: Installation, batch: str, seconds: float = 60) -> dict[str, int]:
    return home.wait(batch, seconds=seconds)["trials"]["by_outcome"]


@pytest.mark.parametrize("way", ["submit", "append", "retry"])
def test_a_limit_of_ten_waiting_trials_lets_exactly_ten_of_200_in(home: Installation, way: str):
    """T68: whoever comes in between, and by every way in; what is refused leaves its place to others."""
    tenant = f"crowd-{way}"
    http = home.new_tenant(tenant)
    with http, ThreadPoolExecutor(40) as pool:
        open_batches = []
        if way == "append":
            open_batches = [
                http.post("/v1/batches", json={"jobs": [], "open": True}).json()["id"] for _ in range(20)
            ]
        elif way == "retry":
            # Each in a batch of its own: retries in one batch wait for each other anyway.
            open_batches = [home.submit(fake("exit 1"), http=http) for _ in range(40)]
            wait_for(lambda: waiting(home, tenant) == [])
        assert home.admin.post(f"/v1/admin/tenants/{tenant}/pause").status_code == 200
        home.admin.patch(f"/v1/admin/tenants/{tenant}", json={"max_queued": 10})

        def ask(number: int) -> httpx.Response:
            if way == "submit":
                return http.post("/v1/jobs", json=fake())
            if way == "append":
                place = open_batches[number % len(open_batches)]
                return http.post(f"/v1/batches/{place}/jobs", json={"jobs": [fake(key=f"k{number}")]})
            return http.post(f"/v1/batches/{open_batches[number]}/retry", json={"outcomes": ["failed"]})

        answers = list(pool.map(ask, range(40 if way == "retry" else 200)))
        accepted = [answer for answer in answers if answer.is_success]
        refused = [answer for answer in answers if not answer.is_success]
        assert len(accepted) == 10, sorted({answer.status_code for answer in answers})
        assert {answer.status_code for answer in refused} == {429}
        assert all(int(answer.headers["Retry-After"]) > 0 for answer in refused)
        assert {answer.json()["code"] for answer in refused} == {"quota_exceeded"}
        for batch in {row["batch_id"] for row in waiting(home, tenant)}:
            assert http.post(f"/v1/batches/{batch}/cancel", json={}).is_success
        assert waiting(home, tenant) == []
        assert [http.post("/v1/jobs", json=fake()).status_code for _ in range(11)] == [202] * 10 + [429]


def waiting(home: Installation, tenant: str) -> list[dict]:
    return home.rows(
        "SELECT batch_id FROM trials WHERE state <> 'finished'"
        " AND tenant_id = (SELECT id FROM tenants WHERE name = %s)",
        tenant,
    )


def test_a_retry_after_the_api_was_killed_makes_nothing_twice(home: Installation):
    """T83: 40 submits with keys of their own, the API killed in between; each is there once."""
    keys = [str(uuid.uuid4()) for _ in range(40)]
    killed = threading.Barrier(9)

    def submit(number: int) -> str:
        if number < 8:
            killed.wait(30)
        return str(home.patient._create("/v1/jobs", fake(), keys[number])["batch_id"])

    with ThreadPoolExecutor(8) as pool:
        made = [pool.submit(submit, number) for number in range(40)]
        killed.wait(30)
        home.stack.kill("api.app:create_app")
        batches = [one.result() for one in made]
    assert len(set(batches)) == 40
    # Asked again with the same keys, each gives the batch that it made.
    assert [submit(number) for number in range(8, 40)] == batches[8:]
    for batch in batches:
        home.patient.wait(batch, timeout_seconds=60)
    ran = home.rows(
        "SELECT count(*) AS n FROM attempts a JOIN trials t ON t.id = a.trial_id WHERE t.batch_id = ANY(%s)"
        " AND t.outcome = 'passed' AND t.attempts_used = 1",
        [uuid.UUID(batch) for batch in batches],
    )
    assert ran == [{"n": 40}]


def test_a_bell_runs_a_trial_once_however_often_it_comes(home: Installation):
    """T85: forged copies of the true bell, while it runs and after its end, and others with other fences."""
    batch = home.submit(local("sleep 1.5; echo once"))
    home.wait_running(batch)
    (attempt,) = home.rows(
        "SELECT a.trial_id, a.fence, a.node_id FROM attempts a JOIN trials t ON t.id = a.trial_id"
        " WHERE t.batch_id = %s",
        batch,
    )
    celery = create_celery(home.redis_url)

    def ring(times: int) -> None:
        for fence in (attempt["fence"],) * times + (0, attempt["fence"] + 1, -1, 1 << 70):
            celery.send_task(
                "attempt.run", [str(attempt["trial_id"]), fence], queue=f"node.{attempt['node_id']}"
            )

    with contextlib.closing(celery):
        ring(10)
        assert outcomes(home, batch) == {"passed": 1}
        ring(10)
        assert outcomes(home, home.submit(fake())) == {"passed": 1}
    trial = home.trial(batch)
    assert (len(trial["attempts"]), trial["infra_losses"]) == (1, 0)
    text = home.http.get(f"/v1/attempts/{trial['attempts'][0]['id']}/logs", params={"format": "text"}).text
    assert text == "once\n"


def test_of_many_equal_calls_at_once_one_has_an_effect(home: Installation):
    """T91: retries, cancels, pauses and resumes of the same trial, all at a time."""
    batch = home.submit(fake("exit 1"))
    assert outcomes(home, batch) == {"failed": 1}
    trial = home.trial(batch)["id"]
    with ThreadPoolExecutor(20) as pool:

        def call(verb: str) -> int:
            body = {"outcomes": ["failed"]} if verb == "retry" else {}
            return home.http.post(f"/v1/trials/{trial}/{verb}", json=body).status_code

        retries = list(pool.map(call, ["retry"] * 20))
        assert sorted(retries) == [200, *[409] * 19] or sorted(retries) == [202, *[409] * 19], retries
        assert outcomes(home, batch) == {"failed": 1}
        second = home.submit(fake("sleep 30"))
        home.wait_running(second)
        trial = home.trial(second)["id"]
        mixed = list(pool.map(call, ["cancel", "pause", "resume", "cancel"] * 10))
        assert set(mixed) <= {200, 202}, mixed
    assert outcomes(home, second) == {"cancelled": 1}
    assert len(home.rows("SELECT id FROM trials WHERE batch_id = %s", batch)) == 2


def test_full_database_refuses_creates_and_works_again(home: Installation):
    """T87: what Postgres says when it cannot write reaches the client as "try again", and nothing is half made."""
    http = home.new_tenant("full-disk")
    before = home.rows("SELECT count(*) AS n FROM batches")[0]["n"]
    trigger = """
        CREATE FUNCTION no_room() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = 'disk_full'; END $$;
        CREATE TRIGGER no_room BEFORE INSERT ON trials FOR EACH STATEMENT EXECUTE FUNCTION no_room()"""
    running = home.submit(fake("sleep 300"))
    home.wait_running(running)
    with http, psycopg.connect(home.database_url, autocommit=True) as connection:
        connection.execute(trigger)
        try:
            answer = http.post("/v1/jobs", json=fake())
            assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
            assert int(answer.headers["Retry-After"]) > 0
            assert "device" not in answer.text
            assert home.http.post(f"/v1/batches/{running}/cancel", json={}).is_success
            assert outcomes(home, running) == {"cancelled": 1}
        finally:
            connection.execute("DROP TRIGGER no_room ON trials; DROP FUNCTION no_room()")
        assert home.rows("SELECT count(*) AS n FROM batches")[0]["n"] == before + 1
        assert http.post("/v1/jobs", json=fake()).status_code == 202


@pytest.mark.parametrize("hours", [-2, 2])
def test_a_wrong_clock_of_a_worker_changes_nothing(home: Installation, tmp_path: Path, hours: int):
    """T89: its lease, its attempts' deadlines and durations hold, since none is told by its clock."""
    program = (
        "import time, datetime as d, runpy\n"
        f"s = {hours} * 3600\n"
        "real, real_ns = time.time, time.time_ns\n"
        "time.time, time.time_ns = (lambda: real() + s), (lambda: real_ns() + s * 10**9)\n"
        "R = d.datetime\n"
        "class M(type(R)):\n"
        "    def __instancecheck__(c, o): return isinstance(o, R)\n"
        "class D(R, metaclass=M):\n"
        "    now = classmethod(lambda c, tz=None: R.now(tz) + d.timedelta(seconds=s))\n"
        "    utcnow = classmethod(lambda c: R.utcnow() + d.timedelta(seconds=s))\n"
        "d.datetime = D\n"
        "runpy.run_module('workers', run_name='__main__')\n"
    )
    label = f"skewed{hours}"
    env = {
        "SANDMILL_HOME": str(tmp_path / "home"),
        "SANDMILL_RUNTIMES": '["fake"]',
        "SANDMILL_WORKER_LABELS": json.dumps({"worker": label}),
    }
    with home.program(["-c", program], **env):
        quick = {
            "timeouts": {"total": 60, "run": 30, "queue": 60},
            "placement": {"labels": {"worker": label}},
        }
        batch = home.submit(
            fake("sleep 0.3", **quick), fake("sleep 60", "over", **{**quick, "timeouts": {"run": 1}})
        )
        assert outcomes(home, batch) == {"passed": 1, "failed": 1}
        for found in home.trials(batch):
            (attempt,) = home.http.get(f"/v1/trials/{found['id']}").json()["attempts"]
            assert (
                attempt["created_at"]
                <= attempt["claimed_at"]
                <= attempt["started_at"]
                <= attempt["finished_at"]
            )
            assert 0 <= attempt["steps"][0]["duration_ms"] < 60_000
        assert {found["infra_losses"] for found in home.trials(batch)} == {0}
    assert home.nodes() == 1


def test_postgres_that_lets_anybody_in_is_refused(own_services, tmp_path: Path):
    """T94."""
    url = own_services.database_url
    assert check_external_postgres(url) == url
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute("SHOW hba_file").fetchone()
        assert row is not None
        Path(row[0]).write_text("host all all 127.0.0.1/32 trust\n")
        connection.execute("SELECT pg_reload_conf()")
        line = "DATABASE_URL: the server lets this user in without asking for the password"

        def is_refused() -> bool:
            with contextlib.suppress(StartupError):
                check_external_postgres(url)
                return False
            return True

        wait_for(is_refused, seconds=10)
        with pytest.raises(StartupError, match=line):
            check_external_postgres(url)


def test_redis_that_lets_anybody_in_is_refused(own_services):
    """T94: also where it takes any password, as it does from users who need none."""
    url = own_services.redis_url
    assert check_external_redis(url) == url
    with redis.Redis.from_url(url) as client:
        client.config_set("requirepass", "")
    with pytest.raises(StartupError, match="REDIS_URL"):
        check_external_redis(url)
    with pytest.raises(StartupError, match="REDIS_URL: the server lets anybody in without a password"):
        check_external_redis(url.replace("//:", "//default:"))


def test_only_documented_ports_answer_and_only_here(home: Installation):
    """T95: of all programs of the stack; and no store does anything for whoever has no password."""
    api, postgres, broker = (
        urlsplit(url).port for url in (home.stack.api_url, home.database_url, home.redis_url)
    )
    listening = ports_of(home)
    assert {port for _, port in listening} == {api, postgres, broker, home.stack.ingress_port}
    assert {address for address, _ in listening} == {"127.0.0.1"}
    with redis.Redis(host="127.0.0.1", port=broker, retry=Retry(NoBackoff(), 0)) as client:
        for words in (("PING",), ("INFO",), ("KEYS", "*"), ("CONFIG", "GET", "*"), ("DEBUG", "SLEEP", "0")):
            with pytest.raises(redis.AuthenticationError):
                client.execute_command(*words)
    for user in ("postgres", "sandmill", "root"):
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(host="127.0.0.1", port=postgres, user=user, dbname="postgres", connect_timeout=5)


def ports_of(home: Installation) -> set[tuple[str, int]]:
    """Address and port of every listening TCP socket of the stack's processes."""
    inodes = set()
    for pid in [home.stack.process.pid, *home.stack.pids("")]:
        with contextlib.suppress(OSError):
            for descriptor in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    inodes.add(str(descriptor.readlink()))
    found = set()
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                address, _, port = fields[1].partition(":")
                words = [bytes.fromhex(address)[i : i + 4][::-1] for i in range(0, len(address) // 2, 4)]
                found.add((socket.inet_ntop(family, b"".join(words)), int(port, 16)))
    return found


PWNED = Path("/tmp") / f"sandmill-pwned-{uuid.uuid4().hex}"
HOSTILE = {
    "pickle": ("application/x-python-serialize", f"cposix\nsystem\n(S'touch {PWNED}'\ntR.".encode()),
    "yaml": ("application/x-yaml", f"!!python/object/apply:os.system ['touch {PWNED}']".encode()),
    "msgpack": ("application/x-msgpack", b"\x93\x90\x80\x80"),
    "json as pickle": ("application/x-python-serialize", b"[[], {}, {}]"),
    "no type": ("", b"[[], {}, {}]"),
    "other encoding": ("application/json", b"\xff\xfe\x00"),
}


def entry(content_type: str, body: bytes, task: str) -> bytes:
    """A message as kombu stores it."""
    properties = {"delivery_info": {"exchange": "", "routing_key": "x"}, "delivery_tag": str(uuid.uuid4())}
    return json.dumps(
        {
            "body": base64.b64encode(body).decode(),
            "content-encoding": "binary",
            "content-type": content_type,
            "headers": {"task": task, "id": str(uuid.uuid4()), "lang": "py"},
            "properties": {**properties, "body_encoding": "base64"},
        }
    ).encode()


def test_tasks_of_other_kinds_and_remote_control_are_dropped(home: Installation):
    """T96, T97: nothing of them is executed, the worker lives on, and its log has them."""
    before = home.stack.pids("-m", "workers")
    node = (home.stack.home / "node" / "node.id").read_text().strip()
    celery = create_celery(home.redis_url)
    good = json.dumps([["not-a-uuid", 1], {}, {}]).encode()
    with redis.Redis.from_url(home.redis_url) as broker, contextlib.closing(celery):
        for content_type, body in HOSTILE.values():
            broker.lpush(f"sandmill:node.{node}", entry(content_type, body, "attempt.run"))
        for task in ("celery.backend_cleanup", "celery.accumulate", "os.system", "attempt.run"):
            broker.lpush(f"sandmill:node.{node}", entry("application/json", good, task))
        for command in ("shutdown", "pool_restart", "rate_limit", "revoke", "memdump"):
            celery.control.broadcast(command)
        celery.control.broadcast("add_consumer", arguments={"queue": "stolen"})
        batch = home.submit(*(fake("sleep 0.1", f"k{number}") for number in range(8)))
        assert outcomes(home, batch) == {"passed": 8}
        wait_for(lambda: broker.llen(f"sandmill:node.{node}") == 0)
        assert not celery.control.ping(timeout=0.5)
    assert home.stack.pids("-m", "workers") == before
    assert not PWNED.exists()
    log = home.log("worker")
    assert "disallowed" in log.lower() or "forged_message_dropped" in log, log[-2000:]
    assert "os.system" in log, log[-2000:]


def test_no_secret_shows_anywhere(home: Installation):
    """T98: logs, spans, messages in the broker and error bodies, of a tenant that tries every way to make them."""
    words = {name: f"{name}-{uuid.uuid4().hex}" for name in ("env", "argument", "output", "input", "header")}
    with redis.Redis.from_url(home.redis_url) as broker:
        monitor = _Monitor(broker)
        secret = home.http.post(
            "/v1/webhooks", json={"name": "s", "url": "https://example.org/x", "events": ["trial.finished"]}
        ).json()["secret"]
        batch = home.submit(
            local(
                f"echo {words['output']}; exit 3 # {words['argument']}",
                "a",
                env={"TOKEN": words["env"]},
                inputs=[{"path": "/tmp/x", "text": words["input"]}],
            ),
            fake(f"nonsense {words['argument']}", "b", image="broken", retry={"infra": {"max": 0}}),
        )
        assert outcomes(home, batch) == {"failed": 1, "error": 1}
        bodies = [error.text for error in provoke(home, words["header"])]
        wait_for(lambda: any(message.path == SPANS for message in home.spans))
        sent = monitor.stop()
    passwords = {urlsplit(url).password or "" for url in (home.database_url, home.redis_url)}
    secrets = {
        *passwords,
        home.stack.api_key,
        home.settings["SANDMILL_SECRET_KEY"],
        secret.removeprefix("whsec_"),
        words["header"],
    }
    private = {words[name] for name in ("env", "argument", "input")}
    logs = "".join(path.read_text(errors="replace") for path in (home.stack.home / "logs").iterdir())
    spans = b"".join(message.body for message in home.spans).decode("latin-1")
    assert "http_request" in logs
    assert "attempt" in spans
    assert "attempt.run" in sent
    # Output goes over Redis to whoever follows it, and is kept nowhere there; that is the one thing of a job that does.
    for place, text in {"logs": logs, "spans": spans, "errors": "".join(bodies), "broker": sent}.items():
        shown = {word for word in secrets | private if word in text}
        assert not shown, (place, [text[max(0, text.index(w) - 300) : text.index(w) + 60] for w in shown])
    assert words["output"] not in logs + spans


def provoke(home: Installation, word: str) -> list[httpx.Response]:
    """Errors of every family; each has an id and says nothing of how we are made."""
    nobody = httpx.Client(base_url=home.stack.api_url, headers={"Authorization": f"Bearer sm_{word}"})
    with nobody, psycopg.connect(home.database_url) as blocker:
        errors = [
            nobody.get("/v1/batches"),
            home.http.get(f"/v1/batches/{uuid.uuid4()}"),
            home.http.get("/v1/batches", params={"cursor": "x"}),
            home.http.post("/v1/batches", content=b"{"),
            home.http.post("/v1/batches", json={"jobs": [fake(image="x" * 5000)]}),
            home.http.get("/v1/admin/tenants"),
            home.http.get(f"/{quote(chr(0))}"),
            home.http.request("PATCH", "/v1/batches"),
        ]
        # A statement that Postgres ends tells nothing of itself, either.
        blocker.execute("SELECT pg_advisory_xact_lock(hashtextextended('sandmill.queue', id)) FROM tenants")
        with ThreadPoolExecutor(1) as pool:
            waits = pool.submit(home.http.post, "/v1/jobs", json=fake())
            wait_for(
                lambda: home.rows(
                    "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE application_name = 'sandmill-api'"
                    " AND wait_event = 'advisory'"
                )
            )
            errors.append(waits.result())
    assert [error.status_code for error in errors] == [401, 404, 422, 422, 422, 403, 404, 405, 503]
    for error in errors:
        assert error.json()["request_id"] == error.headers["x-request-id"]
        for inside in ("Traceback", "psycopg", "sqlalchemy", "SELECT", "INSERT", "/site-packages", ".py"):
            assert inside not in error.text, error.text
    return errors


class _Monitor:
    """All that passes the broker, but the chunks of output, meanwhile."""

    def __init__(self, client: redis.Redis) -> None:
        self._lines: list[str] = []
        self._stopping = threading.Event()
        self._started = threading.Event()
        self._client = client
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._started.wait(10)

    def _run(self) -> None:
        with self._client.monitor() as monitor:
            self._started.set()
            while not self._stopping.is_set():
                if not monitor.connection.can_read(timeout=0.1):
                    continue
                command = monitor.next_command()["command"]
                self._lines.append(command)

    def stop(self) -> str:
        self._stopping.set()
        self._thread.join(10)
        return "\n".join(self._lines)
