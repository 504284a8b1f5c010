"""`up` as a person or a program starts it, with every part of the stack."""

import base64
import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from launcher.embedded import embedded_services
from launcher.ports import LOOPBACK, find_free_port
from sandmill import Client, Job, RetryPolicy, Step
from tests.support.launching import launcher_environment, processes_of, wait_until
from tests.support.services import THROWAWAY, throwaway_folder

pytestmark = pytest.mark.slow

DEATH_SECONDS = 3.0

KEYS = {"SANDMILL_SERVER_API_KEY": "a-key-of-many-letters", "SANDMILL_SECRET_KEY": "0123456789abcdef" * 2}


@dataclass
class Up:
    """A running `up`."""

    process: "subprocess.Popen[str]"
    home: Path
    api: str
    api_key: str
    ingress: str
    flower: str | None

    def get(self, path: str, **headers: str) -> tuple[int, bytes]:
        return get(self.api, path, **headers)

    def authorised(self) -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException):
            return self.get("/v1/batches", Authorization=f"Bearer {self.api_key}")[0] == 200
        return False

    def pid_of(self, text: str) -> int | None:
        """Process id of the child whose command line holds the text; None while there is none."""
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError, IndexError):
                parent = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
                if parent == self.process.pid and text.encode() in (folder / "cmdline").read_bytes():
                    return int(folder.name)
        return None

    def runs_a_job(self) -> bool:
        patient = RetryPolicy(attempts=1000, cap_seconds=1.0, budget_seconds=60.0)
        with Client(self.api, self.api_key, retry=patient) as client:
            batch = client.submit_job(Job(key="k", image="host", steps=[Step("run", "true")])).batch_id
            return client.wait(batch, timeout_seconds=90).trials.by_outcome == {"passed": 1}


def get(url: str, path: str, **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(urlsplit(url).netloc.split("@")[-1], timeout=10)
    with contextlib.closing(connection):
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()


@contextlib.contextmanager
def up(home: Path, *options: str, **environment: str) -> Iterator[Up]:
    """Run `up` until the block ends."""
    process = start(home, ["--json", "--port", "0", *options], **environment)
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        line = process.stdout.readline()
        assert line, process.stderr.read()
        yield Up(process, home, **json.loads(line))
    finally:
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=60)


def start(home: Path, options: Sequence[str], **environment: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "launcher.cli", "up", *options],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=launcher_environment({"SANDMILL_HOME": str(home), **environment}),
    )


def refusal(home: Path, *options: str, **environment: str) -> str:
    """Run `up` where it must refuse; gives its one line."""
    process = start(home, options, **environment)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (1, "")
    assert err.count("\n") == 1, err
    return err.removesuffix("\n")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with up(tmp_path_factory.mktemp("up") / "a home") as found:
        yield found


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """One whose servers are not its own, and whose keys the person has chosen."""
    folder = tmp_path_factory.mktemp("elsewhere")
    with (
        throwaway_folder(folder / "servers") as place,
        embedded_services(place, settings=THROWAWAY) as servers,
        up(
            folder / "home", "--no-flower", **KEYS,
            DATABASE_URL=servers.database_url, REDIS_URL=servers.redis_url,
        ) as found,
    ):  # fmt: skip
        yield found


def test_everything_answers_once_the_line_is_printed(running):
    assert running.get("/readyz")[0] == 200
    assert running.authorised()
    assert running.get("/v1/batches")[0] == 401


def test_the_ingress_answers_at_the_address_that_is_told(running):
    assert get(running.ingress, "/status.ok")[0] == 200


def test_where_code_of_others_runs_there_is_no_key(elsewhere):
    key = KEYS["SANDMILL_SERVER_API_KEY"]
    assert elsewhere.get("/v1/batches", Authorization=f"Bearer {key}")[0] == 200
    for part, expected in (("workers", set()), ("ingress", set()), ("uvicorn", set(KEYS))):
        environment = Path(f"/proc/{elsewhere.pid_of(part)}/environ").read_bytes().decode()
        assert {name for name in KEYS if f"{name}=" in environment} == expected, part


def test_flower_shows_the_worker_to_who_has_the_password_alone(running):
    assert running.flower is not None
    found = urlsplit(running.flower)
    secret = base64.b64encode(f"{found.username}:{found.password}".encode()).decode()
    for path in ("/workers", "/api/workers", "/api/tasks"):
        assert get(running.flower, path)[0] == 401
        assert get(running.flower, path, Authorization="Basic d3Jvbmc6d3Jvbmc=")[0] == 401

    def is_shown() -> bool:
        status, body = get(running.flower, "/workers?json=1", Authorization=f"Basic {secret}")
        assert status == 200
        return any(
            row["hostname"].startswith("worker-") and row["status"] for row in json.loads(body)["data"]
        )

    wait_until(is_shown, timeout_seconds=30)


def test_no_secret_is_on_a_command_line(running):
    secrets = [file.read_text() for file in (running.home / "state" / "secrets").iterdir()]
    assert running.api_key in secrets
    lines = [
        (descriptor.parents[1] / "cmdline").read_bytes().decode()
        for descriptor in Path("/proc").glob("[0-9]*/fd/*")
        if same_file(descriptor, running.home / "children.lock")
    ]
    for part in ("bin/postgres", "valkey-server", "workers", "uvicorn", "ingress", "scheduler", "flower"):
        assert any(part in line for line in lines), part
    assert not [line for line in lines if any(secret in line for secret in secrets)]


def same_file(descriptor: Path, file: Path) -> bool:
    try:
        return descriptor.samefile(file)
    except OSError:
        return False


@pytest.mark.parametrize(
    "victim", ["workers", "uvicorn", "ingress", "scheduler", "bin/postgres", "valkey-server"]
)
@pytest.mark.timeout(240)
def test_killed_part_is_started_again_and_jobs_run(running, victim):
    old = running.pid_of(victim)
    os.kill(old, signal.SIGKILL)
    wait_until(lambda: running.pid_of(victim) not in {None, old})
    assert running.runs_a_job()


def test_port_in_use_is_refused_before_anything_is_started(tmp_path):
    with socket.create_server((LOOPBACK, 0)) as server:
        port = server.getsockname()[1]
        message = refusal(tmp_path / "home", "--port", str(port))
    assert message.startswith(f"sandmill: port {port} for the API is taken")
    assert not list((tmp_path / "home" / "logs").iterdir())


@pytest.mark.parametrize("same_port", [False, True])
def test_second_copy_on_the_same_home_is_refused(running, same_port):
    message = refusal(running.home, "--port", running.api.rpartition(":")[2] if same_port else "0")
    assert "another copy of Sandmill runs on" in message
    assert running.authorised()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("DATABASE_URL", "mysql://h/x", "DATABASE_URL must look like postgresql://"),
        ("REDIS_URL", "http://h", "REDIS_URL must look like redis://"),
        ("SANDMILL_API_PORT", "many", "SANDMILL_API_PORT: must be a whole number from 0 to 65535"),
        ("SANDMILL_HOME", "/proc/nowhere", "cannot write to /proc/nowhere"),
    ],
)
def test_wrong_setting_is_one_line_that_names_it(tmp_path, name, value, message):
    assert message in refusal(tmp_path / "home", **{"SANDMILL_API_PORT": "0", name: value})


def test_programs_that_cannot_start_are_named_and_nothing_stays(tmp_path):
    home = tmp_path / "home"
    env = {"SANDMILL_RUNTIMES": '["docker"]', "DOCKER_HOST": "unix:///nowhere/docker.sock"}
    message = refusal(home, "--port", "0", "--no-flower", **env)
    assert "worker ended while starting" in message
    assert "the Docker engine does not answer" in message
    assert str(home / "logs" / "worker.log") in message
    assert processes_of(home) == []


def test_interrupt_while_starting_stops_everything_quietly(tmp_path):
    home = tmp_path / "home"
    process = start(home, ["--json", "--port", "0"])
    wait_until((home / "logs" / "valkey.log").exists, timeout_seconds=30)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=30) == ("", "")
    assert process.returncode == 0
    assert processes_of(home) == []


def test_killed_up_takes_all_along_and_the_next_has_the_same_key_and_ends_quietly(tmp_path):
    home = tmp_path / "home"
    options = ["--no-flower", "--port", str(find_free_port())]
    with up(home, *options) as first:
        assert first.api == f"http://{LOOPBACK}:{options[-1]}"
        assert first.flower is None
        first.process.kill()
        wait_until(lambda: processes_of(home) == [], timeout_seconds=DEATH_SECONDS)
    with up(home, *options) as second:
        assert (second.api, second.api_key) == (first.api, first.api_key)
        assert second.authorised()
        second.process.send_signal(signal.SIGINT)
        out, err = second.process.communicate(timeout=30)
    assert (second.process.returncode, out, err) == (0, "", "")
    assert processes_of(home) == []


def test_external_servers_replace_our_own(elsewhere):
    assert elsewhere.authorised()
    assert sorted(path.name for path in (elsewhere.home / "state").iterdir()) == ["secrets"]
    assert not [name for name in processes_of(elsewhere.home) if name.startswith(("postgres", "valkey"))]
