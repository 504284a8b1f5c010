"""The program in docs/sandboxes.md runs as it stands."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.sandboxes import is_root

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.mark.skipif(not is_root(), reason="forks and snapshots need root")
def test_program_of_the_page_forks_a_sandbox_and_starts_another_from_a_snapshot(tmp_path) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", (REPOSITORY / "docs/sandboxes.md").read_text(), re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=90,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "TMPDIR": str(tmp_path)},
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert re.fullmatch(r"\d+ processes in the second", lines.pop(3))
    assert lines == ["prepared", "by the first", "prepared", "prepared", "by the first"]
    assert list(tmp_path.iterdir()) == []
