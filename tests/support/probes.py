"""Programs that look for a way out of a sandbox; each prints what it found as JSON, an empty list if all is well.

They lie in `tests/support/inside` and run on the bundle's interpreter, so they need nothing of the image.
"""

import json
from pathlib import Path
from typing import Any

from runtimes.base import Command
from tests.support.sandboxes import Box

__all__ = ["find", "privilege_faults", "probe", "program_text"]

_FOLDER = Path(__file__).parent / "inside"


def program_text(name: str) -> str:
    """The source of a program."""
    return (_FOLDER / f"{name}.py").read_text()


def probe(box: Box, name: str, *arguments: str) -> Command:
    """A command that runs the program in the sandbox."""
    return Command(argv=[*box.python_argv, "-c", program_text(name), *arguments], timeout_seconds=60)


def find(box: Box, name: str, *arguments: str) -> Any:
    """Run a program and give what it printed."""
    said = box.run(probe(box, name, *arguments))
    assert said.code == 0, (said.result, said.of("stderr").decode("utf-8", "replace")[-2000:])
    return json.loads(said.out)


def privilege_faults(status: dict[str, str]) -> list[str]:
    """Name what a process has that no sandbox process may have; status: what `privileges.py` printed."""
    faults = [name for name in status if name.startswith("Cap") and int(status[name], 16)]
    faults += ["NoNewPrivs"] if status["NoNewPrivs"] != "1" else []
    faults += ["Seccomp"] if status["Seccomp"] != "2" else []
    faults += [name for name in ("Uid", "Gid") if "0" in status[name].split()]
    return sorted(faults)
