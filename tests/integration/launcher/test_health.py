"""`sandmill-server health`, where the program does not work; where it does, the compose tests ask it."""

import subprocess
import sys

import pytest

from launcher.ports import find_free_port
from tests.support.launching import launcher_environment


def ask(part: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "launcher.cli", "health", part],
        env=launcher_environment({"REDIS_URL": "redis://127.0.0.1:1/0", **environment}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ("api", "api does not work"),
        ("flower", "flower does not work"),
        ("ingress", "ingress does not work"),
        ("scheduler", "scheduler does not work"),
        ("worker", "the worker has not started"),
    ],
)
def test_program_that_does_not_run_is_unhealthy(tmp_path, database_url, part, message):
    port = str(find_free_port())
    done = ask(
        part,
        DATABASE_URL=database_url,
        SANDMILL_HOME=str(tmp_path),
        SANDMILL_API_PORT=port,
        SANDMILL_INGRESS_PORT=port,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_worker_whose_session_ended_is_unhealthy(tmp_path, database_url):
    (tmp_path / "node").mkdir()
    (tmp_path / "node" / "node.id").write_text("01a22df0-ad58-744a-a842-a038a8d00010\n")
    done = ask("worker", DATABASE_URL=database_url, SANDMILL_HOME=str(tmp_path))
    assert done.returncode == 1
    assert "worker does not work" in done.stderr


@pytest.mark.parametrize("part", ["scheduler", "worker"])
def test_database_that_is_away_is_unhealthy_and_shows_no_password(tmp_path, part):
    url = f"postgresql://user:hunter2@127.0.0.1:{find_free_port()}/x"
    done = ask(part, DATABASE_URL=url, SANDMILL_HOME=str(tmp_path))
    assert done.returncode == 1
    assert "hunter2" not in done.stderr


def test_unknown_program_is_wrong_usage(tmp_path):
    assert ask("nonsense", DATABASE_URL="postgresql://h/x").returncode == 2
