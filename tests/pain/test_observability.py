"""What users of similar services could not find out, against one running installation.

| case | by |
|---|---|
| B-142 | `tests/security/test_exhaustion.py` (T14); below. States of sandboxes: with their API |
| B-143 | below. Too many processes end nothing: the program is told, and says so in its log |
| B-145 | below; boot logs of sandboxes kept by themselves: with the sandbox API |
| B-146 | below, 200 jobs in place of 500 |
| B-148 | below |
"""

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.execd import status_field
from tests.support.installation import Installation, fake, installation, local, wait_for
from tests.support.outside import host_processes, sleep_mark
from tests.support.sandboxes import is_root

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

NO_RETRY = {"retry": {"infra": {"max": 0}}}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    with installation(tmp_path_factory.mktemp("observed"), SANDMILL_LOG_CAP_BYTES="65536") as running:
        yield running


def text_of(home: Installation, batch: str) -> str:
    attempt = home.trial(batch)["attempts"][-1]["id"]
    return home.http.get(f"/v1/attempts/{attempt}/logs", params={"format": "text"}).text


def timed(script: str, seconds: float) -> dict:
    job = local(script, timeouts={"grace": 0.2})
    job["steps"][0]["timeout"] = seconds
    return job


FILL = "python3 -c 'x = []\nwhile True: x.append(bytearray(1 << 22))'"
FORK = "python3 -c 'import os, time\nwhile True:\n  if os.fork() == 0: time.sleep(60)'"


@pytest.mark.skipif(not is_root(), reason="an ordinary user has no control groups here")
def test_every_reason_to_end_is_told_apart(home: Installation):
    """B-143, B-127: six ends that all are a SIGKILL, or an exit, somewhere; and no silent second run."""
    mark = sleep_mark()
    batches = {
        "timeout": home.submit(timed("sleep 60", 1)),
        "memory": home.submit(local(FILL, resources={"memory_mb": 64})),
        "output": home.submit(local("head -c 1000000 /dev/zero; exit 9")),
        "processes": home.submit(local(FORK, resources={"pids": 32})),
        "cancel": home.submit(local(f"sleep {mark}; true", timeouts={"grace": 0.2})),
        "shutdown": home.submit(local(f"sleep 1{mark}; true", **NO_RETRY)),
    }
    wait_for(lambda: host_processes(f"sleep\0{mark}") and host_processes(f"sleep\0001{mark}"))
    assert home.http.post(f"/v1/batches/{batches['cancel']}/cancel", json={}).is_success
    found = {}
    for name in ("timeout", "memory", "output", "processes", "cancel"):
        home.wait(batches[name])
        trial = home.trial(batches[name])
        (attempt,) = trial["attempts"]
        is_cut, is_refused = (
            attempt["log"]["truncated_bytes"] > 0,
            "BlockingIOError" in text_of(home, batches[name]),
        )
        found[name] = (trial["outcome"], trial["failure"]["code"], is_cut, is_refused)
    assert found == {
        "timeout": ("failed", "step_timeout", False, False),
        "memory": ("failed", "oom_limit", False, False),
        "output": ("failed", "nonzero_exit", True, False),
        "processes": ("failed", "nonzero_exit", False, True),
        "cancel": ("cancelled", "cancelled", False, False),
    }
    (node,) = home.admin.get("/v1/admin/nodes").json()["items"]
    assert home.admin.post(f"/v1/admin/nodes/{node['id']}/drain").is_success
    wait_for(lambda: home.trial(batches["shutdown"])["attempts"][0]["failure"])
    given_back = home.trial(batches["shutdown"])
    assert given_back["attempts"][0]["failure"]["code"] == "preempted"
    assert home.admin.post(f"/v1/admin/nodes/{node['id']}/uncordon").is_success
    home.http.post(f"/v1/batches/{batches['shutdown']}/cancel", json={"mode": "force"})
    assert home.wait(batches["shutdown"])["trials"]["by_outcome"] == {"cancelled": 1}


def test_killed_daemon_is_an_error_of_ours_with_what_was_printed(home: Installation):
    """B-142, B-145: the class says whose fault it is, and the log of before is there."""
    mark = sleep_mark()
    batch = home.submit(local(f"echo before; sleep {mark}; true", **NO_RETRY))
    wait_for(lambda: host_processes(f"sleep\0{mark}"))
    wait_for(lambda: text_of(home, batch) == "before\n")
    os.kill(daemon_of(host_processes(f"sleep\0{mark}")[0]), signal.SIGKILL)
    assert home.failure(batch) == ("error", "infra", "execd_unreachable")
    assert text_of(home, batch) == "before\n"


def daemon_of(pid: int) -> int:
    """The last process above it that belongs to the sandbox."""
    while True:
        parent = int(status_field(pid, "PPid"))
        if len(status_field(parent, "NSpid").split()) < 2:
            return pid
        pid = parent


def test_what_failed_at_any_time_can_be_read_afterwards(home: Installation):
    """B-145: an image that is none, a set-up that fails, a program that crashes after a while."""
    absent = home.submit(local("true", image="no-such-image"))
    outcome, cls, code = home.failure(absent)
    assert (outcome, cls, code) == ("error", "spec", "image_not_found")
    assert "no-such-image" in home.trial(absent)["failure"]["message"]
    setup = local("true")
    setup["steps"].insert(0, {"name": "prepare", "role": "setup", "run": "echo cannot prepare >&2; exit 4"})
    batch = home.submit(setup)
    assert home.failure(batch) == ("error", "task", "setup_failed")
    assert text_of(home, batch) == "cannot prepare\n"
    assert home.trial(batch)["failure"]["step"] == "prepare"
    late = home.submit(local("echo working; sleep 1; echo dying >&2; kill -SEGV $$"))
    assert home.failure(late) == ("failed", "task", "nonzero_exit")
    assert home.trial(late)["failure"]["signal"] == signal.SIGSEGV
    assert sorted(text_of(home, late).splitlines()) == ["dying", "working"]


def test_history_outlives_the_monitor(home: Installation):
    """B-146: everything is there with results and times after the API was killed in the middle of it."""
    batch = home.submit(*(fake(f"exit {number % 2}", f"k{number}") for number in range(200)))
    home.stack.kill("api.app:create_app")
    assert home.wait(batch)["trials"]["by_outcome"] == {"passed": 100, "failed": 100}
    home.stack.kill("api.app:create_app")
    home.batch(batch)
    trials = home.trials(batch)
    assert len(trials) == 200
    for trial in trials:
        assert trial["outcome"] == ("failed" if int(trial["job_key"][1:]) % 2 else "passed")
        assert trial["created_at"] <= trial["started_at"] <= trial["finished_at"]
    with ThreadPoolExecutor(4) as pool:
        details = list(pool.map(lambda t: home.http.get(f"/v1/trials/{t['id']}").json(), trials[:40]))
    assert all(len(detail["attempts"]) == 1 and detail["attempts"][0]["steps"] for detail in details)


def test_time_outs_of_ours_are_not_cancels_of_users(home: Installation):
    """B-148: in status, history, metrics and logs."""
    slow = home.submit(fake(image="slow-start", **NO_RETRY))
    over = home.submit(fake("sleep 60", timeouts={"total": 0.5, "grace": 0.1}))
    cancelled = home.submit(fake("sleep 60"))
    home.wait_running(cancelled)
    assert home.http.post(f"/v1/batches/{cancelled}/cancel", json={}).is_success
    assert home.failure(slow) == ("error", "infra", "create_timeout")
    assert home.failure(over)[1:] == ("task", "total_timeout")
    assert home.failure(cancelled) == ("cancelled", "cancelled", "cancelled")
    reasons = {name: home.trial(batch)["cancel_reason"] for name, batch in (("slow", slow), ("over", over))}
    assert reasons == {"slow": None, "over": None}
    assert home.trial(cancelled)["cancel_reason"] == "cancelled"
    metrics = home.http.get("/metrics").text
    for outcome in ("error", "cancelled"):
        assert any(
            f'"{outcome}"' in line and not line.endswith(" 0.0")
            for line in metrics.splitlines()
            if not line.startswith("#")
        ), outcome
    log = home.log("worker")
    for batch, word in ((slow, "create_timeout"), (over, "total_timeout"), (cancelled, "cancelled")):
        trial = home.trial(batch)["id"]
        lines = [line for line in log.splitlines() if trial in line]
        assert any(word in line for line in lines), (word, lines)
