"""`up` as a process of its own, whose children a test may kill; the supervisor starts them again."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from sandmill import Client, RetryPolicy
from tests.support.launching import launcher_environment

__all__ = ["RunningStack", "running_stack"]

WATCHDOG = "workers.watchdog"

PATIENT = RetryPolicy(attempts=10_000, cap_seconds=0.5, budget_seconds=120.0)


class RunningStack:
    """A stack that answers."""

    def __init__(self, process: "subprocess.Popen[str]", facts: dict[str, str], home: Path) -> None:
        self.process = process
        self.home = home
        self.api_url, self.api_key, self.flower_url = facts["api"], facts["api_key"], facts["flower"]
        self.ingress_port = int(facts["ingress"].rpartition(":")[2])

    def client(self) -> Client:
        return Client(self.api_url, self.api_key, retry=PATIENT)

    def pids(self, *words: str) -> list[int]:
        """Descendants of the launcher whose arguments contain all the words."""
        found = []
        for pid in _descendants(self.process.pid):
            with contextlib.suppress(OSError):
                arguments = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
                if WATCHDOG in arguments and WATCHDOG not in words:
                    continue  # whoever kills the worker does not mean this one
                if all(any(word in argument for argument in arguments) for word in words):
                    found.append(pid)
        return found

    def kill(self, *words: str, number: int = signal.SIGKILL) -> list[int]:
        """Signal them; gives those that were there."""
        pids = self.pids(*words)
        assert pids, f"no process with {words}"
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        return pids


@contextlib.contextmanager
def running_stack(home: Path, env: Mapping[str, str], *, flower: bool = False) -> Iterator[RunningStack]:
    """Run `up` until the block ends."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "launcher.cli", "up", "--json", "--port", "0"),
            "--flower" if flower else "--no-flower",
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        env=launcher_environment({"SANDMILL_HOME": str(home), **env}),
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, "up ended without its line"
        yield RunningStack(process, json.loads(line), home)
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def _descendants(root: int) -> list[int]:
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):
            parents[int(entry.parent.name)] = int(entry.read_text().rpartition(")")[2].split()[1])
    found, pending = [], [root]
    while pending:
        parent = pending.pop()
        children = [pid for pid, above in parents.items() if above == parent]
        found += children
        pending += children
    return found
