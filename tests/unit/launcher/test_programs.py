import os
import subprocess
import sys

from launcher.programs import child_environment
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
