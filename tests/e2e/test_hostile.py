"""Submissions that want to pass without being right, or to turn their failure into an error that does not count."""

from collections.abc import Iterator

import pytest

from examples.grade_submission import make_job
from launcher.stack import Stack, StackConfig
from sandmill import Artifact, Client, ExitCodeVerdict, Input, Job, Step, TrialDetail

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    config = StackConfig(home=tmp_path_factory.mktemp("hostile") / "home", with_flower=False)
    with Stack(config) as stack, Client(stack.api_url, stack.api_key) as client:
        yield client


def run(client: Client, job: Job) -> TrialDetail:
    batch_id = client.submit_job(job).batch_id
    client.wait(batch_id, timeout_seconds=90)
    return client.get_trial(next(client.iter_trials(batch_id)).id)


def judged(script: str, *, test: str = "exit 1", **changes: object) -> Job:
    """A job whose hidden test fails, whatever the script does first."""
    return Job(
        key="hostile",
        image="host",
        inputs=[Input("/tests/test.sh", text=test + "\n", before="verify")],
        steps=[
            Step("run", script, role="run", timeout=20),
            Step("verify", argv=["/bin/bash", "/tests/test.sh"], role="verify", timeout=20),
        ],
        verdict=ExitCodeVerdict(step="verify"),
        **changes,  # type: ignore[arg-type]
    )


REWRITE = "while :; do echo 'exit 0' > /tests/test.sh 2>/dev/null; done"

FORGERIES = {
    "daemon that rewrites the test": f'setsid -f sh -c "{REWRITE}" >/dev/null 2>&1',
    "daemon under another name": f'SANDMILL_EXECUTION_ID=x setsid -f sh -c "{REWRITE}" >/dev/null 2>&1',
    "daemon without an environment": f'env -i setsid -f /bin/sh -c "{REWRITE}" >/dev/null 2>&1',
    "variables for later steps": (
        "mkdir -p /opt/opensandbox; echo 'exit 0' > /tmp/b.sh; echo BASH_ENV=/tmp/b.sh > /opt/opensandbox/.env"
    ),
    "test put there before": "mkdir -p /tests; echo 'exit 0' > /tests/test.sh",
    "link in the place of the test": "mkdir -p /tests; echo 'exit 0' > /tmp/t; ln -s /tmp/t /tests/test.sh",
}


@pytest.mark.parametrize("script", FORGERIES.values(), ids=FORGERIES.keys())
def test_verdict_is_not_forged(client: Client, script: str) -> None:
    trial = run(client, judged(script))
    assert (trial.outcome, len(trial.attempts)) == ("failed", 1), trial.failure


ESCAPES = {
    "TERM to the daemon": "kill -TERM 1; kill -INT 1; kill -HUP 1; sleep 0.2",
    "limits of the daemon": "prlimit --pid 1 --nofile=3 --cpu=0 --fsize=0; true",
    "folder in the place of the test": "mkdir -p /tests/test.sh",
    "file in the place of its folder": "touch /tests",
    "folder nobody may enter": "mkdir -m 0 /tests",
    "full disk": "dd if=/dev/zero of=/fill bs=1M count=200 2>/dev/null; true",
    "stopped daemon": "kill -STOP 1; true",
}


@pytest.mark.parametrize("script", ESCAPES.values(), ids=ESCAPES.keys())
def test_failure_does_not_become_an_error(client: Client, script: str) -> None:
    from sandmill import Resources  # noqa: PLC0415

    trial = run(client, judged(script, resources=Resources(disk_mb=64)))
    assert (trial.outcome, len(trial.attempts)) == ("failed", 1), trial.failure


ARTIFACTS = {
    "pipe": "mkfifo /logs/x",
    "unreadable file": "echo x > /logs/x; chmod 0 /logs/x",
    "unreadable folder": "mkdir -m 0 /logs/d",
    "link to the daemon's environment": "ln -s /proc/1/environ /logs/x",
    "socket": "python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('/logs/x')\"",
    "too many to list": "cd /logs && python3 -c \"for i in range(60000): open(f'{i:0100}', 'w').close()\"",
}


@pytest.mark.parametrize("script", ARTIFACTS.values(), ids=ARTIFACTS.keys())
def test_odd_artifacts_change_no_outcome(client: Client, script: str) -> None:
    job = Job(
        key="odd",
        image="host",
        steps=[Step("run", f"mkdir /logs; {script}; exit 1")],
        artifacts=[Artifact("/logs/**")],
    )
    trial = run(client, job)
    assert (trial.outcome, len(trial.attempts)) == ("failed", 1), trial.failure
    assert [a.path for a in client.iter_artifacts(trial.id) if a.path == "/logs/x"] == []


def test_link_to_the_expected_output_does_not_pass(client: Client) -> None:
    source = "import os; os.remove('/submission/output'); os.symlink('/judge/expected', '/submission/output')"
    assert run(client, make_job(source, expected="55\n")).outcome == "failed"
    assert run(client, make_job("print(55)", expected="55\n")).outcome == "passed"
