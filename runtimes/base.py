"""The contract every runtime meets, and the plain values it speaks.

A runtime knows neither tables nor HTTP routes. `tests/contract/test_runtime.py` runs one suite on all of them.
Names are deterministic (`sm-<trial>-<fence>`): a repeated create of the same name is recognised, and whoever
restarts can list what still runs.
"""

import re
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from platform import machine
from typing import BinaryIO, Literal, NoReturn, Protocol

from core.errors import NotSupportedError, SpecInvalidError

__all__ = [
    "ALL_GPUS",
    "ENTRYPOINT_KEY",
    "EXECD_PORT",
    "LACKS",
    "BackgroundRun",
    "Capabilities",
    "Command",
    "CommandResult",
    "ExecutionClient",
    "FileInfo",
    "FileUpload",
    "ImageAuth",
    "KeptRun",
    "OnProgress",
    "PullPolicy",
    "ResourceLimits",
    "Runtime",
    "SandboxHandle",
    "SandboxSpec",
    "SandboxState",
    "SandboxStats",
    "StreamName",
    "VolumeClaim",
    "VolumeMount",
    "own_platform",
    "refuse_fields",
    "refuse_foreign_platform",
    "refuse_gpus",
]

EXECD_PORT = 44772
"""TCP port of execd in every sandbox; fixed by the wire protocol."""

ENTRYPOINT_KEY = "sandmill-entrypoint"
"""Names the entrypoint among the commands of its sandbox: see `ExecutionClient.background_output`."""

SANDBOX_NAME = re.compile(r"sm-[0-9a-z-]{1,80}")

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
"""The kernel's names of machines, and those of images and of the wire protocol."""

LACKS: Mapping[str, frozenset[str]] = {"local": frozenset({"gpu", "hostname", "oci_runtime", "volumes"})}
"""By runtime: fields of a spec, and of its limits, with which it can do nothing. Those that are not here lack none."""

ALL_GPUS = -1
"""As `ResourceLimits.gpu`: all that the host has."""

_LIMIT_RANGES = {
    # From what execd alone needs to what kernels accept: PID_MAX_LIMIT, NR_OPEN, and a petabyte.
    "cpu_millicores": (10, 1_000_000),
    "memory_bytes": (16 << 20, 1 << 50),
    "disk_bytes": (64 << 10, 1 << 50),
    "pids": (4, 4_194_304),
    "open_files": (64, 1_048_576),
    "gpu": (ALL_GPUS, 64),
}

_VOLUME_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,252}")
"""What both engines and Kubernetes take."""

_HOST_NAME = re.compile(r"[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?")
_PLATFORM = re.compile(r"[a-z0-9]{1,20}/[a-z0-9]{1,20}(/[a-z0-9]{1,20})?")

StreamName = Literal["stdout", "stderr"]

PullPolicy = Literal["never", "missing", "always"]
"""Whether an image is fetched from its registry: not at all, if it is not here, or anew before each start."""

OnProgress = Callable[[str], None]
"""Called by `Runtime.create` in its own thread, with what it does now in words for a person; must not block."""


@dataclass(frozen=True, slots=True)
class ResourceLimits:
    """Hard limits of one sandbox. All are set, none means unlimited: to kernels and engines zero often does.

    gpu: whole GPUs, or ALL_GPUS; a runtime that hands out none refuses such a sandbox with `refuse_gpus`.
    """

    cpu_millicores: int
    memory_bytes: int
    disk_bytes: int
    pids: int
    open_files: int = 1024
    gpu: int = 0

    def __post_init__(self) -> None:
        """Refuse what no limit can be, before an engine reads it as none at all."""
        for name, (low, high) in _LIMIT_RANGES.items():
            value = getattr(self, name)
            if type(value) is not int or not low <= value <= high:
                message = f"{name} is {value!r}, not a whole number from {low} to {high}"
                raise ValueError(message)


@dataclass(frozen=True, slots=True)
class ImageAuth:
    """Credentials for the registry of one image. They are never printed."""

    username: str = field(repr=False)
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class VolumeClaim:
    """A named volume of this node, which outlives its sandboxes.

    delete_with_sandbox: it goes with the sandbox that made it; one that was there before never does. owner: whose it
    is; the same name of another owner is another volume. Empty: the volume has just this name on the node.
    """

    name: str
    create_if_missing: bool = True
    delete_with_sandbox: bool = False
    owner: str = ""


@dataclass(frozen=True, slots=True)
class VolumeMount:
    """Files from outside the sandbox, at mount_path inside. Exactly one of host_path (of this node) and claim is given.

    name: by which errors call it. sub_path: what of it is shown; relative, never followed out of it.
    """

    name: str
    mount_path: str
    host_path: str | None = None
    claim: VolumeClaim | None = None
    read_only: bool = False
    sub_path: str | None = None

    def __post_init__(self) -> None:
        """Refuse what no mount can be. Raises SpecInvalidError that names the field."""
        if (self.host_path is None) == (self.claim is None):
            self.refuse("", "exactly one of a host path and a named volume is needed")
        if self.claim is not None and not _VOLUME_NAME.fullmatch(self.claim.name):
            self.refuse(
                "claim", f"{self.claim.name!r} is no name of a volume: it has to be {_VOLUME_NAME.pattern}"
            )
        for label, path in (("mount_path", self.mount_path), ("host_path", self.host_path)):
            if path is not None and not (path.startswith("/") and _is_plain(path)):
                self.refuse(label, f"{path!r} is not an absolute path without '..' and ':'")
        if not self.mount_path.strip("/."):
            self.refuse("mount_path", f"{self.mount_path!r} would cover the whole sandbox")
        if self.sub_path is not None and (self.sub_path.startswith("/") or not _is_plain(self.sub_path)):
            self.refuse("sub_path", f"{self.sub_path!r} is not a relative path without '..' and ':'")

    def refuse(self, part: str, message: str) -> NoReturn:
        """Raise SpecInvalidError about this mount. part: the field of it that is wrong, or nothing."""
        name = f"volumes[{self.name}]" + (f".{part}" if part else "")
        raise SpecInvalidError(f"{name}: {message}", field=name)


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """What to start. name: `sm-...`, see SANDBOX_NAME. workdir: absolute, made if missing; None: image default.

    env is added to the image's environment. labels: found again by `Runtime.list`. is_sealed: nothing in the sandbox
    steers execd; without it commands also take variables from a file that code inside can write (EXECD_ENVS), and a
    signal from inside can end execd: never where results are judged. entrypoint: argv of a program that is started in
    the background once execd answers; "image": the image's own, if it has one; None: nothing is started.

    image_auth: for the pull of the image. pull: None is what the node says. platform: `linux/amd64`; None: the host's.
    oci_runtime: what starts the container, by its name on this node, e.g. `runsc`; None is what the node says.
    is_writable: the whole root file system can be written, and the image's user is kept even if it is root, with the
    few rights that package managers need; otherwise the sandbox is as closed as its runtime can make it.
    hostname: None is `sandbox`. ready_seconds: so long it may take once its image is there and it has its turn; None:
    as long as the whole. A runtime refuses by name what it cannot do: see `refuse_fields`.
    """

    name: str
    image: str
    limits: ResourceLimits
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    is_sealed: bool = True
    entrypoint: Sequence[str] | Literal["image"] | None = None
    image_auth: ImageAuth | None = None
    pull: PullPolicy | None = None
    platform: str | None = None
    volumes: Sequence[VolumeMount] = ()
    oci_runtime: str | None = None
    is_writable: bool = False
    hostname: str | None = None
    ready_seconds: float | None = None

    def __post_init__(self) -> None:
        """Refuse names that could be read as options or paths by the tools below."""
        if not SANDBOX_NAME.fullmatch(self.name):
            message = f"sandbox name {self.name!r} does not match {SANDBOX_NAME.pattern}"
            raise ValueError(message)
        if self.hostname is not None and not _HOST_NAME.fullmatch(self.hostname):
            message = f"hostname: {self.hostname!r} is not one label of letters, digits and '-'"
            raise SpecInvalidError(message, field="hostname")
        if self.platform is not None and not _PLATFORM.fullmatch(self.platform):
            message = f"platform: {self.platform!r} is not of the form linux/amd64"
            raise SpecInvalidError(message, field="platform")
        for what, values in (
            ("name", [volume.name for volume in self.volumes]),
            ("mount_path", [volume.mount_path.rstrip("/") for volume in self.volumes]),
        ):
            if len(set(values)) < len(values):
                raise SpecInvalidError(f"volumes: two have the same {what}", field="volumes")


def _is_plain(path: str) -> bool:
    return bool(path) and not any(c in path for c in "\0:\n") and ".." not in path.split("/")


def refuse_fields(spec: SandboxSpec, runtime: str, *names: str) -> None:
    """Raise SpecInvalidError if a spec sets one of these fields, which the runtime knows nothing to do with."""
    for name in names:
        if getattr(spec, name):
            raise SpecInvalidError(f"{name}: the {runtime} runtime cannot do this; leave it out", field=name)


def own_platform() -> str:
    """Give the platform of this host, as `SandboxSpec.platform` spells it."""
    return f"linux/{ARCHITECTURES.get(machine(), machine())}"


def refuse_foreign_platform(spec: SandboxSpec, runtime: str) -> None:
    """Raise SpecInvalidError for a platform that is not this host's."""
    own = own_platform()
    if spec.platform is not None and spec.platform != own:
        message = f"platform: the {runtime} runtime of this node has {own}, not {spec.platform}"
        raise SpecInvalidError(message, field="platform")


def refuse_gpus(spec: SandboxSpec, runtime: str) -> None:
    """Raise SpecInvalidError for a sandbox with GPUs: for runtimes that hand out none."""
    if spec.limits.gpu:
        message = f"resources.gpu: sandboxes of the {runtime} runtime get no GPUs in this release; leave the field out"
        raise SpecInvalidError(message, field="resources.gpu")


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a runtime can do on one host and not on each. What it can do nowhere is in LACKS.

    oci_runtimes: names that `SandboxSpec.oci_runtime` may have. host_paths: folders in which those of volumes may lie.
    """

    makes_snapshots: bool = True
    oci_runtimes: Collection[str] = ()
    host_paths: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class SandboxHandle:
    """One sandbox that was created. ref: the runtime's own id (container id, process id)."""

    runtime: str
    name: str
    ref: str
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SandboxState:
    """How a sandbox is. ended: execd is, and so nothing runs; gone: nothing is left of it, or it never was.

    exit_code: of an ended one, where it is known. message: why it ended, in words, where that is known.
    """

    phase: Literal["starting", "running", "paused", "ended", "gone"]
    exit_code: int | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class SandboxStats:
    """Use since the start, and now. None where the host does not account for it.

    processes: threads count too. disk_bytes: written, of disk_limit_bytes.
    """

    cpu_seconds: float | None = None
    memory_peak_bytes: int | None = None
    oom_kills: int | None = None
    memory_bytes: int | None = None
    processes: int | None = None
    disk_bytes: int | None = None
    disk_limit_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Command:
    """Exactly one of shell (text for `bash -c`, else `sh -c`) and argv. timeout_seconds None: no own limit.

    merge_streams: stdout and stderr are one pipe, so their order is exact; all comes as stdout.
    kill_leftovers: nothing it started outlives it; the result comes when all of it is dead.
    """

    shell: str | None = None
    argv: Sequence[str] | None = None
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    timeout_seconds: float | None = None
    merge_streams: bool = False
    kill_leftovers: bool = False


@dataclass(frozen=True, slots=True)
class CommandResult:
    """How a command ended. exit_code is None when it did not exit by itself.

    signal: number that killed it. timed_out: its own timeout did. interrupted: `stop` was set.
    error: why it could not be started, in words. missing_bytes: of its output, no longer kept when we came back for it.
    """

    exit_code: int | None = None
    signal: int | None = None
    timed_out: bool = False
    interrupted: bool = False
    error: str | None = None
    duration_ms: int = 0
    missing_bytes: int = 0


@dataclass(frozen=True, slots=True)
class BackgroundRun:
    """How a command in the background is. exit_code, signal: how it ended, as in CommandResult.

    oom_killed: something in the sandbox was killed for want of memory meanwhile. output: the end of what it wrote,
    stdout and stderr in one; total_bytes: all of it.
    """

    is_running: bool
    exit_code: int | None = None
    signal: int | None = None
    oom_killed: bool = False
    output: bytes = b""
    total_bytes: int = 0


@dataclass(frozen=True, slots=True)
class KeptRun:
    """A command that outlives its client, so that another one can go on with it, also when it has ended meanwhile.

    key: names this run in its sandbox; the same key with the same command attaches to it, and starts nothing twice.
    offset: bytes of its output, of both streams together, that the caller has already. is_started: only attach.
    """

    key: str
    offset: int = 0
    is_started: bool = False


@dataclass(frozen=True, slots=True)
class FileUpload:
    """One file to write. path: absolute in the sandbox. mode: permission bits, e.g. 0o644. Parents are made."""

    path: str
    data: bytes | BinaryIO
    mode: int = 0o644


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One directory entry, not followed if it is a link."""

    path: str
    type: Literal["file", "directory", "symlink", "other"]
    size: int
    mode: int


class ExecutionClient(Protocol):
    """Talks to execd of one sandbox. All calls raise ExecdUnreachableError when it is gone."""

    def ping(self) -> None:
        """Return when execd answers."""

    def run(
        self,
        command: Command,
        *,
        on_output: Callable[[StreamName, bytes], None],
        stop: threading.Event | None = None,
        kill_grace_seconds: float = 10.0,
        kept: KeptRun | None = None,
    ) -> CommandResult:
        """Run in the foreground; returns after the last output. on_output: called in order, in this thread.

        When stop is set the command gets TERM, then KILL after the grace, and the result says interrupted.
        kept: it does not end with this client. Raises NotFoundError if it was to be started already, and was not.
        """

    def start(self, command: Command, *, key: str) -> None:
        """Start in the background, unless this key has started it already.

        Raises SpecInvalidError if there is no such program.
        """

    def background_output(self, command: Command, *, key: str) -> bytes:
        """Give what a command that was started so has written until now; stdout and stderr in one, as far as kept.

        The entrypoint has the key ENTRYPOINT_KEY. Raises NotFoundError if no such command was started.
        """

    def background_run(
        self, command: Command, *, key: str, tail_bytes: int, wait_seconds: float = 0.0
    ) -> BackgroundRun:
        """Say how a command is that was started so, with the end of its output; waits so long for it to end.

        Raises NotFoundError if no such command was started.
        """

    def upload(self, files: Sequence[FileUpload]) -> None:
        """Write files; each appears whole or not at all."""

    def download(self, path: str, *, max_bytes: int) -> bytes:
        """Read one file. Raises NotFoundError, and PayloadTooLargeError beyond max_bytes."""

    def delete(self, paths: Sequence[str]) -> None:
        """Remove files; those that are missing already are no error."""

    def file_info(self, path: str) -> FileInfo:
        """Look at one path. Raises NotFoundError."""

    def search(self, path: str, pattern: str) -> list[FileInfo]:
        """List files below path whose basename matches the glob; a missing path gives an empty list."""

    def close(self) -> None:
        """Drop the connection, if one is kept."""


class Runtime(ABC):
    """Starts and ends sandboxes on this node. Implementations are thread-safe.

    outlives: whether sandboxes go on when this process ends, so that the next one finds them by `list`.
    """

    name: str
    outlives: bool = False

    @abstractmethod
    def check(self) -> None:
        """Return if this host can run sandboxes; else raise RuntimeUnavailableError that says what to do."""

    def limitations(self) -> Sequence[str]:
        """Say, a line each, what this host does not let the runtime enforce, and the way out. Call it after `check`."""
        return ()

    def capabilities(self) -> Capabilities:
        """Say what it can do on this host, as it is now. Call it after `check`. Raises kinds of RunFailure."""
        return Capabilities()

    @abstractmethod
    def create(
        self, spec: SandboxSpec, *, timeout_seconds: float, on_progress: OnProgress | None = None
    ) -> SandboxHandle:
        """Make the sandbox and start it; returns when execd answers.

        A sandbox of the same name that still runs is returned as it is. Nothing is left behind on failure.
        on_progress: told of each stage, and of how far a pull has come.
        Raises ImageNotFoundError, BadImageError, SpecInvalidError, CreateTimeoutError, DaemonError.
        """

    @abstractmethod
    def executions(self, handle: SandboxHandle) -> ExecutionClient:
        """Give a client for execd of this sandbox; the caller closes it."""

    @abstractmethod
    def connect(self, handle: SandboxHandle, port: int, *, timeout_seconds: float) -> socket.socket:
        """Open a stream to a port inside the sandbox. Raises ExecdUnreachableError, NotSupportedError."""

    @abstractmethod
    def stats(self, handle: SandboxHandle) -> SandboxStats:
        """Read use and OOM kills; all None once the sandbox is gone."""

    @abstractmethod
    def state(self, handle: SandboxHandle) -> SandboxState:
        """Say how it is now, whatever happened to it from outside. Cheap while it runs."""

    @abstractmethod
    def remove(self, handle: SandboxHandle) -> None:
        """Kill everything in it at once and release all it holds. Idempotent; returns when nothing is left."""

    @abstractmethod
    def list(self) -> list[SandboxHandle]:
        """All sandboxes of this runtime on this host, whoever created them, running or not."""

    def find(self, name: str) -> SandboxHandle | None:
        """Give the sandbox of this name on this host, whoever created it; None if there is none."""
        return next((handle for handle in self.list() if handle.name == name), None)

    def access_token(self, handle: SandboxHandle) -> str | None:
        """Give what execd of this sandbox wants as `X-EXECD-ACCESS-TOKEN`; None if nobody else can reach it anyway."""
        del handle
        return None

    def collect(self, node: str, keep: Collection[str]) -> tuple[int, int]:
        """Remove what sandboxes of a node left behind that is no sandbox, such as volumes: (removed, would not go).

        node: id in the labels of its sandboxes. keep: names of sandboxes that count as there.
        """
        del node, keep
        return 0, 0

    def pause(self, handle: SandboxHandle) -> None:
        """Stop every process where it stands; memory and files stay. Idempotent; execd does not answer meanwhile.

        Raises ExecdUnreachableError if the sandbox is gone, NotSupportedError.
        """
        raise NotSupportedError(f"the {self.name} runtime cannot pause {handle.name}")

    def resume(self, handle: SandboxHandle) -> None:
        """Let a paused sandbox go on. Idempotent. Raises as `pause`."""
        raise NotSupportedError(f"the {self.name} runtime cannot resume {handle.name}")

    def snapshot(self, handle: SandboxHandle, name: str) -> None:
        """Keep a copy of all files; the image `snapshot:NAME` starts sandboxes from it, until it is removed.

        The sandbox stands still while it is copied; its processes go on, and are not part of it. Raises as `pause`,
        SpecInvalidError for a name that is bad or taken, ImageStoreFullError.
        """
        raise NotSupportedError(f"the {self.name} runtime cannot make the snapshot {name} of {handle.name}")

    def fork(
        self, handle: SandboxHandle, spec: SandboxSpec, *, timeout_seconds: float
    ) -> tuple[SandboxHandle, SandboxHandle]:
        """Start a second sandbox with the files of a first one, which go separate ways from here on; copies nothing.

        All processes of the first end, and it starts anew with its files: its handle changes. spec: of the second; its
        image counts for nothing. Gives (first, second). Raises as `pause` and `create`.
        """
        del timeout_seconds
        raise NotSupportedError(f"the {self.name} runtime cannot fork {handle.name} to {spec.name}")

    def snapshots(self) -> Sequence[str]:
        """Names of all snapshots there are on this host."""
        return ()

    def snapshot_bytes(self, name: str) -> int | None:  # noqa: ARG002 -- not all can tell
        """Room that a snapshot takes on this host; None if that is not known, or there is no such snapshot."""
        return None

    def remove_snapshot(self, name: str) -> None:
        """Delete a snapshot; sandboxes that run from it go on. Idempotent."""
        raise NotSupportedError(f"the {self.name} runtime has no snapshot {name}")

    def close(self) -> None:  # noqa: B027 -- most runtimes hold nothing
        """Release what the runtime object itself holds; sandboxes stay as they are."""
