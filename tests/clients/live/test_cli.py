"""The published command line, every command of it. mark.docker"""

import json
import os
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.client_environment import client_environment
from tests.support.live import LiveServer

pytestmark = pytest.mark.one_a_day("server")


class Osb:
    """`osb` as a user has it: in an environment and with a home of its own.

    One process takes all commands, since starting the program takes longer than most of what it does; each command is
    parsed and run from its beginning, with an environment of its own.
    """

    def __init__(self, driver: "Driver", server: LiveServer, home: Path) -> None:
        self._driver = driver
        self.server = server
        self._env = {
            "HOME": str(home),
            "OPENSANDBOX_DISABLE_METRICS": "1",
            "NO_COLOR": "1",
            "COLUMNS": "200",
            **server.variables,
        }

    def run(self, *words: str, fails: bool = False, env: dict[str, str] | None = None) -> str:
        answer = self._driver.ask({"words": words, "env": {**self._env, **(env or {})}})
        assert (answer["code"] != 0) == fails, (words, answer)
        return str(answer["out"] + answer["err"] if fails else answer["out"])

    def json(self, *words: str) -> Any:
        return json.loads(self.run(*words, "-o", "json"))


class Driver:
    """A process with the official program, which takes commands by lines."""

    PROGRAM = textwrap.dedent(
        """
        import json, os, sys
        from click.testing import CliRunner
        from opensandbox_cli.main import cli

        kept = dict(os.environ)
        for line in sys.stdin:
            asked = json.loads(line)
            os.environ.clear()
            os.environ.update(kept, **asked["env"])
            result = CliRunner().invoke(cli, asked["words"])
            answer = {"code": result.exit_code, "out": result.stdout, "err": result.stderr}
            print(json.dumps(answer), flush=True)
        """
    )

    def __init__(self, python: Path) -> None:
        self._process = subprocess.Popen(
            [python, "-c", self.PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={"PATH": os.environ["PATH"]},
        )

    def ask(self, command: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the program ended with {self._process.wait()}"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture(scope="module")
def driver() -> Iterator[Driver]:
    made = Driver(client_environment("requirements.lock") / "python")
    yield made
    made.close()


@pytest.fixture
def osb(driver: Driver, server: LiveServer, tmp_path: Path) -> Osb:
    return Osb(driver, server, tmp_path)


@pytest.fixture
def box(osb: Osb) -> Iterator[str]:
    made = osb.json(
        *("sandbox", "create", "-i", osb.server.image, "-t", "10m", "-e", "GREETING=hi", "-m", "team=a"),
        *("--entrypoint", "tail", "--entrypoint", "-f", "--entrypoint", "/dev/null"),
    )
    yield made["id"]
    osb.run("sandbox", "kill", made["id"])


def test_sandbox_commands(osb: Osb, box: str) -> None:
    assert osb.json("sandbox", "get", box)["status"]["state"] == "Running"
    assert box in osb.run("sandbox", "list", "-m", "team=a", "-s", "Running", "-o", "json")
    assert "44772" in osb.run("sandbox", "endpoint", box, "-p", "44772", "-o", "json")
    assert "true" in osb.run("sandbox", "health", box, "-o", "json").lower()
    assert "cpu" in osb.run("sandbox", "metrics", box, "-o", "json").lower()
    osb.run("sandbox", "renew", box, "-t", "30m")
    osb.run("sandbox", "pause", box)
    assert osb.json("sandbox", "get", box)["status"]["state"] == "Paused"
    osb.run("sandbox", "resume", box)
    assert osb.json("sandbox", "get", box)["status"]["state"] == "Running"


def test_command_commands(osb: Osb, box: str) -> None:
    assert osb.run("command", "run", box, "--", "sh", "-c", "echo $GREETING; echo b") == "hi\nb\n"
    assert osb.run("command", "run", box, "-w", "/tmp", "--", "pwd") == "/tmp\n"
    osb.run("command", "run", box, "--", "false", fails=True)
    started = osb.run("command", "run", box, "-d", "-o", "json", "--", "sh", "-c", "echo late; sleep 60")
    execution = json.loads(started)["execution_id"]
    assert json.loads(osb.run("command", "status", box, execution, "-o", "json"))["running"] is True
    assert "late" in osb.run("command", "logs", box, execution)
    osb.run("command", "interrupt", box, execution)
    session = json.loads(osb.run("command", "session", "create", box, "-w", "/tmp", "-o", "json"))[
        "session_id"
    ]
    osb.run("command", "session", "run", box, session, "--", "export", "A=1")
    osb.run("command", "session", "run", box, session, "--", "cd", "/")
    assert osb.run("command", "session", "run", box, session, "--", "printenv", "A") == "1\n"
    assert osb.run("command", "session", "run", box, session, "--", "pwd") == "/\n"
    osb.run("command", "session", "delete", box, session)


def test_file_commands(osb: Osb, box: str, tmp_path: Path) -> None:
    osb.run("file", "mkdir", box, "/tmp/d", "--mode", "755")
    osb.run("file", "write", box, "/tmp/d/a.txt", "-c", "one two")
    assert osb.run("file", "cat", box, "/tmp/d/a.txt").rstrip("\n") == "one two"
    osb.run("file", "replace", box, "/tmp/d/a.txt", "--old", "two", "--new", "three")
    osb.run("file", "mv", box, "/tmp/d/a.txt", "/tmp/d/b.txt")
    osb.run("file", "chmod", box, "/tmp/d/b.txt", "--mode", "600")
    assert "600" in osb.run("file", "info", box, "/tmp/d/b.txt", "-o", "json")
    assert "/tmp/d/b.txt" in osb.run("file", "search", box, "/tmp/d", "-p", "*.txt", "-o", "json")
    local = tmp_path / "local.bin"
    local.write_bytes(bytes(range(256)) * 100)
    osb.run("file", "upload", box, str(local), "/tmp/d/c.bin")
    osb.run("file", "download", box, "/tmp/d/c.bin", str(tmp_path / "back.bin"))
    assert (tmp_path / "back.bin").read_bytes() == local.read_bytes()
    osb.run("file", "rm", box, "/tmp/d/b.txt")
    osb.run("file", "rmdir", box, "/tmp/d")
    osb.run("file", "info", box, "/tmp/d/b.txt", "-o", "json", fails=True)


def test_snapshot_commands(osb: Osb, box: str) -> None:
    made = osb.json("snapshot", "create", box, "--name", "mine")
    for _ in range(200):
        if osb.json("snapshot", "get", made["id"])["status"]["state"] == "Ready":
            break
    assert made["id"] in osb.run("snapshot", "list", "--sandbox-id", box, "-o", "json")
    osb.run("snapshot", "delete", made["id"])


def test_diagnostics_and_devops_commands(osb: Osb, box: str) -> None:
    osb.run("diagnostics", "logs", box, "-s", "container")
    assert "RUNNING" in osb.run("diagnostics", "events", box, "-s", "runtime").upper()
    osb.run("devops", "logs", box, "-n", "10")
    assert box in osb.run("devops", "inspect", box)
    osb.run("devops", "events", box, "-l", "10")
    assert box in osb.run("devops", "summary", box)


def test_what_is_not_offered_is_refused(osb: Osb, box: str, tmp_path: Path) -> None:
    osb.run("egress", "get", box, fails=True)
    osb.run("credential-vault", "get", box, fails=True)
    osb.run("template", "list", fails=True)
    osb.run("sandbox", "get", "00000000-0000-0000-0000-000000000000", fails=True)


def test_settings_and_skills(osb: Osb, tmp_path: Path) -> None:
    osb.run("config", "init")
    osb.run("config", "set", "connection.domain", osb.server.domain)
    assert osb.server.domain in osb.run("config", "show")
    osb.run("skills", "list")
    said = osb.run("sandbox", "list", fails=True, env={"OPEN_SANDBOX_API_KEY": "wrong"})
    assert "INVALID_API_KEY" in said or "API key" in said


def test_the_program_itself(server: LiveServer, tmp_path: Path) -> None:
    done = subprocess.run(
        [client_environment("requirements.lock") / "osb", "sandbox", "list", "-o", "json"],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), **server.variables},
    )
    assert done.returncode == 0, done.stderr
    json.loads(done.stdout)


def test_through_the_server_proxy(osb: Osb, box: str) -> None:
    assert osb.run("--use-server-proxy", "command", "run", box, "--", "echo", "there") == "there\n"
