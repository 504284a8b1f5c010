"""The published Go client: a sandbox's whole life, by the program in tests/support/go_smoke. mark.docker

The module is fetched by its name; SANDMILL_TEST_GO_SDK names a folder with its sources for where it cannot be.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.live import LiveServer

MODULE = "github.com/alibaba/OpenSandbox/sdks/sandbox/go"
SOURCE = Path(__file__).parents[2] / "support" / "go_smoke" / "main.go"
LOCAL_COPY = "SANDMILL_TEST_GO_SDK"
BUILD_SECONDS = 300

SEEN = {
    "command": "hello\n",
    "exit code": 0,
    "stderr": "wrong\n",
    "failed with": 3,
    "background": "begun\ndone\n",
    "background after its end": "",
    "background exit code": 4,
    "session": "yes /tmp\n",
    "read": "written",
    "part": "writ",
    "mode": 644,
    "found": 1,
    "listed": True,
    "renewed hours": 2,
    "metadata": {"more": "word"},
    "through the server": "written",
    "resumed": "awake\n",
    "gone": "404 DOCKER::SANDBOX_NOT_FOUND",
}


def go(*argv: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=mod"}
    return subprocess.run(
        ["go", *argv],
        check=False,
        capture_output=True,
        text=True,
        cwd=cwd,
        env=environment,
        timeout=BUILD_SECONDS,
    )


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The smoke program with the client in it. Skips the test where there is no Go, or no client."""
    if shutil.which("go") is None:
        pytest.skip("not installed here: go")
    folder = tmp_path_factory.mktemp("go")
    shutil.copy(SOURCE, folder)
    made = go("mod", "init", "smoke", cwd=folder)
    assert made.returncode == 0, made.stderr
    copy = os.environ.get(LOCAL_COPY)
    if copy:
        replaced = go("mod", "edit", f"-require={MODULE}@v0.0.0", f"-replace={MODULE}={copy}", cwd=folder)
        assert replaced.returncode == 0, replaced.stderr
    else:
        fetched = go("get", f"{MODULE}@latest", cwd=folder)
        if fetched.returncode != 0:
            why = " ".join(fetched.stderr.split())
            pytest.skip(f"the Go client cannot be fetched ({LOCAL_COPY} names a copy of it): {why}")
    built = go("build", "-o", "smoke", ".", cwd=folder)
    assert built.returncode == 0, built.stderr
    return folder / "smoke"


@pytest.mark.timeout(400)
def test_go(program: Path, server: LiveServer) -> None:
    said = subprocess.run(
        [program, server.domain, server.key, server.image],
        check=False,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert said.returncode == 0, said.stderr
    assert json.loads(said.stdout) == SEEN
