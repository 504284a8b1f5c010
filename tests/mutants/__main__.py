"""`./run mutants [TEXT]`: takes out one guard after the other, in a copy of the source, and sees a named test fail."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.mutants.catalogue import MUTANTS, NOT_APPLICABLE, Mutant

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_SECONDS = 240
SKIPPED = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".mypy_cache", ".ruff_cache", ".hypothesis")


def main() -> None:
    """Run all whose name contains the argument; exit code 1 when one survives."""
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    survivors = 0
    with tempfile.TemporaryDirectory(prefix="sandmill-mutants-") as folder:
        copy = Path(folder) / "source"
        shutil.copytree(ROOT, copy, ignore=SKIPPED, symlinks=True)
        for mutant in MUTANTS:
            if wanted in mutant.name:
                survivors += not is_killed(mutant, copy)
    for name, reason in NOT_APPLICABLE.items():
        print(f"n/a      {name}: {reason}")
    print(f"{survivors} survived" if survivors else "every mutant is seen by a test")
    sys.exit(int(survivors > 0))


def is_killed(mutant: Mutant, copy: Path) -> bool:
    """Apply it, run its tests, and take it back; gives whether one of them failed."""
    path = copy / mutant.file
    original = path.read_text(encoding="utf-8")
    if original.count(mutant.old) != mutant.times:
        print(f"ERROR    {mutant.name}: {mutant.file} has changed: say anew what is to be replaced")
        return False
    path.write_text(original.replace(mutant.old, mutant.new), encoding="utf-8")
    began = time.monotonic()
    try:
        code = run_tests(mutant.tests, copy)
    finally:
        path.write_text(original, encoding="utf-8")
    # 1: tests failed. All else, such as a test that is not there, says nothing about the mutant.
    mark = {1: "killed", 0: "SURVIVED"}.get(code, f"ERROR {code}")
    print(f"{mark:8} {mutant.name}  ({time.monotonic() - began:.0f} s)", flush=True)
    return code == 1


def run_tests(tests: tuple[str, ...], folder: Path) -> int:
    """Give pytest's exit code; -1 when it takes too long."""
    environment = {
        **os.environ,
        "PYTHONPATH": f"{folder}:{folder}/sdk/python/src",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:randomly",
        *tests,
    ]
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, timeout=TIMEOUT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return -1
    return done.returncode


if __name__ == "__main__":
    main()
