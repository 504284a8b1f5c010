"""What is refused before anything is started, each in one line that says what to do."""

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from launcher import state
from launcher.errors import StartupError
from launcher.state import Home
from tests.support.launching import as_user, hold_services, processes_of, refusal


def test_second_copy_on_one_home_is_refused_at_once(tmp_path):
    with hold_services(tmp_path / "home") as holder:
        message = refusal(tmp_path / "home")
        assert holder.process.poll() is None
    assert "another copy of Sandmill runs on" in message
    assert "SANDMILL_HOME" in message
    assert "\n" not in message


def test_programs_of_a_killed_copy_that_never_end_are_told(tmp_path, monkeypatch):
    monkeypatch.setattr(state, "ORPHAN_TIMEOUT_SECONDS", 0.1)
    with Home(tmp_path / "home") as first:
        orphan = subprocess.Popen(["sleep", "600"], pass_fds=[first.children_lock_fd])
    with orphan:
        try:
            with pytest.raises(StartupError, match="of an earlier, killed copy still run"), Home(first.path):
                pass
        finally:
            orphan.kill()
    with Home(first.path):
        pass


def test_two_copies_with_two_homes_run_side_by_side(tmp_path):
    with hold_services(tmp_path / "one") as one, hold_services(tmp_path / "two") as two:
        assert one.database_url != two.database_url
        assert one.redis_url != two.redis_url


@pytest.mark.parametrize("made_before", [True, False], ids=["home exists", "parent exists"])
def test_read_only_home_is_named(tmp_path, made_before):
    prefix = as_user("games")
    parent = tmp_path / "closed"
    home = parent / "home"
    (home if made_before else parent).mkdir(parents=True)
    message = refusal(home, prefix=prefix)
    assert message.startswith(f"cannot write to {home} (Permission denied): set SANDMILL_HOME")
    assert "\n" not in message


def test_home_that_is_a_file_is_named(tmp_path):
    (tmp_path / "home").write_text("")
    with (
        pytest.raises(StartupError, match=r"cannot write to .*home \(File exists\)"),
        Home(tmp_path / "home"),
    ):
        pass


def test_too_long_path_is_named(tmp_path):
    with (
        pytest.raises(StartupError, match="longer than 900 bytes"),
        Home(tmp_path / "/".join(["x" * 200] * 5)),
    ):
        pass


def test_full_disk_is_named(tmp_path):
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("mounting a small disk needs root and unshare")
    disk = tmp_path / "disk"
    disk.mkdir()
    script = 'mount -t tmpfs -o size=64m none "$0" && exec "$@"'
    prefix = ["unshare", "--mount", "--propagation=private", "sh", "-c", script, str(disk)]
    message = refusal(disk / "home", prefix=prefix)
    assert "MiB are free on the disk" in message
    assert "at least 512 MiB are needed" in message
    assert "\n" not in message


def test_refused_start_leaves_no_process(tmp_path):
    with Home(tmp_path / "home") as home:
        home.write_secret("postgres_password", "one")
    refused = tmp_path / "home" / "state" / "pg18"
    refused.write_text("a file where a folder is needed")
    message = refusal(tmp_path / "home")
    assert "pg18" in message
    assert processes_of(tmp_path / "home") == []


def test_everything_in_the_home_is_closed_to_other_users(tmp_path):
    with hold_services(tmp_path / "home"):
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "home").iterdir()}
        assert stat.S_IMODE((tmp_path / "home").stat().st_mode) == 0o700
    assert modes == {"state": 0o700, "logs": 0o700, "launcher.lock": 0o600, "children.lock": 0o600}


def test_secret_is_made_once_and_whole(tmp_path):
    with Home(tmp_path / "home") as home:
        first = home.secret("some")
        assert home.secret("some") == first
        assert len(first) >= 43
        assert sorted(path.name for path in home.secrets.iterdir()) == ["some"]
    with Home(tmp_path / "home") as home:
        assert home.secret("some") == first


def test_home_is_free_again_after_it_was_left(tmp_path):
    for _ in range(2):
        with Home(tmp_path / "home"):
            pass
    assert Path(tmp_path / "home").is_dir()
