"""Real runtimes for tests, and short ways to use a sandbox."""

import os
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runtimes.base import (
    Command,
    CommandResult,
    ExecutionClient,
    ResourceLimits,
    Runtime,
    SandboxHandle,
    SandboxSpec,
)
from runtimes.bundle import ensure_bundle
from runtimes.docker import DockerConfig, DockerRuntime
from runtimes.fake import FakeRuntime
from runtimes.local.config import LocalConfig
from runtimes.local.runtime import LocalRuntime
from tests.support.images import BUSYBOX_IMAGE, docker_problem, ensure_images

START_SECONDS = 60
"""Generous: the machine of the tests may be busy."""


@dataclass
class Said:
    """A command's result and output. order: (stream, bytes) as they came."""

    result: CommandResult
    order: list[tuple[str, bytes]] = field(default_factory=list)

    @property
    def code(self) -> int | None:
        return self.result.exit_code

    @property
    def out(self) -> str:
        return self.of("stdout").decode()

    def of(self, stream: str) -> bytes:
        return b"".join(data for name, data in self.order if name == stream)


@dataclass
class Box:
    """One sandbox and its client."""

    runtime: Runtime
    handle: SandboxHandle
    client: ExecutionClient
    python_argv: tuple[str, ...] = ()

    def sh(
        self, text: str, *, stop: threading.Event | None = None, grace: float = 2.0, **options: Any
    ) -> Said:
        return self.run(Command(shell=text, **options), stop=stop, grace=grace)

    def python(self, code: str, *arguments: str, **options: Any) -> Said:
        """Run code with the bundle's interpreter, which every real sandbox has."""
        return self.run(Command(argv=[*self.python_argv, "-c", code, *arguments], **options))

    def run(self, command: Command, *, stop: threading.Event | None = None, grace: float = 2.0) -> Said:
        order: list[tuple[str, bytes]] = []
        result = self.client.run(
            command,
            on_output=lambda stream, data: order.append((stream, data)),
            stop=stop,
            kill_grace_seconds=grace,
        )
        return Said(result, order)


@dataclass
class Kind:
    """A runtime with what tests must know about it. image: one that has a shell."""

    runtime: Runtime
    image: str
    python_argv: tuple[str, ...] = ()

    def spec(self, **changes: Any) -> SandboxSpec:
        return make_spec(**{"image": self.image, **changes})

    @contextmanager
    def box(self, **changes: Any) -> Iterator[Box]:
        """A sandbox that is removed afterwards."""
        handle = self.runtime.create(self.spec(**changes), timeout_seconds=START_SECONDS)
        client = self.runtime.executions(handle)
        try:
            yield Box(self.runtime, handle, client, self.python_argv)
        finally:
            client.close()
            self.runtime.remove(handle)


def make_limits(**changes: Any) -> ResourceLimits:
    """Small limits."""
    defaults = {"cpu_millicores": 2000, "memory_bytes": 256 << 20, "disk_bytes": 32 << 20, "pids": 64}
    return ResourceLimits(**{**defaults, **changes})


def make_spec(**changes: Any) -> SandboxSpec:
    """A spec with a name of its own. limits may be given as a dict of changes."""
    limits = changes.pop("limits", {})
    defaults = {"name": f"sm-test-{uuid.uuid4().hex[:12]}", "image": "fake", "limits": make_limits(**limits)}
    return SandboxSpec(**{**defaults, **changes})


@contextmanager
def local_kind(folder: Path, **config: Any) -> Iterator[Kind]:
    """The local runtime with its state in a folder."""
    settings = LocalConfig(state_dir=folder / "state", bundle_dir=folder / "bundles", **config)
    with _closing(LocalRuntime(settings)) as runtime:
        yield Kind(runtime, "host", _python_argv(folder / "bundles"))


@contextmanager
def docker_kind(folder: Path, **config: Any) -> Iterator[Kind]:
    """The docker runtime; the engine must be there."""
    ensure_images()
    settings = DockerConfig(bundle_dir=folder / "bundles", state_dir=folder / "docker", **config)
    with _closing(DockerRuntime(settings)) as runtime:
        yield Kind(runtime, BUSYBOX_IMAGE, _python_argv(folder / "bundles"))


@contextmanager
def fake_kind(folder: Path) -> Iterator[Kind]:
    """The fake runtime."""
    del folder
    with _closing(FakeRuntime()) as runtime:
        yield Kind(runtime, "fake")


KINDS: dict[str, Callable[[Path], Any]] = {"fake": fake_kind, "local": local_kind, "docker": docker_kind}


def missing_requirement(name: str) -> str | None:
    """Say why a runtime cannot be tested here; None if it can."""
    return docker_problem() if name == "docker" else None


def is_root() -> bool:
    return os.geteuid() == 0


def _python_argv(bundles: Path) -> tuple[str, ...]:
    return ensure_bundle(bundles).command[:-1]


@contextmanager
def _closing(runtime: Runtime) -> Iterator[Runtime]:
    try:
        yield runtime
    finally:
        runtime.close()
