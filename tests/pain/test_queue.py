"""What users of similar services found wrong with queues, against one running installation with two workers.

Numbers are smaller than in the reports, by the factor named in each test: what is at stake is a rule, not a size.

| case | by |
|---|---|
| B-107 | below |
| B-109 | `tests/e2e/test_faults.py`, `test_restart.py`; the runner alone: B-113 below |
| B-110, B-112, B-113, B-115, B-116 | below |
| B-118 | `tests/integration/queue/test_webhooks.py`; a whole way of it in B-113 below |
| B-119 | B-113 below: the scheduler sends; the worker has no way out: `test_compose_file.py` |
| B-121, B-122, B-124, B-125 | below; B-125's blame also `tests/integration/worker/test_timeouts.py` |
| B-127 | `tests/pain/test_observability.py` (B-143), `tests/integration/worker/test_attempt_runner.py` |
"""

import base64
import os
import signal
import threading
import time
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.execd import status_field
from tests.support.installation import LEASE_SECONDS, Installation, fake, installation, local, wait_for
from tests.support.outside import host_processes, sleep_mark
from tests.support.receiver import Receiver

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

ON_FIRST = {"placement": {"labels": {"worker": "first"}}}
ON_SECOND = {"placement": {"labels": {"worker": "second"}}}
NO_RETRY = {"retry": {"infra": {"max": 0}}}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    with (
        installation(tmp_path_factory.mktemp("queue")) as running,
        running.second_worker(
            tmp_path_factory.mktemp("second"), SANDMILL_WORKER_LABELS='{"worker": "second"}'
        ),
    ):
        yield running


@pytest.fixture(scope="module", autouse=True)
def long_waits(home: Installation) -> tuple[float, list[str]]:
    """Trials that wait or run for two leases, in place of three, meanwhile: (time of submission, batches)."""
    paused = home.submit(open=True)
    assert home.http.post(f"/v1/batches/{paused}/pause", json={}).is_success
    jobs = {"jobs": [fake(trials={"count": 20})]}
    assert home.http.post(f"/v1/batches/{paused}/jobs", json=jobs).is_success
    assert home.http.post(f"/v1/batches/{paused}/close", json={}).is_success
    backoff = {"initial": 1.5 * LEASE_SECONDS, "factor": 1, "max": 1.5 * LEASE_SECONDS}
    retried = home.submit(
        fake("exit 1", retry={"task": {"max": 1}, "infra": {"backoff": backoff}}, trials={"count": 10})
    )
    running = home.submit(fake(f"sleep {2 * LEASE_SECONDS}", trials={"count": 2}, **ON_SECOND))
    return time.monotonic(), [paused, retried, running]


def of(home: Installation, batch: str, seconds: float = 90) -> dict[str, int]:
    """How the trials of the batch ended."""
    return home.wait(batch, seconds=seconds)["trials"]["by_outcome"]


def text_of(home: Installation, batch: str) -> bytes:
    attempt = home.trial(batch)["attempts"][-1]["id"]
    answer = home.http.get(f"/v1/attempts/{attempt}/logs", params={"format": "text"})
    assert answer.status_code == 200
    return answer.content


def test_what_always_kills_its_worker_is_given_up_and_others_go_on(home: Installation):
    """B-110 (T86): three attempts at most on the only node it may use, then a dead letter that says why."""
    batch = home.submit(fake("sleep 120", **ON_FIRST, retry={"infra": {"max": 10}}))
    seen: set[int] = set()
    others: list[str] = []

    def kill_its_worker() -> bool:
        found = home.rows(
            "SELECT s.pid, a.fence FROM attempts a JOIN worker_sessions s ON s.id = a.session_id"
            " JOIN trials t ON t.id = a.trial_id WHERE t.batch_id = %s AND a.state = 'running'",
            batch,
        )
        for row in found:
            if row["fence"] not in seen:
                seen.add(row["fence"])
                os.kill(row["pid"], signal.SIGKILL)
                others.append(home.submit(*(fake("sleep 0.1", f"k{n}", **ON_SECOND) for n in range(5))))
        return home.batch(batch)["state"] == "finished"

    wait_for(kill_its_worker, seconds=90)
    trial = home.trial(batch)
    assert len(trial["attempts"]) == 3
    assert (trial["outcome"], trial["failure"]["class"], trial["failure"]["code"]) == (
        "error",
        "infra",
        "poison",
    )
    assert "3 times, on one node" in trial["failure"]["message"]
    letters = home.http.get("/v1/dead-letters", params={"state": "open"}).json()["items"]
    assert trial["id"] in {letter["trial_id"] for letter in letters}
    for other in others:
        assert of(home, other) == {"passed": 5}
        assert {row["infra_losses"] for row in home.trials(other)} == {0}


OVER_TIME = {
    "sleep": "sleep 60",
    "busy": "while :; do :; done",
    "deaf": "trap '' TERM INT; sleep 60; sleep 60",
}


def test_slots_come_back_after_time_limits(home: Installation):
    """B-112, a fifth of it: 16 quick ones pass beside 4 over the limit, and all slots can be used afterwards."""
    slow = [
        local(script, f"{kind}-{number}", timeouts={"grace": 0.5})
        for number, (kind, script) in enumerate([*OVER_TIME.items(), ("sleep", "sleep 60")])
    ]
    for job in slow:
        job["steps"][0]["timeout"] = 1
    batch = home.submit(*slow, *(local("true", f"quick-{number}") for number in range(16)))
    assert of(home, batch) == {"passed": 16, "failed": 4}
    codes = Counter(trial["failure"]["code"] for trial in home.trials(batch) if trial["failure"])
    assert codes == {"step_timeout": 4}
    # All slots can be used at once again.
    full = home.submit(*(fake("sleep 0.5", f"k{number}", **ON_FIRST) for number in range(8)))
    home.wait_running(full, 8)
    assert of(home, full) == {"passed": 8}


def test_batch_ends_once_whatever_becomes_of_its_members(home: Installation):
    """B-113: seven pass, one's runner is killed, one is cancelled, one runs out of time; one callback.

    B-118, B-119: the scheduler sends it, the receiver fails four times on the way, and it gets one message.
    """
    redirect = (301, {"Location": "http://127.0.0.1:1/"})
    with Receiver((500, {}), redirect, (204, {})) as receiver:
        hook = home.http.post(
            "/v1/webhooks",
            json={"name": f"w{uuid.uuid4().hex[:8]}", "url": "https://example.org/x", "events": []},
        ).json()
        mark, cancelled_mark = sleep_mark(), sleep_mark()
        late = local("sleep 60", "late", timeouts={"grace": 0.2})
        late["steps"][0]["timeout"] = 0.5
        batch = home.submit(
            *(local("true", f"good-{number}") for number in range(7)),
            local(f"sleep {mark}; true", "killed", **NO_RETRY),
            local(f"sleep {cancelled_mark}; true", "cancelled", timeouts={"grace": 0.2}),
            late,
            on_complete={"webhook": {"url": receiver.url(), "secret_ref": hook["name"]}},
        )
        os.kill(runner_of(mark), signal.SIGKILL)
        wait_for(lambda: sleepers(cancelled_mark))
        (trial,) = [trial for trial in home.trials(batch) if trial["job_key"] == "cancelled"]
        assert home.http.post(f"/v1/trials/{trial['id']}/cancel", json={}).is_success
        assert of(home, batch) == {"passed": 7, "error": 1, "cancelled": 1, "failed": 1}
        ends = {trial["job_key"]: trial["failure"] for trial in home.trials(batch) if trial["failure"]}
        assert {key: (end["class"], end["code"]) for key, end in ends.items()} == {
            "killed": ("infra", "execd_unreachable"),
            "cancelled": ("cancelled", "cancelled"),
            "late": ("task", "step_timeout"),
        }
        hurried = threading.Event()

        def arrived() -> bool:
            # Its next try is due in seconds, as it should be: the test does not wait for that.
            home.hurry_webhooks()
            hurried.wait(0.2)
            return len(receiver.messages) >= 3

        wait_for(arrived)
        found = [message.verify(hook["secret"]) for message in receiver.messages]
        assert all(message["data"]["batch_id"] == batch for message in found)
        assert found[0]["data"]["outcomes"] == {"passed": 7, "error": 1, "cancelled": 1, "failed": 1}
        assert len({message.headers["webhook-id"] for message in receiver.messages}) == 1
        shown = home.http.get("/v1/webhook-deliveries", params={"state": "delivered"}).json()["items"]
        assert shown
        assert len(receiver.messages) == 3
    wait_for(lambda: not host_processes(mark) and not host_processes(cancelled_mark))


def sleepers(mark: str) -> list[int]:
    """The programs themselves, without the shells that have the same words in their script."""
    return host_processes(f"sleep\0{mark}")


def runner_of(mark: str) -> int:
    """The daemon under which it sleeps: the last above it that belongs to the sandbox."""
    wait_for(lambda: sleepers(mark))
    pid = sleepers(mark)[0]
    while True:
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        if len(status_field(parent, "NSpid").split()) < 2:
            return pid
        pid = parent


def test_cancel_of_a_batch_reaches_what_runs_and_what_waits(home: Installation):
    """B-115: 50 with 8 running, each with children in sessions of their own; twice cancelled."""
    mark = sleep_mark()
    script = f"trap '' TERM; setsid sleep {mark} & sleep {mark} & sleep {mark}"
    batch = home.submit(local(script, timeouts={"grace": 0.5}, trials={"count": 50}))
    home.wait_running(batch, 8)
    wait_for(lambda: len(sleepers(mark)) >= 24)
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda _: home.http.post(f"/v1/batches/{batch}/cancel", json={}), range(2)))
    assert [answer.is_success for answer in answers] == [True, True]
    assert of(home, batch) == {"cancelled": 50}
    wait_for(lambda: not host_processes(mark), seconds=5)
    trials = home.trials(batch)
    assert Counter(trial["attempts_used"] for trial in trials) == {0: 42, 1: 8}
    assert home.http.post(f"/v1/batches/{batch}/cancel", json={}).is_success
    assert [trial["finished_at"] for trial in home.trials(batch)] == [
        trial["finished_at"] for trial in trials
    ]


def test_submissions_outlive_the_stores(home: Installation):
    """B-116, a tenth of it: 100 submits by 20 clients, broker and database killed meanwhile; each key runs once."""
    keys = [str(uuid.uuid4()) for _ in range(100)]

    def submit(key: str) -> str:
        return str(home.patient._create("/v1/jobs", fake(), key)["batch_id"])

    with ThreadPoolExecutor(20) as pool:
        made = [pool.submit(submit, key) for key in keys]
        home.stack.kill("valkey")
        wait_for(lambda: sum(one.done() for one in made) >= 40)
        home.stack.kill("postgres", "-D")
        batches = [one.result() for one in made]
        assert list(pool.map(submit, keys[:20])) == batches[:20]
    assert len(set(batches)) == 100
    for batch in batches:
        home.patient.wait(batch, timeout_seconds=90)
    ran = home.rows(
        "SELECT t.outcome, a.state, count(*) AS n FROM trials t JOIN attempts a ON a.trial_id = t.id"
        " WHERE t.batch_id = ANY(%s) AND a.state <> 'never_started' GROUP BY 1, 2",
        [uuid.UUID(batch) for batch in batches],
    )
    assert ran == [{"outcome": "passed", "state": "finished", "n": 100}]


@pytest.mark.parametrize("wanted", ["", "x", " \n"], ids=["nothing", "x", "blanks"])
def test_no_output_is_a_verdict(home: Installation, wanted: str):
    """B-121: a program that prints nothing, compared with what was expected."""
    compare = '[ "$(cat /tmp/out; echo .)" = "$(cat /tmp/wanted; echo .)" ]'
    job = local("true > /tmp/out", inputs=[{"path": "/tmp/wanted", "text": wanted, "before": "compare"}])
    job["steps"].append({"name": "compare", "role": "verify", "run": compare})
    assert of(home, home.submit(job)) == ({"passed": 1} if wanted == "" else {"failed": 1})


ODD_BYTES = {
    "utf-8": "“naïve” 🦀\n".encode(),
    "latin-1": "gültig\n".encode("latin-1"),
    "random": bytes(range(256)),
    "surrogates": rb'{"x": "\ud800"}' + b"\xed\xa0\x80\xff\x00\n",
}


def test_any_bytes_come_back_as_they_were_printed(home: Installation):
    """B-122: as text, as pages, in the report and in failures, without a flag of the caller."""
    script = "; ".join(
        f"printf %s {base64.b64encode(data).decode()} | base64 -d" for data in ODD_BYTES.values()
    )
    batch = home.submit(local(f"{script}; {{ {script}; }} >&2; exit 1"))
    assert of(home, batch) == {"failed": 1}
    whole = b"".join(ODD_BYTES.values())
    attempt = home.trial(batch)["attempts"][-1]["id"]
    items = home.http.get(f"/v1/attempts/{attempt}/logs").json()["items"]
    for stream in ("stdout", "stderr"):
        chunks = [chunk for chunk in items if chunk["stream"] == stream]
        assert b"".join(base64.b64decode(chunk["b64"]) for chunk in chunks) == whole
    assert sorted(text_of(home, batch)) == sorted(whole * 2)
    for form in ("json", "jsonl", "junit"):
        assert home.http.get(f"/v1/batches/{batch}/report", params={"format": form}).status_code == 200


def test_one_deadline_holds_over_all_attempts_and_waits(home: Installation):
    """B-124: starts that fail are bounded by `queue`, all that comes after the first by `total`."""
    backoff = {"initial": 1, "factor": 1, "max": 1}
    batch = home.submit(
        fake(
            image="slow-start",
            timeouts={"queue": 2, "total": 2},
            retry={"infra": {"max": 10, "backoff": backoff, "avoid_node": False}},
        )
    )
    outcome, _, code = home.failure(batch)
    assert (outcome, code) == ("error", "queue_timeout")
    assert 1 <= len(home.trial(batch)["attempts"]) <= 10
    long = home.submit(fake("sleep 120", timeouts={"total": 1, "grace": 0.2}))
    assert home.failure(long)[2] == "total_timeout"
    # Each phase has its own times.
    attempt = home.trial(long)["attempts"][0]
    assert attempt["created_at"] <= attempt["claimed_at"] <= attempt["started_at"] <= attempt["finished_at"]
    assert attempt["steps"][0]["duration_ms"] >= 0


def test_waiting_for_a_slot_is_not_charged_to_the_job(home: Installation):
    """B-125: with all slots taken for longer than the job may run, it waits, runs and passes."""
    full = home.submit(*(fake("sleep 2.5", f"k{number}", **ON_FIRST) for number in range(8)))
    home.wait_running(full, 8)
    batch = home.submit(fake("sleep 0.2", **ON_FIRST, timeouts={"run": 1.5, "total": 2, "start": 2}))
    assert of(home, batch) == {"passed": 1}
    trial = home.trial(batch)
    assert len(trial["attempts"]) == 1
    assert trial["infra_losses"] == 0
    assert of(home, full) == {"passed": 8}


def test_waits_longer_than_a_lease_run_once(home: Installation, long_waits):
    """B-107: 20 trials that waited for two leases, 10 that were put off for them, 2 that ran for them."""
    began, (paused, retried, running) = long_waits
    wait_for(lambda: time.monotonic() - began > 2 * LEASE_SECONDS)
    assert {trial["attempts_used"] for trial in home.trials(paused)} == {0}
    assert home.http.post(f"/v1/batches/{paused}/resume", json={}).is_success
    assert of(home, paused) == {"passed": 20}
    assert {trial["attempts_used"] for trial in home.trials(paused)} == {1}
    assert of(home, retried) == {"failed": 10}
    assert {trial["attempts_used"] for trial in home.trials(retried)} == {2}
    assert of(home, running) == {"passed": 2}
    # Other tests kill what these run on; that costs attempts, which is another rule.
    assert {trial["attempts_used"] - trial["infra_losses"] for trial in home.trials(running)} == {1}
