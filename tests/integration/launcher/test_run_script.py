"""The `run` script where it must refuse or needs no package; `.ci/run` is where it installs everything."""

import os
import shutil
import stat
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.launching import REPOSITORY

TOOLS = ("cat", "cksum", "dirname", "grep", "ls", "mkdir", "od", "rm", "sh", "sleep", "tr")
OLD_PYTHON = "#!/bin/sh\nexit 1\n"
PYTHON_WITHOUT_VENV = "#!/bin/sh\ncase $* in *ensurepip*) exit 1 ;; esac\n"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A folder with a blank in its name that holds the script and the lock files."""
    folder = tmp_path / "my clone"
    folder.mkdir()
    for file in (REPOSITORY / "run", *REPOSITORY.glob("requirements*.lock")):
        shutil.copy(file, folder)
    return folder


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A PATH with the plain tools and no Python."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in TOOLS:
        (folder / name).symlink_to(shutil.which(name))
    return folder


def add_program(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


def run(
    copy: Path, words: Sequence[str], *, path: str | Path = os.environ["PATH"], **environment: str
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [copy / "run", *words],
        cwd=copy.parent,
        env={"PATH": str(path), **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def last_line(done: "subprocess.CompletedProcess[str]") -> str:
    assert done.returncode == 1
    return done.stderr.splitlines()[-1]


def test_missing_python_is_told_with_the_way_out(copy, tools):
    add_program(tools, "python3", OLD_PYTHON)
    assert last_line(run(copy, ["up"], path=tools)) == (
        "run: no Python 3.11 or newer on PATH: install one, or set PYTHON to it, or install uv"
    )


def test_missing_venv_module_is_told_with_the_way_out(copy, tools):
    add_program(tools, "python3", PYTHON_WITHOUT_VENV)
    message = last_line(run(copy, ["up"], path=tools))
    assert message.endswith(
        "has no venv module: install it (Debian: apt install python3-venv), or install uv"
    )


def test_folder_that_is_no_environment_is_left_alone(copy, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter").write_text("dear")
    # Relative to where the caller is, not to the script.
    message = last_line(run(copy, ["up"], SANDMILL_VENV="mine"))
    assert message.endswith("/mine is not a virtual environment: set SANDMILL_VENV to another folder")
    assert (tmp_path / "mine" / "letter").read_text() == "dear"


def test_unknown_command_shows_the_usage(copy):
    done = run(copy, ["upp"])
    assert last_line(done) == "run: no such command: upp"
    assert "usage: ./run COMMAND" in done.stderr


def test_help_needs_nothing(copy, tools):
    done = run(copy, [], path=tools)
    assert (done.returncode, done.stderr) == (0, "")
    for command in ("demo", "up", "test", "check", "bench", "lock", "env"):
        assert f"\n  {command} " in done.stdout


def test_passwords_for_compose_are_made_once_and_closed_to_others(copy):
    assert run(copy, ["env"]).returncode == 0
    text = (copy / ".env").read_text()
    values = dict(line.split("=") for line in text.splitlines())
    assert set(values) == {
        "SANDMILL_POSTGRES_PASSWORD",
        "SANDMILL_REDIS_PASSWORD",
        "SANDMILL_FLOWER_PASSWORD",
        "SANDMILL_SECRET_KEY",
    }
    assert all(len(value) == 48 for value in values.values())
    assert len(set(values.values())) == 4
    assert stat.S_IMODE((copy / ".env").stat().st_mode) == 0o600

    assert "is complete" in last_line(run(copy, ["env"]))
    assert (copy / ".env").read_text() == text


def test_what_a_newer_release_needs_is_added_to_the_passwords(copy):
    old = "SANDMILL_POSTGRES_PASSWORD=a\nSANDMILL_REDIS_PASSWORD=b\nSANDMILL_FLOWER_PASSWORD=c\n"
    (copy / ".env").write_text(old)
    assert run(copy, ["env"]).returncode == 0
    assert (copy / ".env").read_text().startswith(f"{old}SANDMILL_SECRET_KEY=")


def environment_with(copy: Path, *programs: str) -> Path:
    """What looks like a complete environment of this copy, in which the programs do nothing."""
    folder = copy / ".venv"
    (folder / "bin").mkdir(parents=True)
    (folder / "pyvenv.cfg").write_text("")
    for program in programs:
        add_program(folder / "bin", program, '#!/bin/sh\necho "${0##*/} $*"\n')
    lock = (copy / "requirements-dev.lock").read_bytes()
    sums = subprocess.run(["cksum"], input=lock, capture_output=True, check=True).stdout.decode().strip()
    (folder / ".stamp-dev").write_text(f"{sums} {copy}\n")
    return folder


CHECKERS = ("python", "ruff", "mypy", "lint-imports")


def test_lock_file_that_names_a_host_fails_the_check(copy):
    environment_with(copy, *CHECKERS)
    assert run(copy, ["check"]).returncode == 0
    with (copy / "requirements.lock").open("a") as file:
        file.write("--index-url https://registry.invalid/simple\n")
    assert "name a host: requirements.lock" in run(copy, ["check"]).stderr


@pytest.mark.parametrize("checker", CHECKERS)
def test_one_failed_checker_fails_the_check_and_the_others_still_run(copy, checker):
    folder = environment_with(copy, *CHECKERS)
    add_program(folder / "bin", checker, "#!/bin/sh\nexit 1\n")
    done = run(copy, ["check"])
    assert last_line(done) == "run: check failed"
    for other in set(CHECKERS) - {checker}:
        assert f"\n{other} " in f"\n{done.stdout}"


@pytest.mark.parametrize(
    ("words", "called"),
    [
        (["up", "--port", "0"], "python -P -m launcher.cli up --port 0"),
        (["doctor"], "python -P -m launcher.cli doctor"),
        (["image", "pull", "a b"], "python -P -m launcher.cli image pull a b"),
        (["demo", "--json"], "python -P -m examples.swe_eval --json"),
        (["test", "-k", "two words"], "python -m pytest -k two words"),
        (["bench"], "python -P -m benchmarks"),
    ],
)
def test_commands_start_their_program_with_the_arguments(copy, words, called):
    environment_with(copy, "python")
    done = run(copy, words)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, called, "")


def test_changed_lock_file_installs_again(copy, tools):
    environment_with(copy, "python")
    (copy / "requirements-dev.lock").write_text("")
    assert "installing packages into" in run(copy, ["test"], path=tools).stderr


def test_second_run_waits_for_the_packages_of_the_first(copy):
    lock = copy / ".venv.lock"
    lock.mkdir()
    (lock / "pid").write_text(f"{os.getpid()}\n")
    with subprocess.Popen(
        [copy / "run", "up"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as second:
        assert "waiting for another ./run" in second.stderr.readline()
        environment_with(copy, "python")
        shutil.rmtree(lock)
        assert second.communicate(timeout=20) == ("python -P -m launcher.cli up\n", "")
    assert not lock.exists()


def test_lock_of_a_killed_run_is_no_obstacle(copy, tools):
    with subprocess.Popen(["true"]) as gone:
        pass
    (copy / ".venv.lock").mkdir()
    (copy / ".venv.lock" / "pid").write_text(f"{gone.pid}\n")
    assert "no Python 3.11 or newer" in last_line(run(copy, ["up"], path=tools))
    assert not (copy / ".venv.lock").exists()
