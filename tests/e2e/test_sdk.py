"""The client against the whole stack."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.stack import Stack, StackConfig
from runtimes.registry import open_image_store
from sandmill import (
    Artifact,
    Client,
    ConflictError,
    ExitCodeVerdict,
    Input,
    InvalidRequestError,
    Job,
    JobDefaults,
    Need,
    NotFoundError,
    PatchStep,
    RetryPolicy,
    Step,
    Timeouts,
    TrialDetail,
    Trials,
    UnauthenticatedError,
)
from tests.support.image_archives import file, folder, tar

BUSYBOX = Path("/bin/busybox")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

NOWHERE = "00000000-0000-7000-8000-000000000000"
WAIT_SECONDS = 60


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stack") / "home"


@pytest.fixture(scope="module")
def stack(home: Path) -> Iterator[Stack]:
    with Stack(StackConfig(home=home, with_flower=False)) as running:
        yield running


@pytest.fixture
def client(stack: Stack) -> Iterator[Client]:
    with Client(stack.api_url, stack.api_key) as made:
        yield made


def run_job(client: Client, job: Job) -> TrialDetail:
    """Submit, wait, and give the first trial."""
    batch_id = client.submit_job(job).batch_id
    client.wait(batch_id, timeout_seconds=WAIT_SECONDS)
    return client.get_trial(next(client.iter_trials(batch_id)).id)


def shell(script: str, **fields: object) -> Job:
    return Job(key="k", image="host", steps=[Step("run", script)], **fields)  # type: ignore[arg-type]


def test_job_runs_in_an_image_that_was_imported_while_the_stack_runs(
    home: Path, client: Client, tmp_path: Path
) -> None:
    """The image is in the store of the worker's runtime; what is not in it is not there."""
    archive = tmp_path / "box.tar"
    archive.write_bytes(
        tar(folder("bin"), file("bin/sh", BUSYBOX.read_bytes(), mode=0o755), file("marked", b"1"))
    )
    store = open_image_store(home / "runtimes")
    store.import_archive(archive, name="box:1")
    job = Job(
        key="k", image="box:1", steps=[Step("run", "test -e /marked && test ! -e /usr && cd / && echo *")]
    )
    trial = run_job(client, job)
    assert (trial.outcome, trial.failure) == ("passed", None)
    (attempt,) = trial.attempts
    assert "marked" in "".join(line.text for line in client.iter_logs(attempt.id))
    missing = run_job(client, Job(key="k", image="box:2", steps=[Step("run", "true")]))
    assert (missing.outcome, missing.failure and missing.failure.code) == ("error", "image_not_found")


def test_job_runs_and_tells_how(client: Client) -> None:
    trial = run_job(client, shell("echo out; exit 3"))
    assert (trial.outcome, trial.is_finished) == ("failed", True)
    assert trial.failure is not None
    assert (trial.failure.code, trial.failure.exit_code) == ("nonzero_exit", 3)
    (attempt,) = trial.attempts
    assert [(step.name, step.exit_code) for step in attempt.steps] == [("run", 3)]
    assert attempt.node
    assert client.get_attempt(attempt.id) == attempt
    assert client.get_job(trial.job_id).spec["key"] == "k"


def test_log_is_followed_while_it_is_written_and_read_afterwards(client: Client) -> None:
    batch_id = client.submit_job(
        shell("for i in 1 2 3; do echo line $i; sleep 0.2; done; printf '\\377'")
    ).batch_id
    attempt_id = first_attempt(client, batch_id)
    followed = list(client.iter_logs(attempt_id))
    assert b"".join(chunk.data for chunk in followed) == b"line 1\nline 2\nline 3\n\xff"
    assert [chunk.seq for chunk in followed] == list(range(len(followed)))
    assert list(client.iter_logs(attempt_id, follow=False)) == followed
    assert list(client.iter_logs(attempt_id, after=0)) == followed[1:]


def first_attempt(client: Client, batch_id: str) -> str:
    """Wait for the first attempt of a batch to exist."""
    found: list[str] = []

    def look(_batch: object) -> None:
        trial = next(client.iter_trials(batch_id))
        found.extend(attempt.id for attempt in client.get_trial(trial.id).attempts)
        if found:
            raise StopIteration

    with pytest.raises(StopIteration):
        client.wait(batch_id, timeout_seconds=WAIT_SECONDS, on_progress=look)
    return found[0]


def test_inputs_patches_and_artifacts_make_a_round_trip(client: Client, tmp_path) -> None:
    big = tmp_path / "big"
    big.write_bytes(bytes(range(256)) * 8192)
    job = Job(
        key="k",
        image="host",
        workdir="/work",
        inputs=[
            Input("/work/big", blob=client.upload_blob(big)),
            Input("/work/raw", data=b"\xff\n"),
            Input("/work/a.txt", text="old\n"),
            Input("/p.diff", text="--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-old\n+new\n"),
        ],
        steps=[PatchStep("apply", "/p.diff", role="setup"), Step("run", "mkdir /out && cp * /out")],
        artifacts=[Artifact("/out/**")],
    )
    trial = run_job(client, job)
    assert trial.outcome == "passed", trial.failure
    assert [artifact.path for artifact in client.iter_artifacts(trial.id)] == [
        "/out/a.txt",
        "/out/big",
        "/out/raw",
    ]
    assert client.read_artifact(trial.id, "/out/a.txt") == b"new\n"
    assert client.read_artifact(trial.id, "/out/raw") == b"\xff\n"
    client.download_artifact(trial.id, "/out/big", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == big.read_bytes()


def test_blob_is_stored_once_and_read_back(client: Client) -> None:
    digest = client.upload_blob(b"")
    assert client.upload_blob(b"") == digest
    assert client.read_blob(digest) == b""
    with pytest.raises(NotFoundError):
        client.read_blob("sha256:" + "0" * 64)


def test_batch_is_listed_counted_and_reported(client: Client) -> None:
    jobs = [
        Job(key="good", steps=[Step("run", 'test "$TRIAL_SEED" -ge 5')]),
        Job(key="bad", steps=[Step("run", "false")]),
    ]
    seen: list[int] = []
    defaults = JobDefaults(image="host", trials=Trials(2, seed=5))
    batch = client.submit_batch(jobs, name="named", defaults=defaults, labels={"a": "b"})
    done = client.wait(
        batch.id, timeout_seconds=WAIT_SECONDS, on_progress=lambda b: seen.append(b.trials.finished)
    )
    assert (done.name, done.labels, done.jobs) == ("named", {"a": "b"}, 2)
    assert done.trials.by_outcome == {"passed": 2, "failed": 2}
    assert seen == sorted(seen)
    assert [job.key for job in client.iter_jobs(batch.id)] == ["good", "bad"]
    assert [(t.job_key, t.index) for t in client.iter_trials(batch.id, outcome="failed")] == [
        ("bad", 0),
        ("bad", 1),
    ]
    assert batch.id in [listed.id for listed in client.iter_batches()]
    assert client.report(batch.id)["resolved_rate"] == 0.5
    assert len(client.report(batch.id, "jsonl").splitlines()) == 4
    assert client.report(batch.id, "junit").count("<failure") == 2


def test_cancel_reaches_a_running_trial(client: Client) -> None:
    batch_id = client.submit_job(shell("echo started; sleep 600", timeouts=Timeouts(grace=0))).batch_id
    next(client.iter_logs(first_attempt(client, batch_id)))
    client.cancel(batch_id, mode="force")
    assert client.wait(batch_id, timeout_seconds=WAIT_SECONDS).trials.by_outcome == {"cancelled": 1}
    assert client.cancel(batch_id).cancelling == 0


def test_a_batch_unfolds_waits_and_is_followed_retried_and_graded_again(client: Client) -> None:
    jobs = [
        Job(key="build", steps=[Step("run", 'test "$V" = 1')], env={"V": "${matrix.v}"}),
        Job(key="check", steps=[Step("run", "true")], needs=[Need("build")]),
    ]
    batch = client.submit_batch(jobs, defaults=JobDefaults(image="host"), matrix={"v": [1, 2]}, is_open=True)
    client.append_jobs(batch.id, [Job(key="last", steps=[Step("run", "exit 3")])])
    assert client.close_batch(batch.id).jobs == 5
    events = list(client.iter_events(batch.id))
    assert [event.seq for event in events] == list(range(1, 7))
    ends = {event.job_key: event.outcome for event in events if event.job_key}
    assert ends == {
        "build@1": "passed", "build@2": "failed", "check@1": "passed", "check@2": "skipped", "last": "failed",
    }  # fmt: skip
    assert events[-1].kind == "batch.finished"

    assert client.pause(batch_id=batch.id).paused == 0
    assert client.resume(batch_id=batch.id) == 0
    assert client.retry(batch_id=batch.id, outcomes=["skipped"]) == 1
    assert client.wait(batch.id, timeout_seconds=WAIT_SECONDS).trials.by_outcome["skipped"] == 1

    job_id = next(job.id for job in client.iter_jobs(batch.id) if job.key == "last")
    assert client.regrade(job_id=job_id, verdict=ExitCodeVerdict(pass_codes=[3])) == 1
    after = events[-1].seq
    while not any(e.kind == "trial.regraded" for e in client.iter_events(batch.id, after=after)):
        time.sleep(0.1)
    assert client.get_batch(batch.id).trials.by_outcome == {"passed": 3, "failed": 1, "skipped": 1}


def test_own_idempotency_key_submits_once(client: Client) -> None:
    first = client.submit_job(shell("true"), idempotency_key="once")
    assert client.submit_job(shell("true"), idempotency_key="once").id == first.id
    with pytest.raises(ConflictError) as caught:
        client.submit_job(shell("false"), idempotency_key="once")
    assert caught.value.code == "idempotency_conflict"


def test_errors_name_what_is_wrong(client: Client, stack: Stack) -> None:
    with pytest.raises(NotFoundError):
        client.get_batch(NOWHERE)
    with pytest.raises(InvalidRequestError) as caught:
        client.submit_batch(
            [Job(key="a", image="host", steps=[Step("run", "true", timeout=-1)]), Job(key="a")]
        )
    assert "jobs[0].steps[0].timeout" in {detail.field for detail in caught.value.details}
    with Client(stack.api_url, "sm_" + "x" * 40) as stranger, pytest.raises(UnauthenticatedError):
        stranger.get_batch(NOWHERE)


def test_proxy_of_the_environment_is_not_asked_for_this_machine(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    with Client(stack.api_url, stack.api_key, retry=RetryPolicy(attempts=1)) as client:
        assert list(client.iter_batches()) is not None
