"""The demo as a person runs it, and what is left of the machine afterwards."""

import contextlib
import json
import os
import pwd
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.launching import REPOSITORY, launcher_environment, processes_of, wait_until
from tests.support.ordinary_user import run_as_ordinary_user

pytestmark = [pytest.mark.slow, pytest.mark.timeout(420)]

DEMO_SECONDS = 200
"""Two to fifteen times what it takes: other tests may have the machine at the same time."""


@dataclass(frozen=True)
class Place:
    """An empty home of a person who has nothing yet, and a folder for temporary files that must stay empty."""

    home: Path
    temporary: Path

    @property
    def state(self) -> Path:
        return self.home / ".sandmill"

    def environment(self, **extra: str) -> dict[str, str]:
        paths = f"{REPOSITORY}{os.pathsep}{REPOSITORY / 'sdk/python/src'}"
        own = {"HOME": str(self.home), "TMPDIR": str(self.temporary), "PYTHONPATH": paths}
        return launcher_environment({**own, **extra})

    def leftovers(self) -> dict[str, Sequence[str]]:
        """What a finished run must not leave, by kind."""
        return {
            "processes": processes_of(self.state) if self.state.exists() else [],
            "named processes": _processes_naming(str(self.home)),
            "mounts": [
                line for line in Path("/proc/mounts").read_text().splitlines() if str(self.home) in line
            ],
            "temporary files": [path.name for path in self.temporary.iterdir()],
            "drafts": [path.name for path in self.state.glob("cache/swe_eval/.*")],
        }


NOTHING: dict[str, Sequence[str]] = {
    "processes": [], "named processes": [], "mounts": [], "temporary files": [], "drafts": [],
}  # fmt: skip


@pytest.fixture
def place(tmp_path: Path) -> Place:
    found = Place(tmp_path / "home", tmp_path / "tmp")
    found.home.mkdir()
    found.temporary.mkdir()
    return found


def demo_command(*arguments: str) -> tuple[list[str], Mapping[str, str]]:
    """The words and settings that run the demo without installing anything."""
    if (Path(sys.prefix) / ".stamp-dev").exists():
        return [str(REPOSITORY / "run"), "demo", *arguments], {"SANDMILL_VENV": sys.prefix}
    return [sys.executable, "-m", "examples.swe_eval", *arguments], {}


def run_demo(place: Place, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    words, settings = demo_command(*arguments)
    return subprocess.run(
        words,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEMO_SECONDS,
        cwd=place.home,
        env=place.environment(**settings, **environment),
        check=False,
    )


def test_demo_gives_the_expected_figures_twice_and_leaves_nothing(place: Place) -> None:
    batches = set()
    for run in range(2):
        # The second run has no package index: everything it needs is in the cache.
        done = run_demo(place, "--json", **({"PIP_NO_INDEX": "1"} if run else {}))
        assert done.returncode == 0, done.stderr
        assert len(done.stdout.splitlines()) == 1
        figures = json.loads(done.stdout)
        batches.add(figures.pop("batch"))
        wall, setup = figures.pop("wall_s"), figures.pop("setup_s")
        assert figures == {"trials": 8, "passed": 2, "failed": 6, "error": 0, "pass_at_1": 0.25}
        assert 0 < wall < DEMO_SECONDS
        assert 0 < setup < DEMO_SECONDS
        assert "18/18" in done.stderr
        assert "patch_rejected" in done.stderr
        assert place.leftovers() == NOTHING
    assert len(batches) == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="the other tests run it as an ordinary user already")
def test_ordinary_user_gets_the_same_figures(tmp_path: Path) -> None:
    paths = f"{REPOSITORY}{os.pathsep}{REPOSITORY / 'sdk/python/src'}"
    words = ["-m", "examples.swe_eval", "--json"]
    nobody = pwd.getpwnam("nobody").pw_uid
    index = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    done = run_as_ordinary_user(
        words, tmp_path / "home", timeout_seconds=DEMO_SECONDS, uid=nobody, PYTHONPATH=paths, **index
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert (figures["passed"], figures["failed"], figures["error"]) == (2, 6, 0)
    assert _processes_naming(str(tmp_path)) == []


@contextlib.contextmanager
def running_demo(place: Place) -> Iterator["subprocess.Popen[str]"]:
    words, settings = demo_command("--json")
    process = subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=place.environment(**settings),
        # A terminal's Ctrl-C goes to a whole group; this one must not reach pytest.
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def read_until(process: "subprocess.Popen[str]", text: str) -> None:
    assert process.stderr is not None
    seen = []
    for line in process.stderr:
        seen.append(line)
        if text in line:
            return
    raise AssertionError("".join(seen))


@pytest.mark.parametrize("moment", ["fetching", " verify | "], ids=["while-starting", "while-evaluating"])
def test_interrupted_demo_takes_everything_with_it(place: Place, moment: str) -> None:
    with running_demo(place) as process:
        read_until(process, moment)
        os.killpg(process.pid, signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    assert (process.returncode, output) == (130, "")
    assert errors.splitlines()[-1] == "demo: interrupted"
    assert "Traceback" not in errors
    # What was killed may take a moment to be gone.
    with contextlib.suppress(AssertionError):
        wait_until(lambda: place.leftovers() == NOTHING)
    assert place.leftovers() == NOTHING


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"SANDMILL_API_URL": "http://127.0.0.1:1"}, "set SANDMILL_API_URL and SANDMILL_API_KEY, or neither"),
        ({"SANDMILL_API_URL": "nowhere", "SANDMILL_API_KEY": "k"}, "is not an address"),
        ({"SANDMILL_HOME": "/proc/nowhere"}, "/proc/nowhere"),
        ({"PIP_NO_INDEX": "1"}, "cannot download more-itertools"),
    ],
    ids=["half-an-address", "no-address", "no-home", "no-index"],
)
def test_obstacle_is_one_line_and_leaves_nothing(
    place: Place, environment: dict[str, str], expected: str
) -> None:
    began = time.monotonic()
    done = run_demo(place, **environment)
    assert done.returncode == 1
    message = done.stderr.splitlines()[-1]
    assert message.startswith("demo: ")
    assert expected in message
    assert "Traceback" not in done.stderr
    assert time.monotonic() - began < 60
    assert place.leftovers() == NOTHING


def _processes_naming(text: str) -> list[str]:
    """Command lines and environments are where every program of the stack has its home."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes()
            if text.encode() in words and int(folder.name) != os.getpid():
                found.append((folder / "comm").read_text().strip())
    return found
