"""Direct child processes that die with the launcher, whatever kills it."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from launcher.errors import StartupError
from launcher.logs import last_lines

__all__ = ["ENDINGS", "Child", "ChildSpec", "check_call", "undisturbed"]

ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals by which the launcher is asked to end."""

_SHIM = Path(__file__).with_name("exec_shim.py")
_POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """One program to run.

    argv: argv[0] is an absolute path. env: the whole environment. log: gets stdout and stderr, appended.
    death_signal: what the kernel sends when the thread that called `Child.start` ends, so start children from a
    thread that lives as long as they do. uid: drop to this user and group; only root may. stdin: fed, then closed.
    inherited_fds: stay open in the child and all its descendants.
    """

    name: str
    argv: Sequence[str]
    env: Mapping[str, str]
    log: Path
    cwd: Path | None = None
    stop_signal: signal.Signals = signal.SIGTERM
    stop_timeout_seconds: float = 10.0
    death_signal: signal.Signals = signal.SIGKILL
    uid: int | None = None
    stdin: bytes = b""
    inherited_fds: Sequence[int] = field(default_factory=tuple)


class Child:
    """A started program in its own process group, so that a Ctrl-C at the terminal reaches the launcher alone."""

    def __init__(self, spec: ChildSpec, process: "subprocess.Popen[bytes]") -> None:
        """Use `Child.start`."""
        self.spec = spec
        self._process = process

    @classmethod
    def start(cls, spec: ChildSpec) -> "Child":
        """Start the program and return at once. Raises StartupError when that is impossible."""
        try:
            with spec.log.open("ab") as log:
                process = _spawn(spec, log.fileno(), subprocess.STDOUT)
        except OSError as error:
            raise StartupError(f"cannot start {spec.name}: {error}") from error
        # A pipe takes 64 KiB before it blocks and what is fed here is far smaller. The program may be gone already.
        with contextlib.suppress(BrokenPipeError):
            _feed(process, spec.stdin)
        return cls(spec, process)

    @property
    def pid(self) -> int:
        """Process id, which is the process group id too."""
        return self._process.pid

    def exit_code(self) -> int | None:
        """None while it runs; negative signal number when a signal ended it."""
        return self._process.poll()

    def describe_end(self) -> str:
        """Say in words how it ended, with the end of its log."""
        code = self.exit_code()
        how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        last = last_lines(self.spec.log)
        return (
            f"{how}; its last words: {last}; log: {self.spec.log}" if last else f"{how}; log: {self.spec.log}"
        )

    def request_stop(self) -> None:
        """Send the stop signal, if it still runs."""
        if self.exit_code() is None:
            self._process.send_signal(self.spec.stop_signal)

    def wait(self, timeout_seconds: float) -> bool:
        """Wait until it has ended; says whether it did in time."""
        try:
            self._process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """Kill its whole process group and reap it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Let what asks this program to end wait: from the fork until its child is kept, nobody could stop that child.

    For a program without other threads. A child is given the signals back by the shim.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDINGS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def check_call(spec: ChildSpec, *, timeout_seconds: float) -> None:
    """Run a program to its end under the same rules. Raises StartupError unless it exits with 0 in time."""
    child = None
    deadline = time.monotonic() + timeout_seconds
    try:
        with undisturbed():
            child = Child.start(spec)
        # Short naps instead of one long wait: a signal handler that raises is then obeyed at once.
        while child.exit_code() is None:
            if time.monotonic() > deadline:
                raise StartupError(f"{spec.name} did not end within {timeout_seconds:.0f} s; log: {spec.log}")
            time.sleep(_POLL_SECONDS)
    finally:
        if child is not None and child.exit_code() is None:
            child.kill()
    if child.exit_code() != 0:
        raise StartupError(f"{spec.name} failed with {child.describe_end()}")


def _spawn(spec: ChildSpec, stdout: int, stderr: int) -> "subprocess.Popen[bytes]":
    shim = [sys.executable, "-I", "-S", str(_SHIM), str(os.getpid()), str(int(spec.death_signal))]
    process = subprocess.Popen(
        [*shim, str(-1 if spec.uid is None else spec.uid), *spec.argv],
        stdin=subprocess.PIPE if spec.stdin else subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        env=dict(spec.env),
        cwd=spec.cwd,
        pass_fds=tuple(fd for fd in spec.inherited_fds if fd >= 0),
        process_group=0,
    )
    if process.stdin is not None and spec.uid is not None:
        # The program may open its input by name (/dev/stdin), which the kernel checks against the pipe's owner.
        os.fchown(process.stdin.fileno(), spec.uid, spec.uid)
    return process


def _feed(process: "subprocess.Popen[bytes]", data: bytes) -> None:
    if process.stdin is not None:
        with process.stdin as pipe:
            pipe.write(data)
