"""Configuration files as people use them: written by `init-config`, or taken over from an OpenSandbox server."""

import contextlib
import http.client
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from launcher.ports import find_free_port
from tests.support.images import BUSYBOX_IMAGE, ensure_images, require_docker
from tests.support.launching import launcher_environment, wait_until

pytestmark = pytest.mark.slow

KEY = "key-of-an-existing-installation"

JOB = {"key": "k", "image": "host", "steps": [{"name": "s", "run": "true"}]}

ORIGINAL = """\
[server]
host = "127.0.0.1"
port = {port}
api_key = "{key}"
max_sandbox_timeout_seconds = 86400
timeout_keep_alive = 30
limit_concurrency = 1024
thread_pool_size = 200

[log]
level = "INFO"

[runtime]
type = "{runtime}"
execd_image = "opensandbox/execd:v1.1.0"

[docker]
network_mode = "bridge"
drop_capabilities = ["AUDIT_WRITE", "MKNOD", "NET_ADMIN", "NET_RAW", "SYS_ADMIN"]
apparmor_profile = ""
no_new_privileges = true
seccomp_profile = ""
port_range_min = 40000
port_range_max = 60000
pids_limit = 4096

[ingress]
mode = "direct"

[storage]
allowed_host_paths = []

[store]
type = "sqlite"
path = "~/.opensandbox/opensandbox.db"

[egress]
image = "opensandbox/egress:v1.1.7"
mode = "dns"

[secure_runtime]
type = ""

[renew_intent]
enabled = false
"""

TOLD = [
    "[server] thread_pool_size is",
    "[runtime] execd_image is",
    "[docker] network_mode is",
    "[docker] drop_capabilities is",
    "[docker] port_range_min, port_range_max are",
    "[store] type, path are",
    "[egress] image, mode are",
]


def command(*words: str, cwd: Path, **environment: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "launcher.cli", *words],
        cwd=cwd,
        env=launcher_environment({"HOME": str(cwd), "SANDMILL_CONFIG": "", **environment}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextlib.contextmanager
def up(
    cwd: Path, *words: str, **environment: str
) -> Iterator[tuple[dict[str, Any], "subprocess.Popen[str]"]]:
    process = command("up", "--json", "--no-flower", *words, cwd=cwd, **environment)
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        line = process.stdout.readline()
        assert line, process.stderr.read()
        yield json.loads(line), process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)


def ask(url: str, method: str, path: str, key: str, body: Any = None) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
    headers = {"OPEN-SANDBOX-API-KEY": key, "Content-Type": "application/json"}
    with contextlib.closing(connection):
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        data = answer.read()
        return answer.status, json.loads(data) if data else None


def outcomes(url: str, batch_id: str) -> Any:
    return ask(url, "GET", f"/v1/batches/{batch_id}", KEY)[1]["trials"]["by_outcome"]


@pytest.mark.one_a_day("runtime")
@pytest.mark.parametrize("runtime", ["local", pytest.param("docker", marks=pytest.mark.docker)])
def test_a_file_of_an_original_server_starts_this_one(tmp_path, runtime):
    image = "host"
    if runtime == "docker":
        require_docker()
        ensure_images()
        image = BUSYBOX_IMAGE
    port = find_free_port()
    (tmp_path / ".sandbox.toml").write_text(ORIGINAL.format(port=port, key=KEY, runtime=runtime))
    (tmp_path / ".sandbox.toml").chmod(0o600)
    with up(tmp_path) as (told, process):
        assert told["api"] == f"http://127.0.0.1:{port}"
        assert ask(told["api"], "GET", "/v1/sandboxes", KEY)[0] == 200
        assert ask(told["api"], "GET", "/v1/sandboxes", f"{KEY}x") == (401, ANY_KEY_REFUSAL)
        # The image is known to the runtime that the file names, and to no other.
        status, job = ask(told["api"], "POST", "/v1/jobs", KEY, {**JOB, "image": image})
        assert status == 202, job
        wait_until(lambda: outcomes(told["api"], job["batch_id"]) == {"passed": 1}, timeout_seconds=90)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert (tmp_path / ".sandmill" / "state" / "secrets").is_dir()
    prefix = f"sandmill: {tmp_path / '.sandbox.toml'}: "
    assert [line.removeprefix(prefix).partition(" without effect: ")[0] for line in err.splitlines()] == TOLD


ANY_KEY_REFUSAL = {
    "code": "INVALID_API_KEY",
    "message": "the API key is not valid: create one with 'sandmill-server key create'",
}


@pytest.mark.one_a_day("example")
@pytest.mark.parametrize("example", ["local", "compose", pytest.param("docker", marks=pytest.mark.docker)])
def test_a_sample_starts_a_server(tmp_path, example):
    done = command("init-config", "my.toml", "--example", example, cwd=tmp_path)
    out, err = done.communicate(timeout=60)
    assert (done.returncode, out, err) == (0, f"wrote {tmp_path / 'my.toml'}\n", "")
    with up(tmp_path, "--config", "my.toml", "--port", "0", SANDMILL_HOME=str(tmp_path / "home")) as (
        told,
        process,
    ):
        assert ask(told["api"], "GET", "/v1/batches", told["api_key"])[0] == 200
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60) == ("", "")


def test_a_file_in_the_working_directory_holds_for_all_programs(tmp_path):
    (tmp_path / "sandmill.toml").write_text(
        f"[node]\nhome = '{tmp_path}/state'\n[server]\nport = 0\nruntime = 'fake'\n"
        "[worker]\nruntimes = ['fake']\n[log]\nformat = 'console'\n"
    )
    with up(tmp_path) as (told, _):
        admin = command("key", "create", "--admin", "x", cwd=tmp_path)
        # It finds the database of the home that the file names.
        assert admin.communicate(timeout=60)[0].startswith("sm_")
        assert ask(told["api"], "POST", "/v1/jobs", told["api_key"], JOB)[0] == 202
    # The scheduler runs in another folder and has read it, too.
    lines = (tmp_path / "state" / "logs" / "scheduler.log").read_text().splitlines()
    assert lines
    assert not [line for line in lines if line.startswith("{")]


def test_a_wrong_file_is_one_line_before_anything_is_touched(tmp_path):
    path = tmp_path / "wrong.toml"
    path.write_text("[server]\nport = 'many'\n")
    process = command("up", "--config", str(path), cwd=tmp_path)
    assert process.communicate(timeout=60) == (
        "",
        f"sandmill: {path}, line 2: [server] port: must be a whole number from 0 to 65535, not 'many'\n",
    )
    assert process.returncode == 1
    assert [file.name for file in tmp_path.iterdir()] == ["wrong.toml"]


def test_an_open_api_without_keys_is_refused(tmp_path):
    path = tmp_path / "sandmill.toml"
    path.write_text("[server]\nhost = '0.0.0.0'\n")
    process = command("up", cwd=tmp_path, OPENSANDBOX_INSECURE_SERVER="YES")
    _, err = process.communicate(timeout=60)
    assert err.startswith(
        "sandmill: SANDMILL_INSECURE_SERVER: the API listens on 0.0.0.0, where anybody could run code"
    )
    assert err.count("\n") == 1


def test_init_config_keeps_a_file_that_is_there(tmp_path):
    (tmp_path / "sandmill.toml").write_text("mine")
    process = command("init-config", cwd=tmp_path, SANDMILL_CONFIG="/dev/null")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "sandmill.toml is there already: name another file, or take --force to lose it" in err
    assert (tmp_path / "sandmill.toml").read_text() == "mine"
