"""`sandmill-server doctor`: a line per check, and an exit code for programs."""

import subprocess
import sys
from pathlib import Path

from launcher.ports import find_free_port
from launcher.state import Home
from tests.support.launching import launcher_environment, processes_of
from tests.support.sandboxes import is_root

MODES = [
    f"runtime local, {mode}"
    for mode in ("zygote", "bwrap", "stored images", "disk files", "pause, snapshot and fork")
    if is_root() or mode in ("bwrap", "stored images")
]


def doctor(home: Path, **environment: str) -> tuple[int, list[str]]:
    done = subprocess.run(
        [sys.executable, "-m", "launcher.cli", "doctor"],
        env=launcher_environment({"SANDMILL_HOME": str(home), **environment}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.stderr == ""
    # How many processes there may be is the machine's matter.
    lines = [line for line in done.stdout.splitlines() if not line.startswith("note  processes:")]
    return done.returncode, lines


def test_each_check_has_its_line_and_nothing_stays(tmp_path):
    home = tmp_path / "home"
    code, lines = doctor(home)
    checks = [line for line in lines if not line.startswith("note")]
    assert [line[4:].strip().split(":")[0] for line in checks] == [
        "config", "python", "home", "postgres", "valkey", "runtime local", *MODES, "runtime docker",
    ]  # fmt: skip
    tried = [line for line in checks if ", " in line.partition(":")[0]]
    assert [line for line in tried if not line.startswith("ok")] == []
    assert code == (1 if any(line.startswith("FAIL") for line in lines) else 0)
    assert lines[3].startswith("ok    postgres: PostgreSQL 18.")
    assert not (home / "doctor").exists()
    assert processes_of(home) == []


def test_it_does_not_disturb_who_runs_on_the_home(tmp_path):
    with Home(tmp_path / "home"):
        lines = doctor(tmp_path / "home")[1]
    assert lines[2].startswith("ok    home:")
    assert lines[3].startswith("ok    postgres:")


def test_home_that_cannot_be_written_ends_it(tmp_path):
    (tmp_path / "home").write_text("")
    code, lines = doctor(tmp_path / "home")
    assert code == 1
    assert lines[2].startswith("FAIL  home: cannot write to")
    assert len(lines) == 3


def test_external_servers_are_asked_instead_of_ours(tmp_path, database_url):
    away = f"redis://:hunter2@127.0.0.1:{find_free_port()}/0"
    code, lines = doctor(tmp_path / "home", DATABASE_URL=database_url, REDIS_URL=away)
    assert code == 1
    assert lines[3] == "ok    DATABASE_URL: answers"
    assert lines[4].startswith("FAIL  REDIS_URL: REDIS_URL does not work")
    assert "hunter2" not in "".join(lines)
    assert not any("postgres:" in line for line in lines)
