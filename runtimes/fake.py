"""The runtime that starts nothing: scripted outcomes, files in memory, an injected clock.

It is the reference for how fast the queue can be, so a run costs a few microseconds.
"""

import fnmatch
import posixpath
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pydantic import BaseModel, ConfigDict

from core.errors import (
    CreateTimeoutError,
    DaemonError,
    ExecdUnreachableError,
    ImageNotFoundError,
    NotFoundError,
    NotSupportedError,
    PayloadTooLargeError,
    SpecInvalidError,
)
from runtimes.base import (
    ENTRYPOINT_KEY,
    EXECD_PORT,
    BackgroundRun,
    Capabilities,
    Command,
    CommandResult,
    FileInfo,
    FileUpload,
    KeptRun,
    OnProgress,
    Runtime,
    SandboxHandle,
    SandboxSpec,
    SandboxState,
    SandboxStats,
    StreamName,
)

__all__ = ["FakeClock", "FakeConfig", "FakeOutcome", "FakeRuntime", "RealClock"]

_SIGKILL, _SIGTERM = 9, 15
_POLL_SECONDS = 0.01


class FakeConfig(BaseModel):
    """Nothing to set."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    type: Literal["fake"] = "fake"


@dataclass(frozen=True, slots=True)
class FakeOutcome:
    """What a command does. seconds: how long it takes. dies: execd is gone before the end. oom: counted in stats.

    output: after stdout and stderr, piece by piece and at the pace of this iterable.
    """

    exit_code: int = 0
    signal: int | None = None
    stdout: bytes = b""
    stderr: bytes = b""
    output: Iterable[tuple[StreamName, bytes]] = ()
    seconds: float = 0.0
    files: Mapping[str, bytes] = field(default_factory=dict)
    error: str | None = None
    dies: bool = False
    oom: bool = False


Script = Callable[[str, Command], FakeOutcome | None]
"""Called with image and command; None leaves the command to the default behaviour."""


class RealClock:
    """Waits for real."""

    def wait(self, is_over: Callable[[], bool], seconds: float) -> bool:
        """Wait until is_over() (True) or the time has passed (False)."""
        end = time.monotonic() + seconds
        while not is_over():
            left = end - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(left, _POLL_SECONDS))
        return True


class FakeClock:
    """Waits for nothing: time jumps. now: seconds since it was made."""

    def __init__(self) -> None:
        """Start at zero."""
        self.now = 0.0

    def wait(self, is_over: Callable[[], bool], seconds: float) -> bool:
        """Say whether is_over() already; else let the time pass at once."""
        if is_over():
            return True
        self.now += seconds
        return False


@dataclass(slots=True)
class _Sandbox:
    """One sandbox that was never started."""

    handle: SandboxHandle
    image: str
    files: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    started: dict[str, Command] = field(default_factory=dict)
    is_alive: bool = True
    is_paused: bool = False
    oom_kills: int = 0


class FakeRuntime(Runtime):
    """Sandboxes in this process.

    Images: every name is there but `missing` and snapshots nobody made (ImageNotFoundError), `broken` (DaemonError),
    `slow-start` (CreateTimeoutError). All other fields of a spec are taken. Commands, unless the script says otherwise:
    the shell texts `true`, `false`, `exit N`, `sleep S`, `echo TEXT` and `cat PATH` do what they say, and so does their
    argv form; all else exits 0 silently.
    """

    name = "fake"

    def __init__(self, script: Script | None = None, *, clock: RealClock | FakeClock | None = None) -> None:
        """script: decides about commands first. clock: how `sleep` waits; real by default."""
        self._script = script
        self._clock = clock or RealClock()
        self._sandboxes: dict[str, _Sandbox] = {}
        self._snapshots: dict[str, dict[str, tuple[bytes, int]]] = {}
        self._lock = threading.Lock()
        self._count = 0

    def check(self) -> None:
        """Return: it runs anywhere."""

    def capabilities(self) -> Capabilities:
        """Take what is asked for, as far as it can be counted up; see `Runtime.capabilities`."""
        return Capabilities(oci_runtimes=("runc", "runsc"), host_paths=("/",))

    def create(
        self, spec: SandboxSpec, *, timeout_seconds: float, on_progress: OnProgress | None = None
    ) -> SandboxHandle:
        """Remember the sandbox; see the class for images that fail."""
        if on_progress is not None:
            on_progress(f"starting from {spec.image}")
        prefix, is_snapshot, snapshot = spec.image.partition(":")
        is_snapshot = is_snapshot if prefix == "snapshot" else ""
        if spec.image == "missing" or (is_snapshot and snapshot not in self._snapshots):
            raise ImageNotFoundError(f"the fake runtime has no image {spec.image!r}")
        if spec.image == "broken":
            raise DaemonError("the fake daemon is out of order")
        if spec.image == "slow-start":
            raise CreateTimeoutError(f"sandbox {spec.name} was not ready within {timeout_seconds:g} s")
        with self._lock:
            existing = self._sandboxes.get(spec.name)
            if existing is not None and existing.is_alive:
                return existing.handle
            self._count += 1
            handle = SandboxHandle(self.name, spec.name, str(self._count), dict(spec.labels))
            files = dict(self._snapshots[snapshot]) if is_snapshot else {}
            sandbox = self._sandboxes[spec.name] = _Sandbox(handle, spec.image, files)
            if spec.entrypoint and spec.entrypoint != "image":
                sandbox.started[ENTRYPOINT_KEY] = Command(argv=tuple(spec.entrypoint))
            return handle

    def executions(self, handle: SandboxHandle) -> "_FakeClient":
        """Give a client that acts on the sandbox's memory."""
        return _FakeClient(self, handle, self._script, self._clock)

    def connect(self, handle: SandboxHandle, port: int, *, timeout_seconds: float) -> socket.socket:  # noqa: ARG002
        """Refuse: there is nothing to connect to."""
        self.live(handle)
        what = "execd" if port == EXECD_PORT else f"port {port}"
        raise NotSupportedError(f"the fake runtime has no {what} to connect to: use executions()")

    def stats(self, handle: SandboxHandle) -> SandboxStats:
        """Count the OOM kills the script asked for."""
        sandbox = self._sandboxes.get(handle.name)
        if sandbox is None or sandbox.handle.ref != handle.ref:
            return SandboxStats()
        return SandboxStats(cpu_seconds=0.0, memory_peak_bytes=0, oom_kills=sandbox.oom_kills)

    def state(self, handle: SandboxHandle) -> SandboxState:
        """Say how it is."""
        sandbox = self._sandboxes.get(handle.name)
        if sandbox is None or sandbox.handle.ref != handle.ref:
            return SandboxState("gone")
        if not sandbox.is_alive:
            return SandboxState("ended")
        return SandboxState("paused" if sandbox.is_paused else "running")

    def pause(self, handle: SandboxHandle) -> None:
        """Note it; nothing answers meanwhile."""
        self._there(handle).is_paused = True

    def resume(self, handle: SandboxHandle) -> None:
        """Note it."""
        self._there(handle).is_paused = False

    def snapshot(self, handle: SandboxHandle, name: str) -> None:
        """Copy the files."""
        if name in self._snapshots:
            raise SpecInvalidError(f"there is a snapshot {name!r} already", field="name")
        self._snapshots[name] = dict(self._there(handle).files)

    def snapshots(self) -> Sequence[str]:
        """All names."""
        return sorted(self._snapshots)

    def snapshot_bytes(self, name: str) -> int | None:
        """Count the bytes of its files."""
        files = self._snapshots.get(name)
        return None if files is None else sum(len(data) for data, _ in files.values())

    def remove_snapshot(self, name: str) -> None:
        """Forget it."""
        self._snapshots.pop(name, None)

    def remove(self, handle: SandboxHandle) -> None:
        """Forget the sandbox; commands in it end as unreachable."""
        with self._lock:
            sandbox = self._sandboxes.get(handle.name)
            if sandbox is not None and sandbox.handle.ref == handle.ref:
                sandbox.is_alive = False
                del self._sandboxes[handle.name]

    def list(self) -> list[SandboxHandle]:
        """All sandboxes of this object."""
        with self._lock:
            return [sandbox.handle for sandbox in self._sandboxes.values()]

    def live(self, handle: SandboxHandle) -> _Sandbox:
        """Give the sandbox. Raises ExecdUnreachableError once it is gone, and while it is paused."""
        sandbox = self._there(handle)
        if sandbox.is_paused:
            raise ExecdUnreachableError(f"sandbox {handle.name} is paused")
        return sandbox

    def _there(self, handle: SandboxHandle) -> _Sandbox:
        sandbox = self._sandboxes.get(handle.name)
        if sandbox is None or sandbox.handle.ref != handle.ref or not sandbox.is_alive:
            raise ExecdUnreachableError(f"sandbox {handle.name} is gone")
        return sandbox


class _FakeClient:
    """Implements `ExecutionClient` on a sandbox in memory."""

    def __init__(
        self, runtime: FakeRuntime, handle: SandboxHandle, script: Script | None, clock: RealClock | FakeClock
    ) -> None:
        self._runtime = runtime
        self._handle = handle
        self._script = script
        self._clock = clock

    def ping(self) -> None:
        """Return while the sandbox is there."""
        self._runtime.live(self._handle)

    def run(
        self,
        command: Command,
        *,
        on_output: Callable[[StreamName, bytes], None],
        stop: threading.Event | None = None,
        kill_grace_seconds: float = 10.0,  # noqa: ARG002 -- nothing here resists a kill
        kept: KeptRun | None = None,  # noqa: ARG002 -- nothing here outlives the process
    ) -> CommandResult:
        """Act out the script's outcome, else the default one."""
        sandbox = self._runtime.live(self._handle)
        outcome = self._script(sandbox.image, command) if self._script is not None else None
        if outcome is None:
            outcome = _default_outcome(command, sandbox)
        if outcome.error is not None:
            return CommandResult(error=outcome.error)
        _emit(outcome, command, on_output)
        for stream, data in outcome.output:
            if not sandbox.is_alive or (stop is not None and stop.is_set()):
                break
            on_output("stdout" if command.merge_streams else stream, data)
        if outcome.seconds > 0 or (stop is not None and stop.is_set()):
            ended = self._spend(outcome.seconds, command, stop)
            if ended is not None:
                return ended
        if outcome.dies:
            sandbox.is_alive = False
        if outcome.oom:
            sandbox.oom_kills += 1
        self._runtime.live(self._handle)
        for path, data in outcome.files.items():
            sandbox.files[path] = (data, 0o644)
        exit_code = outcome.exit_code if outcome.signal is None else None
        return CommandResult(exit_code, outcome.signal, duration_ms=round(outcome.seconds * 1000))

    def start(self, command: Command, *, key: str) -> None:
        """Note it: nothing runs here."""
        self._runtime.live(self._handle).started[key] = command

    def background_output(self, command: Command, *, key: str) -> bytes:
        """Give what the script, or the command itself, says. Raises NotFoundError."""
        return self.background_run(command, key=key, tail_bytes=1 << 30).output

    def background_run(
        self,
        command: Command,
        *,
        key: str,
        tail_bytes: int,
        wait_seconds: float = 0.0,  # noqa: ARG002 -- nothing here takes its time
    ) -> BackgroundRun:
        """Act out the script's outcome, at once; what nobody knows goes on for ever. Raises NotFoundError."""
        sandbox = self._runtime.live(self._handle)
        if sandbox.started.get(key) != command:
            raise NotFoundError("command", key)
        outcome = self._script(sandbox.image, command) if self._script is not None else None
        if outcome is None:
            outcome = _default_outcome(command, sandbox)
            if outcome is _SUCCESS:
                return BackgroundRun(is_running=True)
        output = outcome.stdout + outcome.stderr
        return BackgroundRun(
            is_running=outcome.seconds > 0,
            exit_code=None if outcome.seconds > 0 or outcome.signal is not None else outcome.exit_code,
            signal=outcome.signal,
            oom_killed=outcome.oom,
            output=output[-tail_bytes:] if tail_bytes else b"",
            total_bytes=len(output),
        )

    def upload(self, files: Sequence[FileUpload]) -> None:
        """Keep the files."""
        sandbox = self._runtime.live(self._handle)
        for file in files:
            data = file.data if isinstance(file.data, bytes) else file.data.read()
            sandbox.files[posixpath.normpath(file.path)] = (data, file.mode)

    def download(self, path: str, *, max_bytes: int) -> bytes:
        """Give a file back. Raises NotFoundError, PayloadTooLargeError."""
        data, _ = self._file(path)
        if len(data) > max_bytes:
            raise PayloadTooLargeError(f"{path} is larger than {max_bytes} bytes")
        return data

    def delete(self, paths: Sequence[str]) -> None:
        """Drop files."""
        sandbox = self._runtime.live(self._handle)
        for path in paths:
            sandbox.files.pop(posixpath.normpath(path), None)

    def file_info(self, path: str) -> FileInfo:
        """Look at one file. Raises NotFoundError."""
        data, mode = self._file(path)
        return FileInfo(path, "file", len(data), mode)

    def search(self, path: str, pattern: str) -> list[FileInfo]:
        """List files below path whose basename matches."""
        sandbox = self._runtime.live(self._handle)
        prefix = posixpath.normpath(path).rstrip("/") + "/"
        return [
            FileInfo(name, "file", len(data), mode)
            for name, (data, mode) in sorted(sandbox.files.items())
            if name.startswith(prefix) and fnmatch.fnmatchcase(posixpath.basename(name), pattern)
        ]

    def close(self) -> None:
        """Nothing is kept."""

    def _file(self, path: str) -> tuple[bytes, int]:
        try:
            return self._runtime.live(self._handle).files[posixpath.normpath(path)]
        except KeyError as error:
            raise NotFoundError("file", path) from error

    def _spend(self, seconds: float, command: Command, stop: threading.Event | None) -> CommandResult | None:
        """Let the command take its time; gives the result if it does not live that long."""
        limit = command.timeout_seconds
        times_out = limit is not None and limit < seconds
        shorter = limit if limit is not None and times_out else seconds
        is_stopped = stop.is_set if stop is not None else _never
        sandbox = self._runtime.live(self._handle)
        if self._clock.wait(lambda: is_stopped() or not sandbox.is_alive, shorter):
            self._runtime.live(self._handle)
            return CommandResult(signal=_SIGTERM, interrupted=True)
        if times_out:
            return CommandResult(signal=_SIGKILL, timed_out=True, duration_ms=round(shorter * 1000))
        return None


def _never() -> bool:
    return False


def _emit(outcome: FakeOutcome, command: Command, on_output: Callable[[StreamName, bytes], None]) -> None:
    if outcome.stdout:
        on_output("stdout", outcome.stdout)
    if outcome.stderr:
        on_output("stdout" if command.merge_streams else "stderr", outcome.stderr)


def _default_outcome(command: Command, sandbox: _Sandbox) -> FakeOutcome:
    """Act out the few commands the class names."""
    word, _, rest = (command.shell if command.shell is not None else " ".join(command.argv or ())).partition(
        " "
    )
    match word:
        case "false":
            return FakeOutcome(exit_code=1)
        case "exit":
            return FakeOutcome(exit_code=int(rest) % 256 if rest.isdigit() else 0)
        case "echo":
            return FakeOutcome(stdout=rest.encode() + b"\n")
        case "sleep":
            return FakeOutcome(seconds=float(rest)) if _is_number(rest) else FakeOutcome(exit_code=1)
        case "cat":
            found = sandbox.files.get(posixpath.normpath(rest))
            return FakeOutcome(exit_code=1) if found is None else FakeOutcome(stdout=found[0])
        case _:
            return _SUCCESS


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdecimal()


_SUCCESS = FakeOutcome()
