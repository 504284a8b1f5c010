"""The `docker` runtime, plain form: one container per sandbox, execd as its process 1, no network, no `docker exec`."""

import os
import platform
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import requests.exceptions
from docker.errors import APIError, DockerException, NotFound
from pydantic import BaseModel, ConfigDict, Field

from core.errors import (
    BadImageError,
    CreateTimeoutError,
    DaemonError,
    ExecdUnreachableError,
    NotSupportedError,
    RuntimeUnavailableError,
)
from runtimes.base import (
    EXECD_PORT,
    OnProgress,
    Runtime,
    SandboxHandle,
    SandboxSpec,
    SandboxState,
    SandboxStats,
    refuse_fields,
    refuse_foreign_platform,
    refuse_gpus,
)
from runtimes.bundle import BUNDLE_MOUNT, TOKEN_VARIABLE, Bundle, ensure_bundle
from runtimes.cgroups import cgroup_of
from runtimes.container_images import ImageCatalogue
from runtimes.container_spec import (
    SANDBOX_LABEL,
    ContainerImage,
    ContainerRules,
    container_settings,
    labels_of,
)
from runtimes.deadline import Deadline
from runtimes.engine import Engine
from runtimes.engine_errors import daemon_error
from runtimes.execd_client import HttpExecutionClient
from runtimes.local.syscalls import native_table
from runtimes.netns import connect_in_namespace
from runtimes.processes import ProcessRef
from runtimes.sandbox_tokens import SandboxTokens
from runtimes.seccomp_profile import seccomp_profile

__all__ = ["DockerConfig", "DockerRuntime"]

_ENGINE_TIMEOUT_SECONDS = 30.0
"""For calls that take milliseconds on a healthy engine."""

_CONNECT_TIMEOUT_SECONDS = 5.0
_READY_POLL_SECONDS = 0.005
_LOG_BYTES = 2000


class DockerConfig(BaseModel):
    """What a node says about its `docker` runtime.

    base_url: the engine, e.g. unix:///run/docker.sock; None: DOCKER_HOST or the usual socket. It must be on this host.
    bundle_dir: as the engine sees it, too. state_dir: the secret from which execd's tokens come; made with mode 0700.
    user: in the place of an image's root, for all sandboxes; None: another one for each. pull: fetch missing images.
    writable_root: let the root file system be written; most storage drivers then have no limit on disk use.
    oci_runtime: a name from the engine's list, e.g. runsc.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    type: Literal["docker"] = "docker"
    base_url: str | None = None
    bundle_dir: Path
    state_dir: Path
    user: int | None = Field(default=None, ge=1, le=2_000_000_000)
    pull: bool = False
    writable_root: bool = False
    oci_runtime: str | None = None


class DockerRuntime(Runtime):
    """Containers of a Docker engine on this host. Needs root, to reach the sandboxes' own networks.

    The root file system is read-only; /tmp and the job's workdir are in memory, share disk_bytes, and count against its
    memory limit as well. A workdir that the image has is shown as it is there. Containers outlive this process.
    """

    name = "docker"
    outlives = True

    def __init__(self, config: DockerConfig) -> None:
        """Touch nothing yet: the engine is asked, and the bundle built, on first use."""
        self._config = config
        self._lock = threading.Lock()
        self._engine: Engine | None = None
        self._bundle: Bundle | None = None
        self._images = ImageCatalogue()
        self._tokens = SandboxTokens(config.state_dir)
        self._processes: dict[str, ProcessRef] = {}

    def check(self) -> None:
        """Ask the engine for its version and build the bundle. Raises RuntimeUnavailableError."""
        if os.geteuid() != 0:
            message = (
                "the docker runtime reaches its sandboxes by setns, which needs root: run the worker as root"
            )
            raise RuntimeUnavailableError(message)
        try:
            with self._engine_call(Deadline(_ENGINE_TIMEOUT_SECONDS)) as engine:
                engine.ping()
        except (DaemonError, CreateTimeoutError) as error:
            raise RuntimeUnavailableError(f"{error}: start the Docker engine, or set base_url") from error
        self._prepare()

    def rules(self) -> ContainerRules:
        """Give the guards of all containers. Raises RuntimeUnavailableError on an architecture without a list."""
        table = native_table(platform.machine())
        if table is None:
            raise RuntimeUnavailableError(f"there is no system call list for {platform.machine()}")
        return ContainerRules(
            seccomp=seccomp_profile(table),
            default_user=None if self._config.user is None else (self._config.user, self._config.user),
            is_root_writable=self._config.writable_root,
            oci_runtime=self._config.oci_runtime,
        )

    def create(
        self, spec: SandboxSpec, *, timeout_seconds: float, on_progress: OnProgress | None = None
    ) -> SandboxHandle:
        """Create and start a container; see `Runtime.create`. The first call also builds the bundle."""
        if spec.entrypoint is not None:
            raise NotSupportedError(
                "entrypoint: the docker runtime starts none beside execd; run a command instead"
            )
        refuse_gpus(spec, self.name)
        refuse_fields(
            spec, self.name, "image_auth", "pull", "volumes", "oci_runtime", "is_writable", "hostname"
        )
        refuse_foreign_platform(spec, self.name)
        if on_progress is not None:
            on_progress("starting the container")
        bundle = self._prepare()
        deadline = Deadline(timeout_seconds)
        rules = self.rules()
        image = self._look_up(spec, deadline)
        settings = container_settings(spec, image, rules, bundle, token=self._tokens.of(spec.name))
        handle, is_new = self._create_container(spec, settings, deadline)
        if not is_new:
            return handle
        try:
            self._start(handle, deadline)
            self._refuse_foreign_execd(handle, bundle.path)
            self._await_execd(handle, deadline)
            self._refuse_root(handle, image)
        except BaseException:
            self.remove(handle)
            raise
        return handle

    def executions(self, handle: SandboxHandle) -> HttpExecutionClient:
        """Give a client for execd of this sandbox."""
        return HttpExecutionClient(
            lambda: self.connect(handle, EXECD_PORT, timeout_seconds=_CONNECT_TIMEOUT_SECONDS),
            self._tokens.of(handle.name),
        )

    def connect(self, handle: SandboxHandle, port: int, *, timeout_seconds: float) -> socket.socket:
        """Open a stream to a port inside."""
        process = self._process(handle)
        if process is None:
            raise ExecdUnreachableError(f"sandbox {handle.name} is gone")
        return connect_in_namespace(process, port, timeout_seconds=timeout_seconds)

    def stats(self, handle: SandboxHandle) -> SandboxStats:
        """Read use while it runs, and whether memory ran out after it ended."""
        process = self._process(handle)
        if process is not None:
            stats = cgroup_of(process.pid).stats()
            if process.is_alive:
                return stats
        state = self._inspect(handle).get("State", {})
        return SandboxStats(oom_kills=int(bool(state["OOMKilled"]))) if state else SandboxStats()

    def state(self, handle: SandboxHandle) -> SandboxState:
        """Ask the engine; see `Runtime.state`."""
        state = self._inspect(handle).get("State")
        if state is None:
            return SandboxState("gone")
        match state["Status"]:
            case "created" | "restarting":
                return SandboxState("starting")
            case "running" | "paused" as phase:
                return SandboxState(phase)
        return SandboxState("ended", exit_code=state["ExitCode"], message=state["Error"])

    def remove(self, handle: SandboxHandle) -> None:
        """Kill and remove the container; see `Runtime.remove`."""
        self._processes.pop(handle.ref, None)
        deadline = Deadline(_ENGINE_TIMEOUT_SECONDS)
        while True:
            try:
                with self._engine_call(deadline) as engine:
                    engine.remove_container(handle.ref, force=True, v=True)
            except NotFound:
                return
            except APIError as error:
                # Somebody else is removing it: gone is what we wait for.
                if error.status_code != 409 or deadline.is_over:
                    raise daemon_error(f"container {handle.name} could not be removed", error) from error
                threading.Event().wait(_READY_POLL_SECONDS)
            else:
                return

    def list(self) -> list[SandboxHandle]:
        """All containers with our label, running or not."""
        with self._engine_call(Deadline(_ENGINE_TIMEOUT_SECONDS)) as engine:
            found = engine.containers(all=True, filters={"label": [SANDBOX_LABEL]})
        return [self._handle(entry["Id"], entry["Labels"]) for entry in found]

    def find(self, name: str) -> SandboxHandle | None:
        """Ask for the one container of this name; see `Runtime.find`."""
        try:
            with self._engine_call(Deadline(_ENGINE_TIMEOUT_SECONDS)) as engine:
                facts = engine.inspect_container(name)
        except NotFound:
            return None
        labels = facts["Config"]["Labels"] or {}
        return self._handle(facts["Id"], labels) if labels.get(SANDBOX_LABEL) == name else None

    def access_token(self, handle: SandboxHandle) -> str:
        """Give the token that the container got in its environment."""
        return self._tokens.of(handle.name)

    def close(self) -> None:
        """Drop the connections to the engine."""
        with self._lock:
            if self._engine is not None:
                self._engine.close()
                self._engine = None

    def _prepare(self) -> Bundle:
        with self._lock:
            if self._bundle is None:
                self._bundle = ensure_bundle(self._config.bundle_dir.absolute())
            return self._bundle

    def _look_up(self, spec: SandboxSpec, deadline: Deadline) -> ContainerImage:
        try:
            with self._engine_call(deadline) as engine:
                return self._images.look_up(engine, spec.image, spec.workdir, pull=self._config.pull)
        except APIError as error:
            raise daemon_error(f"image {spec.image!r} could not be looked at", error) from error

    def _create_container(
        self, spec: SandboxSpec, settings: dict[str, Any], deadline: Deadline
    ) -> tuple[SandboxHandle, bool]:
        """Create the container, or find the one that has the name: (handle, whether it is new)."""
        while True:
            try:
                with self._engine_call(deadline) as engine:
                    made = engine.create(settings, spec.name)
                return self._handle(made, settings["Labels"]), True
            except APIError as error:
                if error.status_code == 400:
                    raise BadImageError(
                        f"image {spec.image!r} makes no container: {error.explanation}"
                    ) from error
                if error.status_code != 409:
                    raise daemon_error(f"container {spec.name} could not be created", error) from error
            existing = self._adopt(spec.name, deadline)
            if existing is not None:
                return existing, False

    def _adopt(self, name: str, deadline: Deadline) -> SandboxHandle | None:
        """Take over a container of this name that answers; remove one that does not run."""
        try:
            with self._engine_call(deadline) as engine:
                facts = engine.inspect_container(name)
        except NotFound:
            return None
        labels = facts["Config"]["Labels"] or {}
        if labels.get(SANDBOX_LABEL) != name:
            raise DaemonError(f"a container of somebody else is called {name}")
        if f"{TOKEN_VARIABLE}={self._tokens.of(name)}" not in (facts["Config"]["Env"] or ()):
            raise DaemonError(f"container {name} was made by another node: its execd does not know this one")
        handle = self._handle(facts["Id"], labels)
        status = facts["State"]["Status"]
        if status == "created" and not deadline.is_over:
            # Between create and start of another worker, or left there by one that died: starting twice is harmless.
            self._start(handle, deadline)
        elif status != "running":
            self.remove(handle)
            return None
        # Who made it may have ended before it looked; with an older bundle, if there is a newer one by now.
        self._refuse_foreign_execd(handle, Path(facts["HostConfig"]["Binds"][0].rsplit(":", 2)[0]))
        self._await_execd(handle, deadline)
        return handle

    def _start(self, handle: SandboxHandle, deadline: Deadline) -> None:
        try:
            with self._engine_call(deadline) as engine:
                engine.start(handle.ref)
        except APIError as error:
            said = str(error.explanation)
            if any(text in said for text in _IMAGE_FAULTS):
                raise BadImageError(f"the image of {handle.name} cannot be started: {said}") from error
            raise daemon_error(f"container {handle.name} could not be started", error) from error

    def _await_execd(self, handle: SandboxHandle, deadline: Deadline) -> None:
        """Ping until execd answers: the engine says "started" before the program listens."""
        while True:
            state = self._inspect(handle, deadline).get("State", {})
            if not state.get("Running"):
                raise DaemonError(f"container {handle.name} ended at once: {self._last_words(handle, state)}")
            until_next_look = Deadline(min(0.25, deadline.remaining()))
            while not until_next_look.is_over:
                client = HttpExecutionClient(
                    lambda: self.connect(
                        handle, EXECD_PORT, timeout_seconds=max(0.001, deadline.remaining())
                    ),
                    self._tokens.of(handle.name),
                    silence_seconds=max(0.001, deadline.remaining()),
                )
                with suppress(ExecdUnreachableError):
                    client.ping()
                    return
                threading.Event().wait(_READY_POLL_SECONDS)
            if deadline.is_over:
                raise CreateTimeoutError(f"sandbox {handle.name} was not ready within {deadline.seconds:g} s")

    def _refuse_foreign_execd(self, handle: SandboxHandle, bundle: Path) -> None:
        """Check that what runs is of our bundle, all of it: links of an image lead mounts where it likes."""
        process = self._process(handle)
        if process is None:
            return
        root = Path(f"/proc/{process.pid}/root")
        places = {line.split()[4] for line in _read_text(root.parent / "mountinfo").splitlines()}
        is_covered = any(place.startswith(f"{BUNDLE_MOUNT}/") for place in places)
        is_ours = _identity(root / BUNDLE_MOUNT[1:]) == _identity(bundle)
        if (is_covered or not is_ours) and process.is_alive:
            raise BadImageError(f"the image has something else at {BUNDLE_MOUNT}, which is execd's place")

    def _refuse_root(self, handle: SandboxHandle, image: ContainerImage) -> None:
        """Check the user that came out: an image may give any name the number 0."""
        process = self._process(handle)
        if process is not None and process.user_ids is not None and 0 in process.user_ids:
            raise BadImageError(f"user {image.user!r} of the image is root: give it a user that is not")

    def _last_words(self, handle: SandboxHandle, state: dict[str, Any]) -> str:
        with suppress(DockerException), self._engine_call(Deadline(_ENGINE_TIMEOUT_SECONDS)) as engine:
            said = engine.logs(handle.ref, tail=20)[-_LOG_BYTES:].decode("utf-8", "replace").strip()
            return said or f"exit status {state.get('ExitCode')}, no message"
        return "no message"

    def _process(self, handle: SandboxHandle) -> ProcessRef | None:
        """Give process 1 of the container on this host; None once it has ended."""
        known = self._processes.get(handle.ref)
        if known is None:
            pid = self._inspect(handle).get("State", {}).get("Pid") or 0
            known = ProcessRef.of(pid) if pid else None
            if known is None:
                return None
            if handle.ref not in _read_text(Path(f"/proc/{pid}/cgroup")) and known.is_alive:
                message = "the Docker engine is not on this host: use one that is, its containers are reached by setns"
                raise RuntimeUnavailableError(message)
            self._processes[handle.ref] = known
        return known if known.is_alive else None

    def _inspect(self, handle: SandboxHandle, deadline: Deadline | None = None) -> dict[str, Any]:
        """Ask for the container; an empty answer once it is gone."""
        try:
            with self._engine_call(deadline or Deadline(_ENGINE_TIMEOUT_SECONDS)) as engine:
                facts: dict[str, Any] = engine.inspect_container(handle.ref)
                return facts
        except NotFound:
            return {}

    def _handle(self, container_id: str, labels: dict[str, str]) -> SandboxHandle:
        return SandboxHandle(self.name, labels[SANDBOX_LABEL], container_id, labels_of(labels))

    @contextmanager
    def _engine_call(self, deadline: Deadline) -> Iterator[Engine]:
        """Give the engine for some calls. APIError passes; a silent or absent engine becomes an error of ours."""
        try:
            with self._lock:
                if self._engine is None:
                    self._engine = Engine(self._config.base_url)
                engine = self._engine
            with engine.until(deadline):
                yield engine
        except APIError:  # also one of requests' exceptions
            raise
        except requests.exceptions.Timeout as error:
            raise CreateTimeoutError(
                f"the Docker engine did not answer within {deadline.seconds:g} s"
            ) from error
        except (requests.exceptions.RequestException, DockerException) as error:
            raise DaemonError(f"the Docker engine does not answer: {error}") from error


_IMAGE_FAULTS = ("exec format error", "no such file or directory", "not a directory", "unable to find user")
"""Words of the engine that blame the image's content."""


def _identity(path: Path) -> tuple[int, int] | None:
    """Give what tells a file from all others, without following a link; None if it is not there."""
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _read_text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
