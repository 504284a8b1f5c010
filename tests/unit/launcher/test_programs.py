import os
import subprocess
import sys

from core.config import Settings
from launcher.programs import api_command, api_options, child_environment
from tests.support.launching import REPOSITORY


def test_folder_with_our_names_does_not_hide_our_packages(tmp_path):
    (tmp_path / "core").mkdir()
    (tmp_path / "core" / "__init__.py").write_text("raise SystemExit('the wrong one')")
    done = subprocess.run(
        [sys.executable, "-m", "core.ids"],
        cwd=tmp_path,
        env=child_environment({}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_search_path_of_the_user_is_kept_behind_ours(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/theirs")
    assert child_environment({})["PYTHONPATH"] == f"{REPOSITORY}{os.pathsep}/theirs"
    monkeypatch.delenv("PYTHONPATH")
    assert child_environment({})["PYTHONPATH"] == str(REPOSITORY)


def test_settings_of_the_stack_win_over_the_environment(monkeypatch):
    monkeypatch.setenv("DATABASE_URL", "theirs")
    assert child_environment({"DATABASE_URL": "ours"})["DATABASE_URL"] == "ours"


def test_children_read_the_file_that_we_read_wherever_they_run(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SANDMILL_CONFIG", "")
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))
    monkeypatch.setenv("SANDMILL_HOME", str(tmp_path / "nowhere"))
    assert child_environment({})["SANDMILL_CONFIG"] == ""
    (tmp_path / "sandmill.toml").touch()
    assert child_environment({})["SANDMILL_CONFIG"] == str(tmp_path / "sandmill.toml")


def test_settings_of_the_api_are_options_of_its_server():
    words = api_command("::1", 80, api_options(settings(api_limit_concurrency=7, api_backlog=9)))
    options = dict(zip(words[5::2], words[6::2], strict=False))
    assert (options["--host"], options["--port"]) == ("::1", "80")
    assert (options["--limit-concurrency"], options["--backlog"]) == ("7", "9")
    assert (options["--timeout-keep-alive"], options["--timeout-graceful-shutdown"]) == ("65", "3")
    assert "--limit-concurrency" not in api_command("::1", 80, api_options(settings()))
    assert api_command("::1", 80) == api_command("::1", 80, api_options(settings()))


def settings(**values):
    return Settings(database_url="postgresql:", redis_url="redis:", **values)
