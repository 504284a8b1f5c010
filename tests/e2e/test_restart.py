"""`up` killed in the middle of a batch, and started again: nothing is lost and nothing is counted twice."""

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from launcher.ports import find_free_port
from sandmill import Client, Job, JobDefaults, LogVerdict, RetryPolicy, Step, Trials
from tests.support.launching import launcher_environment, processes_of, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PATIENT = RetryPolicy(attempts=10_000, cap_seconds=1.0, budget_seconds=120.0)

# Prints what unittest does, slowly enough to be killed in the middle.
SUITE = """\
import time, unittest
class T(unittest.TestCase):
    def test_a(self):
        time.sleep(SECONDS)
    def test_b(self):
        self.assertEqual(RIGHT, True)
unittest.main(verbosity=2)
"""


def make_jobs() -> list[Job]:
    """Right, wrong and broken, quick and slow."""
    kinds = [
        ("right", "True", 0),
        ("wrong", "False", 0),
        ("slow-right", "True", 2),
        ("slow-wrong", "False", 2),
    ]
    return [
        Job(
            key=key,
            steps=[
                Step(
                    "verify",
                    argv=[
                        "python3",
                        "-u",
                        "-c",
                        SUITE.replace("SECONDS", str(seconds)).replace("RIGHT", right),
                    ],
                    role="verify",
                    streams="merged",
                )
            ],
        )
        for key, right, seconds in kinds
    ] + [
        Job(
            key="broken", steps=[Step("setup", "exit 3", role="setup"), Step("verify", "true", role="verify")]
        )
    ]


DEFAULTS = JobDefaults(image="host", verdict=LogVerdict("unittest", "verify"), trials=Trials(3))


@contextlib.contextmanager
def up(home: Path, port: int) -> Iterator[tuple["subprocess.Popen[str]", Client]]:
    """Run `up` until the block ends; it may be killed in it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "launcher.cli", "up", "--json", "--no-flower", "--port", str(port)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        env=launcher_environment({"SANDMILL_HOME": str(home)}),
    )
    assert process.stdout is not None
    with process, contextlib.ExitStack() as stack:
        stack.callback(process.terminate)
        found = json.loads(process.stdout.readline())
        yield process, stack.enter_context(Client(found["api"], found["api_key"], retry=PATIENT))


def figures(report: dict[str, Any]) -> dict[str, Any]:
    """The part of a report that may not depend on when what was killed."""
    by_chance = {"batch_id", "attempts", "infra_losses", "duration_s_total", "job_table"}
    table = [
        {name: value for name, value in row.items() if name not in {*by_chance, "duration_s_mean"}}
        for row in report["job_table"]
    ]
    return {**{name: value for name, value in report.items() if name not in by_chance}, "jobs": table}


def test_batch_survives_the_kill_of_everything(tmp_path: Path) -> None:
    home, port = tmp_path / "home", find_free_port()
    with up(home, port) as (process, client), ThreadPoolExecutor(1) as pool:
        undisturbed = client.submit_batch(make_jobs(), name="same", defaults=DEFAULTS)
        expected = client.report(client.wait(undisturbed.id, timeout_seconds=120).id)
        batch = client.submit_batch(make_jobs(), name="same", defaults=DEFAULTS)
        wait_until(
            lambda: any(trial.state == "running" for trial in client.iter_trials(batch.id, job="slow-right")),
            timeout_seconds=60,
        )
        assert not client.get_batch(batch.id).is_finished
        waiting = pool.submit(client.wait, batch.id, timeout_seconds=150)
        process.send_signal(signal.SIGKILL)
        process.wait()
        with up(home, port):
            assert waiting.result().trials.finished == 15
            report = client.report(batch.id)
    assert expected["trials_by_outcome"]["passed"] == 6
    assert figures(report) == figures(expected)
    assert report["infra_losses"] == 0  # the sandboxes went on, and the next worker with them
    wait_until(lambda: processes_of(home) == [])
