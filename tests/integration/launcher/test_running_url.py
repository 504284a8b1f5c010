"""Commands that need the database of what `up` runs, without being told where it is."""

import os
import subprocess
import sys

import psycopg
import pytest

from launcher.embedded import embedded_services
from launcher.postgres import running_url
from migrations.migrate import upgrade
from tests.support.launching import launcher_environment


def server(home, *arguments):
    environment = launcher_environment({"SANDMILL_HOME": str(home)})
    for name in ("DATABASE_URL", "REDIS_URL", "SANDMILL_DATABASE_URL", "SANDMILL_REDIS_URL"):
        environment.pop(name, None)
    return subprocess.run(
        [sys.executable, "-P", "-m", "launcher.cli", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.slow
def test_commands_find_the_database_that_runs_in_the_home_and_no_other(tmp_path):
    home = tmp_path / "home"
    assert running_url(home) is None
    with embedded_services(home) as services:
        assert running_url(home) == services.database_url
        upgrade(services.database_url)
        made = server(home, "key", "create", "--admin", "night shift")
        assert made.returncode == 0, made.stderr
        assert made.stdout.startswith("sm_")
        with psycopg.connect(services.database_url) as database:
            rows = database.execute("SELECT name FROM api_keys WHERE role = 'admin'").fetchall()
        assert rows == [("night shift",)]
        verified = server(home, "verify")
        assert verified.returncode == 0, verified.stderr
    assert running_url(home) is None
    refused = server(home, "key", "create", "x")
    assert (refused.returncode, refused.stderr) == (
        1,
        f"sandmill: DATABASE_URL: must be set (postgresql://user:password@host:port/database){os.linesep}",
    )


def test_a_file_that_a_killed_server_left_is_none(tmp_path):
    data = tmp_path / "state/pg18/data"
    data.mkdir(parents=True)
    for text in ("", "x\n", f"{2**22 + 1}\n/data\n1\n5432\n"):
        (data / "postmaster.pid").write_text(text)
        assert running_url(tmp_path) is None
