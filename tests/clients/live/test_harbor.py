"""Harbor with its own OpenSandbox environment: tasks that pass, fail, have no image, and take too long. mark.docker"""

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from opensandbox.models.sandboxes import SandboxFilter

from tests.support.client_environment import harbor_environment
from tests.support.execd import wait_for
from tests.support.live import LiveServer, live_client

TASK = """\
version = "1.0"

[metadata]
author_name = "sandmill"
difficulty = "easy"
category = "test"

[verifier]
timeout_sec = 60.0

[agent]
timeout_sec = {agent_seconds}

[environment]
docker_image = "{image}"
cpus = 1
memory_mb = 256
storage_mb = 512
"""

CHECK = """\
#!/bin/sh
if [ "$(cat /tmp/answer 2>/dev/null)" = "42" ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""


def write_task(folder: Path, name: str, *, image: str, solution: str, agent_seconds: float = 60.0) -> None:
    task = folder / name
    for part in ("environment", "tests", "solution"):
        (task / part).mkdir(parents=True)
    (task / "task.toml").write_text(TASK.format(image=image, agent_seconds=agent_seconds))
    (task / "instruction.md").write_text("Write 42 to /tmp/answer.\n")
    for path, text in (("tests/test.sh", CHECK), ("solution/solve.sh", f"#!/bin/sh\n{solution}\n")):
        (task / path).write_text(text)
        (task / path).chmod(0o755)


@pytest.fixture(scope="session")
def harbor() -> Path:
    return harbor_environment() / "harbor"


class Job:
    """One job of Harbor's, as its command line runs it."""

    def __init__(self, harbor: Path, server: LiveServer, tasks: Path, out: Path, *, agent: str) -> None:
        self.out = out / "job"
        self.argv = [
            *(str(harbor), "run", "-p", str(tasks), "-a", agent, "-e", "opensandbox", "-n", "4", "-q"),
            *("-o", str(out), "--job-name", "job", "-y"),
            *("--ek", "protocol=http", "--ek", f"domain={server.domain}", "--ek", f"api_key={server.key}"),
            *("--ek", 'entrypoint=["tail", "-f", "/dev/null"]', "--ek", "ready_timeout_sec=30"),
            *("--ek", "health_check_poll_interval_sec=0.2"),
        ]
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(out),
            "OPENSANDBOX_DOMAIN": server.domain,
            "OPENSANDBOX_DISABLE_METRICS": "1",
        }

    def run(self) -> str:
        done = subprocess.run(
            self.argv, check=False, capture_output=True, text=True, env=self.env, timeout=110
        )
        return done.stdout + done.stderr

    def results(self) -> dict[str, Any]:
        found = {}
        for path in self.out.glob("*/result.json"):
            result = json.loads(path.read_text())
            found[result["task_name"].rpartition("/")[2]] = result
        return found


def reward(result: dict[str, Any]) -> float | None:
    verified = result.get("verifier_result") or {}
    return (verified.get("rewards") or {}).get("reward")


def no_sandbox_is_left(server: LiveServer) -> bool:
    with live_client("sync", server) as client, client.managed() as manager:
        return manager.list_sandbox_infos(SandboxFilter()).sandbox_infos == []


def runs_a_solution(server: LiveServer) -> bool:
    """Whether the solution of a task that takes long is under way in some sandbox."""
    with live_client("sync", server) as client, client.managed() as manager:
        for info in manager.list_sandbox_infos(SandboxFilter(states=["Running"])).sandbox_infos:
            box = client.sandbox.connect(info.id, connection_config=client.config())
            try:
                if "sleep" in box.commands.run("cat /proc/[0-9]*/comm").text:
                    return True
            finally:
                box.close()
    return False


def test_four_tasks_with_the_oracle(harbor: Path, server: LiveServer, tmp_path: Path) -> None:
    tasks = tmp_path / "tasks"
    write_task(tasks, "passes", image=server.image, solution="echo 42 > /tmp/answer")
    write_task(tasks, "fails", image=server.image, solution="echo 41 > /tmp/answer")
    write_task(tasks, "no-image", image="no-such-image:here", solution="true")
    write_task(tasks, "too-slow", image=server.image, solution="sleep 300", agent_seconds=3.0)
    job = Job(harbor, server, tasks, tmp_path, agent="oracle")
    said = job.run()
    results = job.results()
    assert set(results) == {"passes", "fails", "no-image", "too-slow"}, said[-3000:]
    assert reward(results["passes"]) == 1.0, results["passes"]
    assert reward(results["fails"]) == 0.0
    assert "no-such-image" in json.dumps(results["no-image"]["exception_info"])
    assert "Timeout" in results["too-slow"]["exception_info"]["exception_type"]
    wait_for(lambda: no_sandbox_is_left(server))


def test_the_agent_that_does_nothing_fails(harbor: Path, server: LiveServer, tmp_path: Path) -> None:
    write_task(tmp_path / "tasks", "idle", image=server.image, solution="true")
    job = Job(harbor, server, tmp_path / "tasks", tmp_path, agent="nop")
    said = job.run()
    assert reward(job.results()["idle"]) == 0.0, said[-3000:]
    wait_for(lambda: no_sandbox_is_left(server))


def test_an_interrupted_job_leaves_nothing_and_resumes(
    harbor: Path, server: LiveServer, tmp_path: Path
) -> None:
    tasks = tmp_path / "tasks"
    for number in range(2):
        write_task(tasks, f"slow-{number}", image=server.image, solution="sleep 4; echo 42 > /tmp/answer")
    job = Job(harbor, server, tasks, tmp_path, agent="oracle")
    process = subprocess.Popen(job.argv, env=job.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: runs_a_solution(server), seconds=60)
        process.send_signal(signal.SIGINT)
        process.wait(60)
    finally:
        process.kill()
        process.wait()
    wait_for(lambda: no_sandbox_is_left(server), seconds=60)
    again = subprocess.run(
        [str(harbor), "job", "resume", "-p", str(job.out)],
        check=False,
        capture_output=True,
        text=True,
        env=job.env,
        timeout=110,
    )
    results = job.results()
    assert {name: reward(result) for name, result in results.items()} == {"slow-0": 1.0, "slow-1": 1.0}, (
        again.stdout[-2000:] + again.stderr[-2000:]
    )
    wait_for(lambda: no_sandbox_is_left(server))
