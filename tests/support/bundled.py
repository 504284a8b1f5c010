"""execd from its bundle in a container of any image, with all rights dropped: under the engine's runc and in gVisor.

Neither has a network, so questions to execd are asked inside, by the bundle's own interpreter.
"""

import json
import os
import shutil
import subprocess
import uuid
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from execd.bundle import BUNDLE_MOUNT, bundle_command
from tests.support.execd import wait_for
from tests.support.images import EMPTY_IMAGE, unpack_image

__all__ = ["Bundled", "in_docker", "in_gvisor", "needs_gvisor", "python_in_bundle", "volume_with"]

USER = 1234
_FLAGS = ["--host", "127.0.0.1", "--log-level", "info"]
_START_SECONDS = 30.0
_CALL_SECONDS = 60.0

_ASK = """
import socket, sys
verb, target, body = sys.argv[1], sys.argv[2], sys.argv[3].encode()
connection = socket.socket()
connection.settimeout(20)
connection.connect(("127.0.0.1", 44772))
head = f"{verb} {target} HTTP/1.0\\r\\nHost: execd\\r\\nContent-Length: {len(body)}\\r\\n\\r\\n"
connection.sendall(head.encode() + body)
while data := connection.recv(65536):
    sys.stdout.buffer.write(data)
"""


@dataclass(frozen=True)
class Answer:
    """What execd answered. body: what follows the head."""

    status: int
    body: str

    @property
    def events(self) -> list[dict[str, Any]]:
        """The frames of an event stream."""
        return [json.loads(line) for line in self.body.splitlines() if line]

    def output(self, stream: str = "stdout") -> str:
        """All a command wrote."""
        parts = [event for event in self.events if event["type"] == stream]
        return b"".join(b64decode(e["b64"]) if "b64" in e else e["text"].encode() for e in parts).decode()


@dataclass(frozen=True)
class Bundled:
    """A container with execd as process 1. exec_argv: what runs a program beside it, less its argv."""

    exec_argv: tuple[str, ...]
    read_log: Callable[[], str]

    def exec(self, *argv: str) -> "subprocess.CompletedProcess[str]":
        """Run a program beside execd to its end, whatever its exit code."""
        command = [*self.exec_argv, *argv]
        return subprocess.run(command, capture_output=True, text=True, timeout=_CALL_SECONDS, check=False)

    def ask(self, verb: str, target: str, body: Mapping[str, Any] | None = None) -> Answer:
        """Send execd a request. Raises ConnectionError if it does not answer."""
        said = self.exec(*python_in_bundle(_ASK, verb, target, json.dumps(body) if body else ""))
        head, _, rest = said.stdout.partition("\n\n")
        if said.returncode != 0 or not head.startswith("HTTP/1."):
            raise ConnectionError(said.stderr[-500:] or said.stdout[-500:])
        return Answer(int(head.split()[1]), rest)

    def run(self, *argv: str, **fields: Any) -> Answer:
        """Run a command through execd."""
        answer = self.ask("POST", "/command", {"argv": argv, **fields})
        assert answer.status == 200, answer
        return answer

    def python(self, code: str) -> str:
        """Run code by the bundle's interpreter, as a command; gives its stdout."""
        answer = self.run(*python_in_bundle(code))
        assert answer.events[-1].get("exit_code") == 0, answer
        return answer.output()

    def answers(self) -> bool:
        """Whether execd is up."""
        try:
            return self.ask("GET", "/ping").status == 200
        except ConnectionError:
            return False


def python_in_bundle(code: str, *arguments: str) -> list[str]:
    """The argv that runs code by the bundle's interpreter, inside."""
    return [*bundle_command()[:-1], "-c", code, *arguments]


def needs_gvisor() -> None:
    """Skip, or fail where everything has to be there, without gVisor's program."""
    reason = "gVisor's runsc is not installed (Debian: apt install runsc)"
    if shutil.which("runsc") is None:
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)


@contextmanager
def in_docker(
    image: str, mount: str, *, env: Mapping[str, str] | None = None, options: Sequence[str] = ()
) -> Iterator[Bundled]:
    """Run the bundle in a container of an image. mount: the bundle's folder, or the name of a volume."""
    loader, *arguments = bundle_command(args=_FLAGS)
    confined = ["--read-only", f"--user={USER}:{USER}", "--cap-drop=ALL", "--security-opt=no-new-privileges"]
    limits = ["--network=none", "--memory=256m", "--pids-limit=64", "--tmpfs=/tmp"]
    variables = [f"--env={name}={value}" for name, value in (env or {}).items()]
    argv = [
        "docker",
        "run",
        "--detach",
        *confined,
        *limits,
        *variables,
        f"--volume={mount}:{BUNDLE_MOUNT}:ro",
    ]
    argv += [*options, f"--entrypoint={loader}", image, *arguments]
    container = _output(*argv).strip()
    try:
        bundled = Bundled(("docker", "exec", container), lambda: _both("docker", "logs", container))
        _wait(bundled)
        yield bundled
    finally:
        _output("docker", "rm", "--force", "--volumes", container)


@contextmanager
def volume_with(bundle: Path) -> Iterator[str]:
    """A named volume of the engine that holds the bundle."""
    name = f"sandmill-test-{uuid.uuid4().hex[:12]}"
    _output("docker", "volume", "create", name)
    try:
        filler = _output("docker", "create", f"--volume={name}:{BUNDLE_MOUNT}", EMPTY_IMAGE, "none").strip()
        try:
            _output("docker", "cp", f"{bundle}/.", f"{filler}:{BUNDLE_MOUNT}")
        finally:
            _output("docker", "rm", filler)
        yield name
    finally:
        _output("docker", "volume", "rm", name)


@contextmanager
def in_gvisor(
    image: str, bundle: Path, work: Path, *, env: Mapping[str, str] | None = None
) -> Iterator[Bundled]:
    """Run the bundle in gVisor, without the engine, on an unpacked image. work: a folder for it."""
    unpack_image(image, work / "root")
    folder = work / "oci"
    folder.mkdir()
    settings = _gvisor_settings(work / "root", bundle, env or {"PATH": "/bin:/usr/bin"})
    (folder / "config.json").write_text(json.dumps(settings))
    name = f"sandmill-test-{uuid.uuid4().hex[:12]}"
    runsc = ("runsc", f"--root={work / 'state'}", "--platform=ptrace", "--network=none", "--ignore-cgroups")
    log = work / "log"
    with log.open("wb") as file:
        sandbox = subprocess.Popen(
            [*runsc, "run", "-bundle", str(folder), name],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
        )
    try:
        bundled = Bundled((*runsc, "exec", name), log.read_text)
        _wait(bundled)
        yield bundled
    finally:
        _both(*runsc, "kill", name, "KILL")
        try:
            sandbox.wait(20)
        finally:
            sandbox.kill()
            sandbox.wait()
            _both(*runsc, "delete", "-force", name)


def _gvisor_settings(root: Path, bundle: Path, env: Mapping[str, str]) -> dict[str, Any]:
    """The OCI form of the same confinement."""
    sets = ("bounding", "effective", "inheritable", "permitted", "ambient")
    return {
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": USER, "gid": USER},
            "args": bundle_command(args=_FLAGS),
            "env": [f"{name}={value}" for name, value in env.items()],
            "cwd": "/",
            "capabilities": {name: [] for name in sets},
            "noNewPrivileges": True,
        },
        "root": {"path": str(root), "readonly": True},
        "hostname": "sandbox",
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
            {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs"},
            {
                "destination": BUNDLE_MOUNT,
                "type": "bind",
                "source": str(bundle),
                "options": ["ro", "rbind"],
            },
        ],
        "linux": {"namespaces": [{"type": kind} for kind in ("pid", "network", "ipc", "uts", "mount")]},
    }


def _wait(bundled: Bundled) -> None:
    try:
        wait_for(bundled.answers, seconds=_START_SECONDS)
    except AssertionError:
        pytest.fail(f"execd does not answer: {bundled.read_log()}")


def _output(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=_CALL_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _both(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=_CALL_SECONDS, check=False)
    return done.stdout + done.stderr
