"""ROCK's own operator and backend for this protocol, as its service uses them. mark.docker (of the fixture)"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from opensandbox.models.sandboxes import SandboxFilter

from tests.support.client_environment import client_environment
from tests.support.live import LiveServer, live_client

_SCRIPT = Path(__file__).parents[2] / "support/inside/rock.py"


@pytest.fixture(scope="session")
def rock() -> Path:
    return client_environment("requirements-rock.lock") / "python"


WAYS = {"local": "direct", "docker": "proxied"}
"""One for each runtime: the SDK below takes both, and is tried with both elsewhere."""


def test_a_whole_life_by_rock(rock: Path, server: LiveServer, tmp_path: Path) -> None:
    done = subprocess.run(
        # Isolated: what lies beside the script is of this project.
        [str(rock), "-I", str(_SCRIPT), server.domain, server.key, server.image, WAYS[server.runtime]],
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "OPENSANDBOX_DISABLE_METRICS": "1"},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert found.pop("endpoint").endswith("8080")
    code, out, error = found.pop("command")
    assert (code, out) == (3, "out\n")
    assert error.startswith("err\n")
    assert "exit code 4" in found.pop("checked")
    assert "Timeout (1.0s) exceeded" in found.pop("too long")
    assert "Timeout (1.0s) exceeded" in found.pop("session too long")
    assert found == {
        "folder and variables": [0, "/tmp\na b\n", ""],
        "argv": "a  b",
        "session": [[0, "of the session\n"], [0, "/tmp\n1\n"]],
        "files": ["written\n", "written\n5\n644\n"],
        "status at the end": None,
    }
    with live_client("sync", server) as client, client.managed() as manager:
        assert manager.list_sandbox_infos(SandboxFilter()).sandbox_infos == []
