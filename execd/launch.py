"""Starting the main process of a command."""

import errno
import fcntl
import os
import stat
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from execd.accounts import Accounts
from execd.envs import DEFAULT_PATH, expand_directory
from execd.errors import InvalidBodyError
from execd.processes import process_start
from execd.requests import CommandRequest

__all__ = [
    "Launched",
    "ShellStart",
    "StartFailedError",
    "StartFailure",
    "find_shell",
    "launch",
    "resolve_directory",
    "start_failure",
]

_MAX_ARGUMENT_BYTES: Final = 128 * 1024 - 1
"""The kernel's MAX_ARG_STRLEN without the final NUL; a longer script goes through a file in memory."""

_CHILD_UMASK: Final = 0o022

_TIOCSCTTY: Final = 0x540E
"""The same on every architecture of Linux that this runs on; `termios` would have to be loaded for it."""


class StartFailure(StrEnum):
    """Why a program could not be started. A shell returns 127 for not_found and 126 for not_executable."""

    NOT_FOUND = "not_found"
    NOT_EXECUTABLE = "not_executable"
    TOO_LONG = "too_long"
    NO_RESOURCES = "no_resources"
    OTHER = "other"


_FAILURES: Final = {
    errno.ENOENT: StartFailure.NOT_FOUND,
    errno.ENOTDIR: StartFailure.NOT_FOUND,
    errno.EACCES: StartFailure.NOT_EXECUTABLE,
    errno.ENOEXEC: StartFailure.NOT_EXECUTABLE,
    errno.EISDIR: StartFailure.NOT_EXECUTABLE,
    errno.ETXTBSY: StartFailure.NOT_EXECUTABLE,
    errno.E2BIG: StartFailure.TOO_LONG,
    errno.EAGAIN: StartFailure.NO_RESOURCES,
    errno.ENOMEM: StartFailure.NO_RESOURCES,
    errno.EMFILE: StartFailure.NO_RESOURCES,
    errno.ENFILE: StartFailure.NO_RESOURCES,
}


class StartFailedError(Exception):
    """The program could not be started; the text is the operating system's."""

    def __init__(self, message: str, kind: StartFailure = StartFailure.OTHER) -> None:
        super().__init__(message)
        self.kind = kind


def start_failure(error: OSError) -> StartFailure:
    """Give the kind of what the operating system said."""
    return _FAILURES.get(error.errno or 0, StartFailure.OTHER)


@dataclass(slots=True)
class Launched:
    """A started process. outputs: our read ends by stream name. stdin_fd: our write end, if input is to be fed.

    popen: only its returncode is to be set once the process was waited for, which keeps it from waiting itself.
    """

    popen: subprocess.Popen[bytes]
    start_ticks: int
    outputs: dict[str, int]
    stdin_fd: int | None

    @property
    def pid(self) -> int:
        """Process, session and process group id."""
        return self.popen.pid


@dataclass(frozen=True, slots=True)
class ShellStart:
    """A shell to start in place of what the request names. The descriptors stay the caller's.

    executable: path. stdin, stderr: its descriptors 0 and 2; 1 is the pipe as ever. cwd: where to start, whatever the
    request says, and taken as it is.
    """

    argv: tuple[str, ...]
    executable: str
    stdin: int
    stderr: int
    cwd: str | None = None


@dataclass(slots=True)
class _Plumbing:
    """Pipe ends and other descriptors of one start; all but what the caller gave are closed unless taken over."""

    terminal: int | None
    shell: ShellStart | None
    ours: list[int] = field(default_factory=list)
    theirs: list[int] = field(default_factory=list)

    def pipe_out(self) -> tuple[int, int]:
        """A pipe the child writes to: our end, its end."""
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(read_end, False)
        self.ours.append(read_end)
        self.theirs.append(write_end)
        return read_end, write_end

    def pipe_in(self) -> tuple[int, int]:
        """A pipe the child reads from: our end, its end."""
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(write_end, False)
        self.ours.append(write_end)
        self.theirs.append(read_end)
        return write_end, read_end


def launch(
    request: CommandRequest,
    env: Mapping[str, str],
    accounts: Accounts,
    *,
    terminal: int | None = None,
    shell: ShellStart | None = None,
) -> Launched:
    """Start the process in its own session, with only fds 0, 1, 2, default signals and umask 022.

    A request with neither command nor argv starts the shell itself. terminal: the program's end of a
    pseudo-terminal, which stays the caller's; it becomes all three descriptors and controls the session.
    Raises InvalidBodyError for a directory or user that cannot be used, StartFailedError for the rest.
    """
    cwd = shell.cwd if shell and shell.cwd else resolve_directory(request.cwd, env, accounts)
    identity = _identity(request, accounts)
    plumbing = _Plumbing(terminal, shell)
    try:
        return _start(request, env, cwd, identity, plumbing)
    except (OSError, subprocess.SubprocessError) as error:
        for fd in plumbing.ours:
            os.close(fd)
        if identity and isinstance(error, OSError) and error.errno in (errno.EPERM, errno.EINVAL):
            raise InvalidBodyError(
                f"uid: execd may not become user {request.uid}: {error.strerror}"
            ) from error
        kind = start_failure(error) if isinstance(error, OSError) else StartFailure.OTHER
        raise StartFailedError(_start_failure_text(error, request), kind) from error
    finally:
        for fd in plumbing.theirs:
            os.close(fd)


def _start(
    request: CommandRequest,
    env: Mapping[str, str],
    cwd: str,
    identity: dict[str, int | list[int]],
    plumbing: _Plumbing,
) -> Launched:
    argv, executable = _program(request, env, plumbing)
    outputs: dict[str, int] = {}
    stdin_fd: int | None = None
    ends: dict[str, Any]
    if plumbing.terminal is not None:
        ends = dict.fromkeys(("stdin", "stdout", "stderr"), plumbing.terminal)
        ends["preexec_fn"] = _take_terminal
    elif plumbing.shell is not None:
        ends = {"stdin": plumbing.shell.stdin, "stderr": plumbing.shell.stderr}
        outputs["stdout"], ends["stdout"] = plumbing.pipe_out()
    else:
        ends = {"stdin": subprocess.DEVNULL, "stderr": subprocess.STDOUT}
        outputs["stdout"], ends["stdout"] = plumbing.pipe_out()
        if not request.merge_stderr:
            outputs["stderr"], ends["stderr"] = plumbing.pipe_out()
        if request.stdin is not None:
            stdin_fd, ends["stdin"] = plumbing.pipe_in()
    popen = subprocess.Popen(
        argv,
        executable=executable,
        cwd=cwd,
        env=env,
        start_new_session=True,
        umask=_CHILD_UMASK,
        # All our descriptors close on exec. Looking for others to close would take a hundred milliseconds under a
        # limit of a million files, whenever /proc/self is not ours to read.
        close_fds=False,
        **ends,
        **identity,  # type: ignore[call-overload]  # the overloads cannot see through **kwargs
    )
    _offer_to_the_oom_killer(popen.pid)
    return Launched(popen, process_start(popen.pid), outputs, stdin_fd)


def _take_terminal() -> None:
    """In the child, as leader of its new session: make its standard input the session's terminal."""
    fcntl.ioctl(0, _TIOCSCTTY, 0)


def _offer_to_the_oom_killer(pid: int) -> None:
    """When the sandbox's memory is used up, let a command die for it and not execd, even if execd is larger."""
    try:
        fd = os.open(f"/proc/{pid}/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return  # it has ended already
    try:
        os.write(fd, b"500")
    except OSError:
        return
    finally:
        os.close(fd)


def _program(
    request: CommandRequest, env: Mapping[str, str], plumbing: _Plumbing
) -> tuple[list[str], str | None]:
    """Give argv, and the executable if it is not to be looked up."""
    if plumbing.shell is not None:
        return list(plumbing.shell.argv), plumbing.shell.executable
    if request.argv is not None:
        return list(request.argv), None
    name, executable = find_shell(env)
    if request.command is None:
        return [name], executable
    script = request.command.encode("utf-8")
    if len(script) <= _MAX_ARGUMENT_BYTES:
        # Two dashes, or text that begins with one would be taken for options.
        return [name, "-c", "--", request.command], executable
    fd = os.memfd_create("command", os.MFD_CLOEXEC)
    plumbing.theirs.append(fd)
    # The shell opens the script anew, so the inherited descriptor is closed before the script's first word.
    # Plain sh knows one-digit descriptors only; a higher one stays open there.
    closing = b"exec %d<&-;" % fd if name == "bash" or fd < 10 else b""
    _write_all(fd, closing + script)
    os.set_inheritable(fd, True)
    return [name, f"/proc/self/fd/{fd}"], executable


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def find_shell(env: Mapping[str, str]) -> tuple[str, str]:
    """Give name and path of bash, else of sh. Raises FileNotFoundError."""
    directories = [*env.get("PATH", DEFAULT_PATH).split(":"), "/bin", "/usr/bin"]
    for name in ("bash", "sh"):
        for directory in directories:
            candidate = os.path.join(directory or ".", name)
            if os.access(candidate, os.X_OK) and os.path.isfile(candidate):
                return name, candidate
    raise FileNotFoundError(errno.ENOENT, "neither bash nor sh is in this image", "sh")


def resolve_directory(cwd: str | None, env: Mapping[str, str], accounts: Accounts) -> str:
    """Give the directory to start in: ~ and $NAME expanded; execd's own, or /, without one.

    Raises InvalidBodyError if it cannot be used.
    """
    if cwd is None:
        return _own_directory() or "/"
    account = accounts.user_by_id(os.geteuid()) if cwd.startswith("~") and "HOME" not in env else None
    try:
        path = expand_directory(cwd, env, home=account.home if account else "/")
    except KeyError as error:
        raise InvalidBodyError(f"cwd: variable {error.args[0]} is not set") from error
    try:
        if stat.S_ISDIR(os.stat(path).st_mode):
            return path
        reason = "Not a directory"
    except OSError as error:
        reason = error.strerror or str(error)
    raise InvalidBodyError(f"cwd: {path}: {reason}")


def _own_directory() -> str | None:
    """Give execd's directory; None if it is gone."""
    try:
        return os.getcwd()
    except OSError:
        return None


def _identity(request: CommandRequest, accounts: Accounts) -> dict[str, int | list[int]]:
    """Keywords for Popen; empty when the process keeps execd's user."""
    if request.uid is None:
        return {}
    gid = request.gid
    if gid is None:
        account = accounts.user_by_id(request.uid)
        gid = account.gid if account else request.uid
    if (request.uid, gid) == (os.geteuid(), os.getegid()):
        return {}
    return {"user": request.uid, "group": gid, "extra_groups": []}


def _start_failure_text(error: OSError | subprocess.SubprocessError, request: CommandRequest) -> str:
    if not isinstance(error, OSError):
        return str(error)
    subject = error.filename or (request.argv[0] if request.argv else "sh")
    return f"{subject}: {error.strerror or error}"
