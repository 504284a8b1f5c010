"""The start of one container, from the engine's create call to the first answer of execd."""

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from docker.errors import APIError, DockerException, NotFound

from core.errors import (
    BadImageError,
    CreateTimeoutError,
    DaemonError,
    ExecdUnreachableError,
    ImageNotFoundError,
    RunFailure,
    SpecInvalidError,
)
from runtimes.base import EXECD_PORT, SandboxHandle, SandboxSpec
from runtimes.bundle import BUNDLE_MOUNT, EXECD_NAME, TOKEN_VARIABLE, Bundle
from runtimes.container_spec import (
    DISK_LABEL,
    SANDBOX_LABEL,
    ContainerImage,
    ContainerRules,
    container_settings,
    folders_to_make,
    user_of,
)
from runtimes.container_volumes import PreparedMounts, prepared_mounts
from runtimes.deadline import Deadline
from runtimes.engine_errors import daemon_error, start_error
from runtimes.engine_link import EngineLink
from runtimes.execd_client import HttpExecutionClient
from runtimes.netns import connect_in_namespace
from runtimes.oci_runtimes import OciFamily
from runtimes.processes import ProcessRef

__all__ = ["ContainerOwner", "ContainerStart", "ContainerView"]

_DYING_SECONDS = 0.1
_READY_POLL_SECONDS = 0.005
_FIRST_LOOK_SECONDS = 0.001
_ROOM_BYTES = 64 << 20
"""In less memory execd may come to its end while it loads: such a start is told to have failed."""
_LOG_BYTES = 2000
_CLEAN_UP_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class ContainerView:
    """Process 1 of a container as this host has it: with `family.shares_kernel` execd, else a machine around it."""

    process: ProcessRef
    family: OciFamily


class ContainerOwner(Protocol):
    """What a start needs of its runtime."""

    def inspect(self, handle: SandboxHandle, deadline: Deadline | None = None) -> dict[str, Any]:
        """Ask for the container; an empty answer once it is gone."""

    def look_at(self, handle: SandboxHandle) -> ContainerView | None:
        """Give process 1 of the container; None once it has ended."""

    def note_start(self, handle: SandboxHandle, settings: Mapping[str, Any]) -> None:
        """Learn what there is to see of a container that has just started. settings: with which it was made."""

    def handle_of(self, container_id: str, labels: Mapping[str, str]) -> SandboxHandle:
        """Give the handle of a container."""

    def remove(self, handle: SandboxHandle) -> None:
        """Kill and remove it."""


@dataclass(slots=True)
class ContainerStart:
    """One start. Used once. token: what execd will demand of its clients.

    disk_bytes: the limit that has to be watched from outside, if there is one; known after `run`.
    """

    spec: SandboxSpec
    image: ContainerImage
    rules: ContainerRules
    bundle: Bundle
    token: str
    deadline: Deadline
    link: EngineLink
    owner: ContainerOwner
    disk_bytes: str | None = None

    def run(self, *, allowed_paths: Sequence[str], allowed_volumes: Sequence[str]) -> SandboxHandle:
        """Make, start and await it, or take over the one of this name that runs; nothing is left if it fails."""
        spec = self.spec
        with (
            self.link.call(self.deadline) as engine,
            prepared_mounts(
                engine,
                spec,
                user_of(spec, self.image, self.rules),
                allowed_paths=allowed_paths,
                allowed_volumes=allowed_volumes,
            ) as mounts,
        ):
            return self._run(mounts)

    def _run(self, mounts: PreparedMounts) -> SandboxHandle:
        settings = container_settings(
            self.spec,
            self.image,
            self.rules,
            self.bundle,
            token=self.token,
            mounts=mounts.settings,
            removed_volumes=mounts.removed_with_it,
        )
        self.disk_bytes = settings["Labels"].get(DISK_LABEL)
        handle, is_new = self._create(settings)
        if not is_new:
            return handle
        try:
            self._make_folders(handle)
            self._start(handle)
            self.owner.note_start(handle, settings)
            self._refuse_foreign_execd(handle, self.bundle.path)
            self._await_execd(handle)
            self._refuse_root(handle)
            self._check_mounts(handle, mounts)
        except BaseException:
            # If the engine is away, the container is found by its label later; what went wrong first is told.
            with suppress(RunFailure):
                self.owner.remove(handle)
            raise
        return handle

    def _create(self, settings: dict[str, Any]) -> tuple[SandboxHandle, bool]:
        """Create the container, or find the one that has the name: (handle, whether it is new)."""
        name = self.spec.name
        while True:
            try:
                with self.link.call(self.deadline) as engine:
                    made = engine.create(settings, name)
                return self.owner.handle_of(made, settings["Labels"]), True
            except APIError as error:
                self._raise_unless_taken(error)
            except RunFailure:
                # The answer is lost: the engine may have made it, or be about to.
                self._clear_name()
                raise
            existing = self._adopt()
            if existing is not None:
                return existing, False

    def _raise_unless_taken(self, error: APIError) -> None:
        """Translate all refusals of a create but that the name is taken."""
        image = self.spec.image
        if error.status_code == 404:
            message = f"image {image!r} was removed from the engine while the sandbox was about to start"
            raise ImageNotFoundError(message) from error
        if error.status_code == 400 and self.spec.volumes and "mount" in str(error.explanation).lower():
            message = f"volumes: {self.spec.name} cannot have them: {error.explanation}"
            raise SpecInvalidError(message, field="volumes") from error
        if error.status_code == 400:
            raise BadImageError(f"image {image!r} makes no container: {error.explanation}") from error
        if error.status_code != 409:
            raise daemon_error(f"container {self.spec.name} could not be created", error) from error

    def _clear_name(self) -> None:
        """Remove a container of this name that nobody knows of, if the engine lets us."""
        deadline = Deadline(_CLEAN_UP_SECONDS)
        with suppress(RunFailure, APIError), self.link.call(deadline) as engine:
            facts = engine.inspect_container(self.spec.name)
            labels = facts["Config"]["Labels"] or {}
            if labels.get(SANDBOX_LABEL) == self.spec.name and self._is_ours(facts):
                engine.remove_container(facts["Id"], force=True, v=True)

    def _is_ours(self, facts: Mapping[str, Any]) -> bool:
        """Say whether this node made a container."""
        return f"{TOKEN_VARIABLE}={self.token}" in (facts["Config"]["Env"] or ())

    def _adopt(self) -> SandboxHandle | None:
        """Take over a container of this name that answers; remove one that does not run."""
        name = self.spec.name
        try:
            with self.link.call(self.deadline) as engine:
                facts = engine.inspect_container(name)
        except NotFound:
            return None
        labels = facts["Config"]["Labels"] or {}
        if labels.get(SANDBOX_LABEL) != name:
            raise DaemonError(f"a container of somebody else is called {name}")
        if not self._is_ours(facts):
            raise DaemonError(f"container {name} was made by another node: its execd does not know this one")
        handle = self.owner.handle_of(facts["Id"], labels)
        status = facts["State"]["Status"]
        if status == "created" and not self.deadline.is_over:
            # Between create and start of another worker, or left there by one that died: starting twice is harmless.
            self._start(handle)
        elif status != "running":
            self.owner.remove(handle)
            return None
        # Who made it may have ended before it looked; with an older bundle, if there is a newer one by now.
        self._refuse_foreign_execd(handle, Path(facts["HostConfig"]["Binds"][0].rsplit(":", 2)[0]))
        self._await_answer(handle)
        return handle

    def _make_folders(self, handle: SandboxHandle) -> None:
        folders = folders_to_make(self.spec, self.image, self.rules)
        if not folders:
            return
        try:
            with self.link.call(self.deadline) as engine:
                engine.put_folders(handle.ref, folders)
        except APIError as error:
            raise daemon_error(f"folders of {handle.name} could not be made", error) from error

    def _start(self, handle: SandboxHandle) -> None:
        try:
            with self.link.call(self.deadline) as engine:
                engine.start(handle.ref)
        except APIError as error:
            raise start_error(handle.name, self.spec, error) from error

    def _await_execd(self, handle: SandboxHandle) -> None:
        """Return when it listens; where that cannot be seen, or may not be for long, when it has answered."""
        view = self.owner.look_at(handle)
        is_seen = view is not None and view.family.shares_kernel
        if is_seen and self.spec.limits.memory_bytes >= _ROOM_BYTES and self._has_begun(handle):
            return
        self._await_answer(handle)

    def _has_begun(self, handle: SandboxHandle) -> bool:
        """Wait until execd listens; False if it ends, or the time is over.

        It takes its name when it does, and loads the rest while others go on; requests wait for that. Only it can give
        itself a name, and that it is ours was looked at before.
        """
        pause = _FIRST_LOOK_SECONDS
        while not self.deadline.is_over:
            view = self.owner.look_at(handle)
            if view is None:
                return False
            if _read_text(Path(f"/proc/{view.process.pid}/comm")) == f"{EXECD_NAME}\n":
                return True
            threading.Event().wait(pause)
            pause = min(pause * 1.25, _READY_POLL_SECONDS)
        return False

    def _await_answer(self, handle: SandboxHandle) -> None:
        """Ping until execd answers: the engine says "started" before the program listens."""
        deadline = self.deadline
        while True:
            self._refuse_ended(handle)
            client = HttpExecutionClient(
                lambda: self._connect(handle),
                self.token,
                silence_seconds=max(0.001, deadline.remaining()),
            )
            with suppress(ExecdUnreachableError):
                client.ping()
                return
            if deadline.is_over:
                raise CreateTimeoutError(f"sandbox {handle.name} was not ready within {deadline.seconds:g} s")
            threading.Event().wait(_READY_POLL_SECONDS)

    def _refuse_ended(self, handle: SandboxHandle) -> None:
        """Ask the engine only about one of which no process is seen. Raises DaemonError with its last words."""
        if self.owner.look_at(handle) is not None:
            return
        state = self.owner.inspect(handle, self.deadline).get("State", {})
        if not state.get("Running"):
            raise DaemonError(f"container {handle.name} ended at once: {self._last_words(handle, state)}")

    def _connect(self, handle: SandboxHandle) -> Any:
        view = self.owner.look_at(handle)
        if view is None:
            raise ExecdUnreachableError(f"sandbox {handle.name} is gone")
        seconds = max(0.001, self.deadline.remaining())
        return connect_in_namespace(view.process, EXECD_PORT, timeout_seconds=seconds)

    def _refuse_foreign_execd(self, handle: SandboxHandle, bundle: Path) -> None:
        """Check that what runs is of our bundle, all of it: links of an image lead mounts where it likes."""
        view = self.owner.look_at(handle)
        if view is None or not view.family.shares_kernel:
            return
        root = Path(f"/proc/{view.process.pid}/root")
        places = {line.split()[4] for line in _read_text(root.parent / "mountinfo").splitlines()}
        is_covered = any(place.startswith(f"{BUNDLE_MOUNT}/") for place in places)
        is_ours = _identity(root / BUNDLE_MOUNT[1:]) == _identity(bundle)
        # One that is killed at this moment shows nothing of its files any more, and is told as what it is.
        if (is_covered or not is_ours) and _lives_on(view.process):
            raise BadImageError(f"the image has something else at {BUNDLE_MOUNT}, which is execd's place")

    def _refuse_root(self, handle: SandboxHandle) -> None:
        """Check the user that came out: an image may give any name the number 0."""
        view = self.owner.look_at(handle)
        if self.spec.is_writable or view is None or not view.family.shares_kernel:
            return
        if view.process.user_ids is not None and 0 in view.process.user_ids:
            image = self.image
            raise BadImageError(f"user {image.user!r} of the image is root: give it a user that is not")

    def _check_mounts(self, handle: SandboxHandle, mounts: PreparedMounts) -> None:
        view = self.owner.look_at(handle)
        if view is not None and view.family.shares_kernel:
            with suppress(FileNotFoundError, ProcessLookupError):
                mounts.check(view.process.pid)

    def _last_words(self, handle: SandboxHandle, state: Mapping[str, Any]) -> str:
        with suppress(DockerException, RunFailure), self.link.call() as engine:
            said = engine.logs(handle.ref, tail=20)[-_LOG_BYTES:].decode("utf-8", "replace").strip()
            return said or f"exit status {state.get('ExitCode')}, no message"
        return "no message"


def _identity(path: Path) -> tuple[int, int] | None:
    """Give what tells a file from all others, without following a link; None if it is not there."""
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _lives_on(process: ProcessRef) -> bool:
    """Whether a process is not about to end."""
    deadline = Deadline(_DYING_SECONDS)
    while process.is_alive:
        if deadline.is_over:
            return True
        threading.Event().wait(_READY_POLL_SECONDS)
    return False


def _read_text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
