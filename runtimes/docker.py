"""The `docker` runtime: one container per sandbox, execd as its process 1, no network, no `docker exec`."""

import functools
import os
import platform
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from docker.errors import APIError, NotFound
from pydantic import BaseModel, ConfigDict, Field

from core.errors import (
    CreateTimeoutError,
    DaemonError,
    ExecdUnreachableError,
    NotSupportedError,
    RunFailure,
    RuntimeUnavailableError,
    SpecInvalidError,
)
from runtimes.base import (
    ENTRYPOINT_KEY,
    EXECD_PORT,
    Capabilities,
    Command,
    ImageAuth,
    OnProgress,
    PullPolicy,
    Runtime,
    SandboxHandle,
    SandboxSpec,
    SandboxState,
    SandboxStats,
    refuse_foreign_platform,
)
from runtimes.bundle import Bundle, ensure_bundle
from runtimes.cgroups import cgroup_of
from runtimes.container_images import ImageCatalogue
from runtimes.container_pulls import PullProgress, Pulls
from runtimes.container_records import ContainerRecord, ContainerRecords, is_of_container, upper_folder
from runtimes.container_snapshots import (
    SNAPSHOT_PREFIX,
    collect_snapshots,
    list_snapshots,
    remove_snapshot,
    save_snapshot,
)
from runtimes.container_spec import (
    DISK_LABEL,
    SANDBOX_LABEL,
    VOLUMES_LABEL,
    ContainerImage,
    ContainerRules,
    check_mount_paths,
    folders_to_look_for,
    labels_of,
)
from runtimes.container_start import ContainerStart, ContainerView
from runtimes.container_volumes import collect_volumes, remove_volumes
from runtimes.deadline import Deadline
from runtimes.disk_watch import DiskWatch
from runtimes.end_notes import EndNotes
from runtimes.engine import PullRefusedError
from runtimes.engine_errors import daemon_error, pull_error
from runtimes.engine_facts import EngineFacts
from runtimes.engine_link import ENGINE_TIMEOUT_SECONDS, EngineLink
from runtimes.engine_process import open_files_ceiling
from runtimes.execd_client import HttpExecutionClient
from runtimes.local.syscalls import native_table
from runtimes.netns import connect_in_namespace
from runtimes.oci_runtimes import OciFamily, check_oci_runtime, family_of
from runtimes.processes import ProcessRef
from runtimes.sandbox_tokens import SandboxTokens
from runtimes.seccomp_profile import seccomp_profile
from runtimes.turns import Turns

__all__ = ["DockerConfig", "DockerRuntime"]

_CONNECT_TIMEOUT_SECONDS = 5.0
_BUSY_POLL_SECONDS = 0.005
_STALE_SECONDS = 600.0
_APPARMOR_PROFILE = "docker-default"
_KILLED = 137


class DockerConfig(BaseModel):
    """What a node says about its `docker` runtime.

    base_url: the engine, e.g. unix:///run/docker.sock; None: DOCKER_HOST or the usual socket. It must be on this host.
    bundle_dir: as the engine sees it, too. state_dir: the secret from which execd's tokens come; made with mode 0700.
    user: in the place of an image's root, for all sealed sandboxes; None: another one for each.
    pull: fetch missing images. writable_root: let the root file system be written also where a sandbox did not ask.
    oci_runtime: a name from the engine's list, e.g. runsc, for sandboxes that name none.
    allowed_host_paths: folders of this host that sandboxes may ask for. allowed_volumes: patterns of names of volumes
    that were not made by sandboxes, which they may ask for all the same.
    parallel_creates: containers made at a time; None: two per processor.
    sandbox_env: environment of all sandboxes.
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
    allowed_host_paths: tuple[str, ...] = ()
    allowed_volumes: tuple[str, ...] = ()
    parallel_creates: int | None = Field(default=None, ge=1, le=1024)
    sandbox_env: Mapping[str, str] = Field(default_factory=dict)


class DockerRuntime(Runtime):
    """Containers of a Docker engine on this host. Needs root, to reach the sandboxes' own networks.

    A sealed sandbox has a read-only root file system; /tmp and the job's workdir are in memory, share disk_bytes, and
    count against its memory limit as well. A workdir that the image has is shown as it is there. A writable one has the
    image's user and a root file system on the engine's disk. Containers outlive this process.
    """

    name = "docker"
    outlives = True

    def __init__(self, config: DockerConfig) -> None:
        """Touch nothing yet: the engine is asked, and the bundle built, on first use."""
        self._config = config
        self._lock = threading.Lock()
        self._link = EngineLink(config.base_url)
        self._facts: EngineFacts | None = None
        self._open_files_limit: int | None = None
        self._bundle: Bundle | None = None
        self._images = ImageCatalogue()
        self._pulls = Pulls(self._fetch)
        self._turns = Turns(config.parallel_creates or 2 * (os.cpu_count() or 1))
        self._tokens = SandboxTokens(config.state_dir)
        self._known: dict[str, ContainerRecord] = {}
        self._records = ContainerRecords(config.state_dir / "running")
        self._creating: set[str] = set()
        self._ends = EndNotes(config.state_dir / "ended")
        self._disks: DiskWatch | None = None

    def check(self) -> None:
        """Ask the engine for its version and build the bundle. Raises RuntimeUnavailableError."""
        if os.geteuid() != 0:
            message = (
                "the docker runtime reaches its sandboxes by setns, which needs root: run the worker as root"
            )
            raise RuntimeUnavailableError(message)
        try:
            facts = self._ask_facts()
        except (DaemonError, APIError) as error:
            raise RuntimeUnavailableError(f"{error}: start the Docker engine, or set base_url") from error
        if self._config.oci_runtime is not None:
            try:
                check_oci_runtime(self._config.oci_runtime, facts.oci_runtimes)
            except SpecInvalidError as error:
                raise RuntimeUnavailableError(error.message) from error
        self._prepare()

    def limitations(self) -> Sequence[str]:
        """Say what the engine of this host does not hold; see `Runtime.limitations`."""
        facts = self._facts or self._ask_facts()
        lines = []
        if not facts.is_remapped:
            lines.append(
                "root of a writable container is root of this host, behind dropped capabilities, no-new-privileges and "
                "seccomp: set `userns-remap` in the engine's daemon.json, or use the OCI runtime runsc"
            )
        if not facts.limits_disk:
            lines.append(
                "the disk of a writable container is looked at every few seconds, and it ends when it has written too "
                "much: put the engine's folder on xfs mounted with pquota for a limit that holds"
            )
        if not facts.has_apparmor:
            lines.append("the engine has no AppArmor here: seccomp and capabilities alone hold containers")
        if not facts.has_seccomp:
            lines.append("the engine has no seccomp: the list of system calls does not hold")
        return lines

    def capabilities(self) -> Capabilities:
        """Ask the engine which OCI runtimes it has: it may have been told of others; see `Runtime.capabilities`."""
        try:
            facts = self._ask_facts()
        except APIError as error:
            raise daemon_error("the engine does not say what it can do", error) from error
        return Capabilities(oci_runtimes=facts.oci_runtimes, host_paths=self._config.allowed_host_paths)

    def rules(self) -> ContainerRules:
        """Give the guards of all containers. Raises RuntimeUnavailableError on an architecture without a list."""
        seccomp = _native_seccomp_profile()
        if seccomp is None:
            raise RuntimeUnavailableError(f"there is no system call list for {platform.machine()}")
        facts = self._facts or self._ask_facts()
        return ContainerRules(
            seccomp=seccomp,
            default_user=None if self._config.user is None else (self._config.user, self._config.user),
            is_root_writable=self._config.writable_root,
            oci_runtime=self._config.oci_runtime,
            apparmor=_APPARMOR_PROFILE if facts.has_apparmor else None,
            is_remapped=facts.is_remapped,
            limits_disk=facts.limits_disk,
            open_files_limit=self._open_files_limit,
            environment=self._config.sandbox_env,
        )

    def create(
        self, spec: SandboxSpec, *, timeout_seconds: float, on_progress: OnProgress | None = None
    ) -> SandboxHandle:
        """Create and start a container; see `Runtime.create`. The first call also builds the bundle."""
        say = on_progress or _say_nothing
        refuse_foreign_platform(spec, self.name)
        check_mount_paths(spec.volumes)
        bundle = self._prepare()
        deadline = Deadline(timeout_seconds)
        rules = replace(self.rules(), family=self._family(spec))
        image = self._look_up(spec, rules, deadline, say)
        with self._turns.taken(f"sandbox {spec.name}", deadline, lambda before: say(_in_line(before))):
            deadline = deadline.within(spec.ready_seconds)
            self._creating.add(spec.name)
            try:
                say("starting the container")
                start = ContainerStart(
                    spec=spec,
                    image=image,
                    rules=rules,
                    bundle=bundle,
                    token=self._tokens.of(spec.name),
                    deadline=deadline,
                    link=self._link,
                    owner=self,
                )
                handle = start.run(
                    allowed_paths=self._config.allowed_host_paths,
                    allowed_volumes=self._config.allowed_volumes,
                )
            finally:
                self._creating.discard(spec.name)
        self._start_entrypoint(handle, spec, image, deadline)
        self._watch_disk(handle, start.disk_bytes, deadline)
        return handle

    def executions(self, handle: SandboxHandle) -> HttpExecutionClient:
        """Give a client for execd of this sandbox."""
        return HttpExecutionClient(
            lambda: self.connect(handle, EXECD_PORT, timeout_seconds=_CONNECT_TIMEOUT_SECONDS),
            self._tokens.of(handle.name),
        )

    def connect(self, handle: SandboxHandle, port: int, *, timeout_seconds: float) -> socket.socket:
        """Open a stream to a port inside."""
        known = self._look_at(handle)
        if known is None:
            raise ExecdUnreachableError(f"sandbox {handle.name} is gone")
        return connect_in_namespace(known.process, port, timeout_seconds=timeout_seconds)

    def stats(self, handle: SandboxHandle) -> SandboxStats:
        """Read use while it runs, and whether memory ran out after it ended."""
        known = self._look_at(handle)
        if known is not None:
            stats = self._live_stats(handle, known.process)
            if known.process.is_alive:
                return stats
        state = self.inspect(handle).get("State", {})
        return SandboxStats(oom_kills=int(bool(state["OOMKilled"]))) if state else SandboxStats()

    def state(self, handle: SandboxHandle) -> SandboxState:
        """Say how it is now; without the engine as long as it runs. See `Runtime.state`."""
        known = self._known.get(handle.ref)
        if known is not None and family_of(known.oci_runtime).shares_kernel and known.process.is_alive:
            return SandboxState("paused" if cgroup_of(known.process.pid).is_frozen else "running")
        state = self.inspect(handle).get("State")
        if state is None:
            return SandboxState("gone")
        match state["Status"]:
            case "created" | "restarting":
                return SandboxState("starting")
            case "running" | "paused" as phase:
                return SandboxState(phase)
        return SandboxState("ended", exit_code=state["ExitCode"], message=self._why_ended(handle, state))

    def pause(self, handle: SandboxHandle) -> None:
        """Stop every process where it stands; see `Runtime.pause`."""
        self._switch(handle, is_paused=True)

    def resume(self, handle: SandboxHandle) -> None:
        """Let a paused sandbox go on; see `Runtime.resume`."""
        self._switch(handle, is_paused=False)

    def snapshot(self, handle: SandboxHandle, name: str) -> None:
        """Keep what its root file system has, as a layer of the engine; see `Runtime.snapshot`.

        What is in memory or in volumes is not part of it.
        """
        with self._link.call(Deadline(10 * ENGINE_TIMEOUT_SECONDS)) as engine:
            save_snapshot(engine, handle.ref, name)

    def snapshots(self) -> Sequence[str]:
        """Names of all snapshots of this engine."""
        with self._link.call() as engine:
            return list_snapshots(engine)

    def remove_snapshot(self, name: str) -> None:
        """Delete a snapshot; see `Runtime.remove_snapshot`."""
        try:
            with self._link.call() as engine:
                remove_snapshot(engine, name)
        except APIError as error:
            raise daemon_error(f"snapshot {name!r} could not be removed", error) from error

    def remove(self, handle: SandboxHandle) -> None:
        """Kill and remove the container, and the volumes that go with it; see `Runtime.remove`."""
        known = self._known.pop(handle.ref, None)
        if self._disks is not None:
            self._disks.drop(handle.ref)
        volumes: Sequence[str] = known.volumes if known else _volumes_in(self.inspect(handle))
        deadline = Deadline(ENGINE_TIMEOUT_SECONDS)
        while True:
            try:
                with self._link.call() as engine:
                    engine.remove_container(handle.ref, force=True, v=True)
            except NotFound:
                break
            except APIError as error:
                # Somebody else is removing it: gone is what we wait for.
                if error.status_code != 409 or deadline.is_over:
                    raise daemon_error(f"container {handle.name} could not be removed", error) from error
                threading.Event().wait(_BUSY_POLL_SECONDS)
            else:
                break
        if volumes:
            with self._link.call() as engine:
                remove_volumes(engine, volumes)
        self._ends.forget(handle.ref)
        self._records.drop(handle.name)

    def list(self) -> list[SandboxHandle]:
        """All containers with our label, running or not."""
        with self._link.call() as engine:
            found = engine.containers(all=True, filters={"label": [SANDBOX_LABEL]})
        handles = [self.handle_of(entry["Id"], entry["Labels"]) for entry in found]
        for handle, entry in zip(handles, found, strict=True):
            limit_bytes = entry["Labels"].get(DISK_LABEL)
            if limit_bytes and entry["State"] in ("running", "paused") and self._is_of_this_node(handle):
                with suppress(RunFailure):
                    self._watch_disk(handle, limit_bytes)
        return handles

    def find(self, name: str) -> SandboxHandle | None:
        """Look for the one container of this name; see `Runtime.find`. One that is known to run needs no engine."""
        record = self._records.find(name)
        if record is not None:
            return SandboxHandle(self.name, name, record.ref, dict(record.labels))
        try:
            with self._link.call() as engine:
                facts = engine.inspect_container(name)
        except NotFound:
            return None
        labels = facts["Config"]["Labels"] or {}
        return self.handle_of(facts["Id"], labels) if labels.get(SANDBOX_LABEL) == name else None

    def access_token(self, handle: SandboxHandle) -> str:
        """Give the token that the container got in its environment."""
        return self._tokens.of(handle.name)

    def collect(self, node: str, keep: Collection[str]) -> tuple[int, int]:
        """Remove volumes whose sandboxes are gone, and what is left of snapshots; see `Runtime.collect`."""
        creating = set(self._creating)
        names = {handle.name for handle in self.list()} | creating | self._creating | set(keep)
        self._records.sweep(names)
        with self._link.call() as engine:
            removed, left = collect_volumes(engine, node, names)
            left += collect_snapshots(engine, now=time.time())
            left += engine.collect_unstarted(before=time.time() - _STALE_SECONDS)
        return removed, left

    def close(self) -> None:
        """Drop the connections to the engine."""
        if self._disks is not None:
            self._disks.stop()
        self._link.close()

    # What `ContainerStart` needs of the runtime.

    def inspect(self, handle: SandboxHandle, deadline: Deadline | None = None) -> dict[str, Any]:
        """Ask for the container; an empty answer once it is gone."""
        try:
            with self._link.call(deadline) as engine:
                facts: dict[str, Any] = engine.inspect_container(handle.ref)
                return facts
        except NotFound:
            return {}

    def look_at(self, handle: SandboxHandle) -> ContainerView | None:
        """Give process 1 of the container on this host; None once it has ended."""
        known = self._look_at(handle)
        return ContainerView(known.process, family_of(known.oci_runtime)) if known else None

    def note_start(self, handle: SandboxHandle, settings: Mapping[str, Any]) -> None:
        """Learn of a container that has just started what else `look_at` would ask the engine for, as far as is seen.

        settings: with which it was made.
        """
        facts = self._facts or self._ask_facts()
        oci_runtime = settings["HostConfig"].get("Runtime") or facts.default_oci_runtime
        if not family_of(oci_runtime).shares_kernel:
            return
        pid = facts.only_process(handle.ref)
        upper = None if pid is None else upper_folder(pid)
        if pid is not None and (upper is not None or DISK_LABEL not in settings["Labels"]):
            self._remember(handle, pid, oci_runtime, _volumes_in({"Config": settings}), upper)

    def _look_at(self, handle: SandboxHandle) -> ContainerRecord | None:
        known = self._known.get(handle.ref)
        if known is None:
            record = self._records.find(handle.name)
            if record is not None and record.ref == handle.ref:
                known = self._known[handle.ref] = record
        if known is None:
            facts = self.inspect(handle)
            pid = facts.get("State", {}).get("Pid") or 0
            if not pid:
                return None
            known = self._remember(
                handle, pid, facts["HostConfig"].get("Runtime"), _volumes_in(facts), _upper_folder(facts)
            )
        return known if known is not None and known.process.is_alive else None

    def _remember(
        self,
        handle: SandboxHandle,
        pid: int,
        oci_runtime: str | None,
        volumes: Sequence[str],
        upper: str | None,
    ) -> ContainerRecord | None:
        """Keep what was found out of a container, here and for other processes; None if it has ended."""
        process = ProcessRef.of(pid)
        if process is None:
            return None
        if not is_of_container(pid, handle.ref) and process.is_alive:
            message = (
                "the Docker engine is not on this host: use one that is, its containers are reached by setns"
            )
            raise RuntimeUnavailableError(message)
        known = ContainerRecord(
            name=handle.name,
            ref=handle.ref,
            pid=pid,
            started=process.started,
            oci_runtime=oci_runtime,
            labels=dict(handle.labels),
            volumes=tuple(volumes),
            upper=upper,
        )
        self._known[handle.ref] = known
        self._records.put(known)
        return known

    def handle_of(self, container_id: str, labels: Mapping[str, str]) -> SandboxHandle:
        """Give the handle of a container."""
        return SandboxHandle(self.name, labels[SANDBOX_LABEL], container_id, labels_of(labels))

    def _prepare(self) -> Bundle:
        with self._lock:
            if self._bundle is None:
                self._bundle = ensure_bundle(self._config.bundle_dir.absolute())
            return self._bundle

    def _ask_facts(self) -> EngineFacts:
        with self._link.call() as engine:
            self._facts = EngineFacts.of(engine.facts())
        self._open_files_limit = open_files_ceiling(self._config.base_url)
        return self._facts

    def _family(self, spec: SandboxSpec) -> OciFamily:
        """Tell what kind of OCI runtime will start a sandbox. Raises SpecInvalidError if the engine has not got it."""
        name = spec.oci_runtime or self._config.oci_runtime
        if name is not None:
            facts = self._facts or self._ask_facts()
            if name not in facts.oci_runtimes:  # added since we asked
                facts = self._ask_facts()
            check_oci_runtime(name, facts.oci_runtimes)
        return family_of(name)

    def _look_up(
        self, spec: SandboxSpec, rules: ContainerRules, deadline: Deadline, say: OnProgress
    ) -> ContainerImage:
        policy: PullPolicy = spec.pull or ("missing" if self._config.pull else "never")
        facts = None
        if not spec.image.startswith(SNAPSHOT_PREFIX) and policy != "never":
            facts = self._pull(spec, deadline, say, policy)
        folders = folders_to_look_for(spec)
        try:
            with self._link.call(deadline) as engine:
                image = self._images.look_up(
                    engine, spec.image, folders, is_pulled=policy != "never", facts=facts
                )
                if not rules.family.shares_kernel:
                    # With a kernel of its own there is no looking at what was started.
                    self._images.check_bundle_place(engine, image.id)
                return image
        except APIError as error:
            raise daemon_error(f"image {spec.image!r} could not be looked at", error) from error

    def _pull(
        self, spec: SandboxSpec, deadline: Deadline, say: OnProgress, policy: PullPolicy
    ) -> dict[str, Any] | None:
        """Fetch an image; gives what the engine says of one that need not be fetched."""
        if policy == "missing":
            with suppress(APIError), self._link.call(deadline) as engine:
                return engine.image_facts(spec.image)
        if not spec.image:
            return None  # the look-up says what is wrong with it
        say(f"pulling {spec.image}")
        self._pulls.pull(spec.image, spec.image_auth, deadline, say)
        return None

    def _fetch(
        self, image: str, auth: ImageAuth | None, progress: PullProgress, is_left: Callable[[], bool]
    ) -> None:
        credentials = None if auth is None else {"username": auth.username, "password": auth.password}
        # The time is for each wait alone: what ends a pull is that nobody wants it any more.
        with self._link.call(Deadline(_PULL_SILENCE_SECONDS)) as engine:
            try:
                engine.fetch_image(image, credentials, on_line=progress.take, is_left=is_left)
            except PullRefusedError as error:
                raise pull_error(image, str(error)) from error
            except APIError as error:
                raise pull_error(image, str(error.explanation or error)) from error

    def _start_entrypoint(
        self, handle: SandboxHandle, spec: SandboxSpec, image: ContainerImage, deadline: Deadline
    ) -> None:
        """Start what the sandbox is for; once, also if another worker made the container and ended before this."""
        argv = image.entrypoint if spec.entrypoint == "image" else tuple(spec.entrypoint or ())
        if not argv:
            return
        try:
            with closing(self.executions(handle)) as client:
                client.start(Command(argv=argv), key=ENTRYPOINT_KEY)
        except BaseException as error:
            with suppress(RunFailure):
                self.remove(handle)
            if isinstance(error, ExecdUnreachableError) and deadline.is_over:
                raise CreateTimeoutError(
                    f"the entrypoint of {handle.name} was not started in time"
                ) from error
            raise

    def _live_stats(self, handle: SandboxHandle, process: ProcessRef) -> SandboxStats:
        # An OCI runtime that was told to leave control groups alone has the container in somebody else's.
        if handle.ref not in _read_text(Path(f"/proc/{process.pid}/cgroup")):
            return SandboxStats()
        stats = cgroup_of(process.pid).stats()
        watched = None if self._disks is None else self._disks.look_up(handle.ref)
        if watched is None:
            return stats
        use, limit = watched
        return replace(stats, disk_bytes=use.bytes, disk_limit_bytes=limit.bytes)

    def _switch(self, handle: SandboxHandle, *, is_paused: bool) -> None:
        verb = "paused" if is_paused else "resumed"
        try:
            with self._link.call() as engine:
                (engine.pause if is_paused else engine.unpause)(handle.ref)
        except APIError as error:
            state = self.inspect(handle).get("State", {})
            if not state.get("Running"):
                raise ExecdUnreachableError(f"sandbox {handle.name} is gone") from error
            if state.get("Paused") != is_paused:
                raise daemon_error(f"container {handle.name} could not be {verb}", error) from error
        except NotSupportedError as error:
            raise DaemonError(f"container {handle.name} could not be {verb}: {error}") from error

    def _why_ended(self, handle: SandboxHandle, state: Mapping[str, Any]) -> str:
        noted = self._ends.find(handle.ref)
        if noted:
            return noted
        if state["OOMKilled"]:
            return "it used more memory than its limit, and was ended for that"
        if state["ExitCode"] == _KILLED:
            return "its container was killed from outside, or for want of memory"
        return str(state["Error"])

    def _is_of_this_node(self, handle: SandboxHandle) -> bool:
        """Whether somebody here has seen it run. Others on the same engine end theirs themselves, and can say why."""
        record = self._known.get(handle.ref) or self._records.find(handle.name)
        return record is not None and record.ref == handle.ref

    def _watch_disk(
        self, handle: SandboxHandle, limit_bytes: str | int | None, deadline: Deadline | None = None
    ) -> None:
        """Watch what a writable container has written, where the engine does not limit it."""
        if limit_bytes is None or (self._disks is not None and self._disks.look_up(handle.ref) is not None):
            return
        known = self._known.get(handle.ref)
        upper = known.upper if known else _upper_folder(self.inspect(handle, deadline))
        if upper is None:
            return
        with self._lock:
            if self._disks is None:
                root = (self._facts.root if self._facts else None) or Path(upper)
                self._disks = DiskWatch(root, self._end_for_disk)
        self._disks.add(handle.ref, Path(upper), int(limit_bytes))

    def _end_for_disk(self, ref: str, reason: str) -> None:
        self._ends.note(ref, reason)
        with suppress(NotFound, APIError), self._link.call() as engine:
            engine.kill(ref)


_PULL_SILENCE_SECONDS = 120.0
"""A registry that sends nothing for so long is away; a pull as a whole takes what its waiters give it."""


@functools.cache
def _native_seccomp_profile() -> str | None:
    """Give the list of system calls for this architecture, if there is one. Once: it takes as long as a create call."""
    table = native_table(platform.machine())
    return None if table is None else seccomp_profile(table)


def _say_nothing(text: str) -> None:
    del text


def _in_line(before: int) -> str:
    return f"waiting for its turn to start, {before} before it"


def _upper_folder(facts: Mapping[str, Any]) -> str | None:
    """Give the folder with what a container has written, from the engine's description of it; None if it has none."""
    upper = ((facts.get("GraphDriver") or {}).get("Data") or {}).get("UpperDir")
    return None if upper is None else str(upper)


def _volumes_in(facts: Mapping[str, Any]) -> list[str]:
    """Give the names of the volumes that go with a container, from the engine's description of it."""
    labels = (facts.get("Config") or {}).get("Labels") or {}
    return [name for name in labels.get(VOLUMES_LABEL, "").split(",") if name]


def _read_text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
