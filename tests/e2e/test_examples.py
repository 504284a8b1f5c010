"""Every example that is in a file or a README runs as it stands."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.stack import Stack, StackConfig
from sandmill import Client
from tests.support.launching import REPOSITORY, launcher_environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

RIGHT = "print(5 * 11)\n"
SLOW = "while True: pass\n"
WRONG = "print(54)\n"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    home = tmp_path_factory.mktemp("examples") / "home"
    with Stack(StackConfig(home=home, with_flower=False)) as stack:
        paths = f"{REPOSITORY}{os.pathsep}{REPOSITORY / 'sdk/python/src'}"
        yield launcher_environment(
            {
                "PYTHONPATH": paths,
                "SANDMILL_API_URL": stack.api_url,
                "SANDMILL_API_KEY": stack.api_key,
                "OPEN_SANDBOX_DOMAIN": stack.api_url.removeprefix("http://"),
                "OPEN_SANDBOX_API_KEY": stack.api_key,
            }
        )


def run(environment: dict[str, str], *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, timeout=90, env=environment, check=False
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="snapshots of local sandboxes need root")
def test_live_sandbox(environment: dict[str, str]) -> None:
    done = run(environment, "-m", "examples.live_sandbox")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "command: hello from Linux",
        "port: served from inside",
        "after a pause: served from inside",
        "restored: served from inside",
    ]


@pytest.mark.parametrize(
    ("source", "code", "expected"),
    [
        (None, 0, "passed"),
        (RIGHT, 0, "passed"),
        (WRONG, 1, "failed (nonzero_exit"),
        (SLOW, 1, "failed (step_timeout"),
    ],
    ids=["sample", "right", "wrong", "endless"],
)
def test_submission_gets_its_verdict(
    environment: dict[str, str], tmp_path: Path, source: str | None, code: int, expected: str
) -> None:
    words = ["-m", "examples.grade_submission"]
    if source is not None:
        (tmp_path / "main.py").write_text(source)
        words.append(str(tmp_path / "main.py"))
    done = run(environment, *words)
    assert (done.returncode, done.stderr) == (code, "")
    assert done.stdout.splitlines()[-1].startswith(expected)


@pytest.mark.skipif(shutil.which("curl") is None, reason="the README uses curl")
def test_calls_of_the_readme_submit_a_job_and_show_state_and_output(environment: dict[str, str]) -> None:
    blocks = re.findall(r"```console\n(.*?)```", (REPOSITORY / "README.md").read_text(), re.DOTALL)
    (submit,) = (block for block in blocks if "/v1/jobs" in block)
    (look,) = (block for block in blocks if "BATCH_ID" in block)
    define, *calls = [line.removeprefix("$ ") for line in look.splitlines()]

    def shell(text: str) -> Any:
        done = subprocess.run(
            ["sh", "-c", text], capture_output=True, text=True, timeout=30, env=environment, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
        return json.loads(done.stdout)

    batch = shell(submit.partition("\n$ ")[2])["batch_id"]
    with Client(environment["SANDMILL_API_URL"], environment["SANDMILL_API_KEY"]) as client:
        client.wait(batch, timeout_seconds=60)
    trials, trial, logs = (f"{define}\n{call}" for call in calls)
    found = shell(trials.replace("BATCH_ID", batch))["items"]
    assert [(item["state"], item["outcome"]) for item in found] == [("finished", "passed")] * 3
    (attempt,) = shell(trial.replace("TRIAL_ID", found[0]["id"]))["attempts"]
    (chunk,) = shell(logs.replace("ATTEMPT_ID", attempt["id"]))["items"]
    assert chunk["text"] == "42\n"


def test_readme_of_the_client_runs(environment: dict[str, str]) -> None:
    text = (REPOSITORY / "sdk/python/README.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    done = run(environment, "-c", program)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0] == "{'passed': 2, 'failed': 2}"
    assert "AssertionError" in done.stdout
    assert done.stdout.splitlines()[-1] == "{'1': 0.5, '2': 0.5}"


def test_interrupted_demo_takes_its_batch_back_from_a_running_server(
    environment: dict[str, str], tmp_path: Path
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "examples.swe_eval", "--json"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**environment, "SANDMILL_HOME": str(tmp_path / "home")},
    )
    with process, Client(environment["SANDMILL_API_URL"], environment["SANDMILL_API_KEY"]) as client:
        assert process.stderr is not None
        for line in process.stderr:
            if " verify | " in line:
                break
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        assert process.returncode == 130
        batch = client.wait(next(client.iter_batches()).id, timeout_seconds=60)
    assert batch.name == "swe-eval"
    assert batch.trials.by_outcome["cancelled"] > 0
