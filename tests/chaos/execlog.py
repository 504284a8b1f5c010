"""What really ran, told by the executions themselves: each is a process of its own that writes to one common file.

A line is `start|alive|end TRIAL FENCE SECONDS PID`, appended by one write; seconds are those since the boot of the
machine, which all processes share and no clock change touches.
"""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.errors import ExecdUnreachableError
from runtimes.base import Command, CommandResult, KeptRun, SandboxHandle, StreamName
from runtimes.fake import FakeRuntime

__all__ = ["ExecLogRuntime", "Execution", "overlaps", "parse_uptimes", "read_exec_log"]

TICK_SECONDS = 0.05

# Dies with its worker, and also when that has stood still for longer than its lease allows: what the watchdog of a
# node does for real sandboxes.
_SCRIPT = f"""
log=$1 trial=$2 fence=$3 ticks=$4 code=$5 patience=$6 parent=$PPID stopped=0
say() {{ read -r now _ </proc/uptime; echo "$1 $trial $fence $now $$" >>"$log"; }}
say start
while [ "$ticks" -gt 0 ]; do
  sleep {TICK_SECONDS}
  read -r stat 2>/dev/null </proc/$parent/stat || exit 9
  case ${{stat##*) }} in
    T*) stopped=$((stopped + 1)); [ "$stopped" -lt "$patience" ] || exit 9 ;;
    *) stopped=0; ticks=$((ticks - 1)) ;;
  esac
  say alive
done
say end
exit "$code"
"""


class ExecLogRuntime(FakeRuntime):
    """Fake sandboxes whose command `work SECONDS CODE` is a real process that writes the log."""

    def __init__(self, log: str, *, orphan_seconds: float) -> None:
        """orphan_seconds: how long an execution goes on while its worker stands still."""
        super().__init__()
        self.log = log
        self.orphan_seconds = orphan_seconds
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._gone: set[str] = set()
        self._processes = threading.Lock()

    def executions(self, handle: SandboxHandle) -> "_LoggingClient":
        return _LoggingClient(self, handle, super().executions(handle))

    def remove(self, handle: SandboxHandle) -> None:
        with self._processes:
            self._gone.add(handle.name)
            process = self._running.get(handle.name)
        if process is not None:
            _kill(process)
        super().remove(handle)

    def start(self, handle: SandboxHandle, seconds: float, code: int) -> "subprocess.Popen[bytes]":
        with self._processes:
            if handle.name in self._gone:
                raise ExecdUnreachableError(f"sandbox {handle.name} is gone")
            patience = max(1, int(self.orphan_seconds / TICK_SECONDS))
            arguments = (
                self.log,
                handle.labels["sandmill.trial"],
                handle.labels["sandmill.fence"],
                str(max(1, round(seconds / TICK_SECONDS))),
                str(code),
                str(patience),
            )
            process = subprocess.Popen(
                ["/bin/sh", "-c", _SCRIPT, "sh", *arguments], stdin=subprocess.DEVNULL, process_group=0
            )
            self._running[handle.name] = process
            return process

    def forget(self, handle: SandboxHandle) -> None:
        with self._processes:
            self._running.pop(handle.name, None)


class _LoggingClient:
    """Runs `work` as a process; all else is the fake's."""

    def __init__(self, runtime: ExecLogRuntime, handle: SandboxHandle, inner: Any) -> None:
        self._runtime = runtime
        self._handle = handle
        self._inner = inner

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def run(
        self,
        command: Command,
        *,
        on_output: Callable[[StreamName, bytes], None],
        stop: threading.Event | None = None,
        kill_grace_seconds: float = 10.0,
        kept: KeptRun | None = None,
    ) -> CommandResult:
        word, *rest = (command.shell or "").split()
        if word != "work":
            return self._inner.run(
                command, on_output=on_output, stop=stop, kill_grace_seconds=kill_grace_seconds, kept=kept
            )
        process = self._runtime.start(self._handle, float(rest[0]), int(rest[1]))
        on_output("stdout", b"working\n")
        try:
            while process.poll() is None:
                if stop is not None and stop.is_set():
                    _kill(process)
                    self._runtime.live(self._handle)
                    return CommandResult(signal=signal.SIGTERM, interrupted=True)
                time.sleep(0.01)
        finally:
            _kill(process)
            self._runtime.forget(self._handle)
        self._runtime.live(self._handle)
        if process.returncode < 0 or process.returncode == 9:
            raise ExecdUnreachableError(f"sandbox {self._handle.name} was killed from outside")
        on_output("stdout", b"done\n")
        return CommandResult(process.returncode)


def _kill(process: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@dataclass(frozen=True)
class Execution:
    """One execution of a trial, from its first to its last sign of life. has_ended: by itself."""

    trial: str
    fence: int
    began: float
    last: float
    has_ended: bool


def read_exec_log(path: Path) -> list[Execution]:
    """Read the file; a trial and fence executed twice gives two executions."""
    spans: dict[tuple[str, int, str], list[tuple[str, float]]] = defaultdict(list)
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        word, trial, fence, seconds, pid = line.split()
        spans[trial, int(fence), pid].append((word, float(seconds)))
    return [
        Execution(trial, fence, signs[0][1], signs[-1][1], signs[-1][0] == "end")
        for (trial, fence, _), signs in spans.items()
    ]


def parse_uptimes(logs: Sequence[tuple[str, int, bytes]]) -> list[Execution]:
    """Read executions from stored logs, (trial, fence, bytes), whose lines are `start|alive|end SECONDS`."""
    found = []
    for trial, fence, data in logs:
        signs = [
            line.split()
            for line in data.decode().splitlines()
            if line.startswith(("start ", "alive ", "end "))
        ]
        if signs:
            times = [float(seconds) for _, seconds in signs]
            found.append(Execution(trial, fence, times[0], times[-1], signs[-1][0] == "end"))
    return found


def overlaps(executions: Sequence[Execution], *, tolerance_seconds: float = 0.02) -> list[str]:
    """Find executions of one trial that were alive at the same time; the kernel counts uptime in hundredths."""
    by_trial: dict[str, list[Execution]] = defaultdict(list)
    for execution in executions:
        by_trial[execution.trial].append(execution)
    found = []
    for trial, several in by_trial.items():
        several.sort(key=lambda execution: execution.began)
        latest = several[0]
        for execution in several[1:]:
            if execution.began < latest.last - tolerance_seconds:
                found.append(
                    f"{trial}: fence {execution.fence} began at {execution.began:.2f}, "
                    f"fence {latest.fence} was alive until {latest.last:.2f}"
                )
            latest = max(latest, execution, key=lambda one: one.last)
    return found
