"""The `local` runtime: sandboxes by namespaces, on this host, without a daemon."""

import os
import re
import secrets
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path

from core.errors import (
    CreateTimeoutError,
    DaemonError,
    ExecdUnreachableError,
    NotSupportedError,
    RuntimeUnavailableError,
    SpecInvalidError,
)
from runtimes.base import (
    ENTRYPOINT_KEY,
    EXECD_PORT,
    LACKS,
    Capabilities,
    Command,
    OnProgress,
    ResourceLimits,
    Runtime,
    SandboxHandle,
    SandboxSpec,
    SandboxState,
    SandboxStats,
    refuse_fields,
    refuse_foreign_platform,
    refuse_gpus,
)
from runtimes.cgroups import CgroupTree
from runtimes.deadline import Deadline
from runtimes.execd_client import HttpExecutionClient
from runtimes.local.config import LocalConfig
from runtimes.local.diagnosis import advice, describe_missing
from runtimes.local.execd_flags import execd_flags
from runtimes.local.executor import IDS_PER_SANDBOX, Started, StartRequest, can_change_user
from runtimes.local.held_files import root_held
from runtimes.local.host_image import HOST_IMAGE, build_plan
from runtimes.local.images import ImageStore
from runtimes.local.loop_disks import LoopDisks
from runtimes.local.name_locks import locked_names
from runtimes.local.named_processes import kill_by_name
from runtimes.local.node_images import Base, Live, NodeImages
from runtimes.local.pausing import is_paused, pause, resume, thaw_for_removal
from runtimes.local.plan import Plan
from runtimes.local.plan_parts import Sources
from runtimes.local.preparation import Prepared, has_zygote, is_host_root, prepare
from runtimes.local.records import Record, RecordExistsError, Records
from runtimes.local.remembering import from_text, to_text
from runtimes.local.roots import Root
from runtimes.local.statistics import with_disk_use
from runtimes.local.stored_image import build_stored_plan
from runtimes.local.unix_sockets import connect_to
from runtimes.local.zygote.client import Zygote
from runtimes.netns import connect_in_namespace
from runtimes.processes import KILL_TIMEOUT_SECONDS, ProcessRef, await_end, kill

__all__ = ["LocalRuntime"]

_CONNECT_TIMEOUT_SECONDS = 5.0
_POLL_SECONDS = 0.02
_MAX_WRITTEN_LAYERS = 64
"""Each keeps the files of a sandbox that may long be gone, so that one sandbox could hold those of any number."""

_MAX_SANDBOXES = 16_384

_CHECK = re.compile(r"sm-check-([0-9]+)-([0-9]+)-[0-9a-f]+")
_CHECK_LIMITS = ResourceLimits(cpu_millicores=1000, memory_bytes=128 << 20, disk_bytes=16 << 20, pids=64)
_CHECK_TIMEOUT_SECONDS = 30.0


class LocalRuntime(Runtime):
    """Sandboxes of the image `host`, of stored images and of snapshots.

    They end with `remove`, or with the process that created them unless `LocalConfig.outlives`. As root each has
    host users of its own and hard limits by control groups; as another user it runs as that user and, where control
    groups are not ours to make, under rlimits. Files written in it live in memory, and count against its memory limit
    as well as its disk limit, or in a file: see `LocalConfig.disk`.
    """

    name = "local"

    def __init__(self, config: LocalConfig) -> None:
        """Touch nothing yet: folders, bundle and thread are made on first use."""
        self._config = config
        self.outlives = config.outlives
        self._as_root = can_change_user(config.uid_base)
        self._has_zygote = has_zygote(config, as_root=self._as_root)
        self._cgroups = CgroupTree(config.cgroup_parent)
        self._prepare_lock = threading.Lock()
        self._prepared: Prepared | None = None
        self._images = NodeImages(config, as_root=self._as_root)
        self._disks = LoopDisks(config.state_dir / "disks") if config.disk == "file" else None
        self._started: dict[str, Started] = {}
        self._live: dict[str, Live] = {}
        self._disks_lock = threading.Lock()
        self._ended_disks: set[str] = set()

    def check(self) -> None:
        """Start and remove a small sandbox. Raises RuntimeUnavailableError with the way out."""
        if os.geteuid() == 0 and not self._as_root and is_host_root():
            message = f"root has no host user {self._config.uid_base} here: set uid_base to one of /proc/self/uid_map"
            raise RuntimeUnavailableError(message)
        try:
            self._remove_left_checks()
            spec = SandboxSpec(name=_check_name(), image=HOST_IMAGE, limits=_CHECK_LIMITS)
            self.remove(self.create(spec, timeout_seconds=_CHECK_TIMEOUT_SECONDS))
        except (DaemonError, CreateTimeoutError) as error:
            raise RuntimeUnavailableError(f"{error}; {advice()}") from error

    def capabilities(self) -> Capabilities:
        """Snapshots need root and its way to start sandboxes; see `Runtime.capabilities`."""
        return Capabilities(makes_snapshots=self._has_zygote)

    def _remove_left_checks(self) -> None:
        """Remove the sandboxes of checks whose process was killed in their midst."""
        for handle in self.list():
            match = _CHECK.fullmatch(handle.name)
            if match is not None and not ProcessRef(int(match[1]), int(match[2])).is_alive:
                self.remove(handle)

    def limitations(self) -> Sequence[str]:
        """Name the limits that only rlimits hold here, or nothing at all; see `Runtime.limitations`."""
        try:
            missing = self._cgroups.unenforced(f"sm-check-{secrets.token_hex(6)}", _CHECK_LIMITS)
        except OSError as error:
            raise DaemonError(f"the control groups could not be tried: {error}") from error
        return describe_missing(missing, self._config.cgroup_parent)

    def create(
        self, spec: SandboxSpec, *, timeout_seconds: float, on_progress: OnProgress | None = None
    ) -> SandboxHandle:
        """Start a sandbox; see `Runtime.create`. The first call also builds the bundle, outside the timeout.

        Its root file system can always be written, as far as its image's files let its user. Images are not pulled.
        """
        refuse_gpus(spec, self.name)
        refuse_fields(spec, self.name, *sorted(LACKS[self.name] - {"gpu"}))
        refuse_foreign_platform(spec, self.name)
        if on_progress is not None:
            on_progress("starting the sandbox")
        prepared = self._prepare()
        deadline = Deadline(timeout_seconds).within(spec.ready_seconds)
        base = self._images.base_of(spec.image, is_root=spec.is_writable and self._has_zygote)
        if base.root.layers and self._as_root and not self._has_zygote:
            # Only the zygote's mounts can show files of root as those of a sandbox's user.
            message = (
                "bwrap starts no stored image as root: set executor to auto, or run the worker as a user"
            )
            raise RuntimeUnavailableError(message)
        # Planned once before anything is made, so that a bad workdir or environment leaves nothing to take back.
        self.plan(spec, base.root, prepared.executor.sources, (), prepared.seccomp)
        with locked_names(spec.name):
            return self._create(prepared, spec, base, deadline)

    def plan(
        self, spec: SandboxSpec, root: Root, sources: Sources, argv: tuple[str, ...], seccomp: bytes
    ) -> Plan:
        """Say what the sandbox will see and may do; argv: execd's command. Raises SpecInvalidError."""
        build = build_plan if root.config is None else build_stored_plan
        return build(spec, root, sources, argv, seccomp)

    def pause(self, handle: SandboxHandle) -> None:
        """Stop every process where it stands; see `Runtime.pause`."""
        record = self._alive(handle)
        with locked_names(handle.name):
            pause(self._cgroups.find(handle.name), record.init)

    def resume(self, handle: SandboxHandle) -> None:
        """Let a paused sandbox go on; see `Runtime.resume`."""
        record = self._alive(handle)
        with locked_names(handle.name):
            resume(self._cgroups.find(handle.name), record.init)

    def snapshot(self, handle: SandboxHandle, name: str) -> None:
        """Keep a copy of all files, without the processes; see `Runtime.snapshot`."""
        with locked_names(handle.name):
            live = self._live_of(handle)
            record, zygote = self._alive(handle), self._zygote()
            sight = _sight_of(self._starter(record))
            layers = [(sight(zygote.layer_of(live.disk, live.generation)), self._first_id(record))]
            layers += [(sight(path), owner) for path, owner in live.base.written_layers]
            with self._standing_still(record):
                self._images.save_snapshot(name, live.base, layers)

    def fork(
        self, handle: SandboxHandle, spec: SandboxSpec, *, timeout_seconds: float
    ) -> tuple[SandboxHandle, SandboxHandle]:
        """Start a second sandbox with the files of one; see `Runtime.fork`."""
        prepared = self._prepare()
        deadline = Deadline(timeout_seconds)
        if spec.name == handle.name:
            raise SpecInvalidError("name: a fork needs a name of its own", field="name")
        with locked_names(handle.name, spec.name):
            live = self._live_of(handle)
            record = self._alive(handle)
            if self._starter(record).pid != self._zygote().pid:
                message = f"{handle.name} was started by an earlier release, which no fork can follow: make a snapshot"
                raise NotSupportedError(message)
            base = self._base_of_fork(live, record)
            again = replace(live, base=base, generation=live.generation + 1)
            # Planned before anything is made, so that a bad spec leaves nothing to take back.
            self.plan(spec, base.root, prepared.executor.sources, (), prepared.seccomp)
            with self._standing_still(record), root_held(record.init):
                other = self._create(prepared, spec, base, deadline)
                try:
                    with self._ending(record):
                        original = self._start(prepared, again, record, deadline)
                    self._start_entrypoint(original, again)
                except BaseException:
                    self._remove(prepared.records, self._alive(other))
                    raise
        return original, other

    @property
    def image_store(self) -> ImageStore:
        """Where the images are that sandboxes can start from."""
        return self._images.store

    def remove_snapshot(self, name: str) -> None:
        """Delete a snapshot; see `Runtime.remove_snapshot`."""
        self._images.remove_snapshot(name)

    def snapshot_bytes(self, name: str) -> int | None:
        """Room that a snapshot takes; see `Runtime.snapshot_bytes`."""
        return self._images.snapshot_bytes(name)

    def snapshots(self) -> Sequence[str]:
        """Names of all snapshots of this node."""
        return self._images.snapshots()

    def executions(self, handle: SandboxHandle) -> HttpExecutionClient:
        """Give a client for execd of this sandbox."""
        return HttpExecutionClient(
            lambda: self.connect(handle, EXECD_PORT, timeout_seconds=_CONNECT_TIMEOUT_SECONDS)
        )

    def connect(self, handle: SandboxHandle, port: int, *, timeout_seconds: float) -> socket.socket:
        """Open a stream to a port inside; execd's always, others as root only (else NotSupportedError)."""
        record = self._find(handle)
        if record is None or record.init is None:
            raise ExecdUnreachableError(f"sandbox {handle.name} is gone")
        if port == EXECD_PORT:
            return connect_to(self._socket_path(record), timeout_seconds=timeout_seconds)
        if not self._as_root:
            message = (
                "only root can reach other ports of a local sandbox: run the worker as root, or use docker"
            )
            raise NotSupportedError(message)
        return connect_in_namespace(record.init, port, timeout_seconds=timeout_seconds)

    def stats(self, handle: SandboxHandle) -> SandboxStats:
        """Read use and OOM kills, also of a sandbox that has died but was not removed."""
        record = self._find(handle)
        if record is None:
            return SandboxStats()
        return with_disk_use(self._cgroups.find(handle.name).stats(), record.init)

    def state(self, handle: SandboxHandle) -> SandboxState:
        """Say how it is now; see `Runtime.state`."""
        record = self._find(handle)
        if record is None:
            return SandboxState("gone")
        if not record.is_ready:
            return SandboxState("starting")
        if not record.is_alive:
            return SandboxState("ended", message="execd of the sandbox has ended")
        is_still = is_paused(self._cgroups.find(handle.name), record.init)
        return SandboxState("paused" if is_still else "running")

    def remove(self, handle: SandboxHandle) -> None:
        """Kill and forget; see `Runtime.remove`. Raises DaemonError if something does not die."""
        with locked_names(handle.name):
            record = self._find(handle)
            if record is not None:
                self._remove(self._records(), record)
            else:
                self._drop_ended(handle.name)

    def list(self) -> list[SandboxHandle]:
        """All sandboxes with a record in state_dir, of this and earlier processes."""
        for started in list(self._started.values()):
            started.poll()  # take in the ones that ended by themselves
        return [self._handle(record) for record in self._records().all()]

    def find(self, name: str) -> SandboxHandle | None:
        """Look at one record; see `Runtime.find`."""
        record = self._records().find(name)
        return None if record is None else self._handle(record)

    def close(self) -> None:
        """Let go of what starts sandboxes, unless one of this object is left that would die with it."""
        with self._prepare_lock:
            if self._prepared is not None and (self._config.outlives or not self._started):
                self._prepared.executor.close()
                self._prepared = None

    def _reserve(self, records: Records, spec: SandboxSpec, deadline: Deadline) -> Record | SandboxHandle:
        """Take the name, or give the sandbox that has it and runs; clear away one that died."""
        while True:
            with suppress(RecordExistsError):
                return records.reserve(spec.name, spec.labels)
            found = records.find(spec.name)
            if found is None:
                continue
            if found.is_ready and found.is_alive:
                return self._handle(found)
            is_starting = not found.is_ready and found.owner.is_alive and found.owner.pid != os.getpid()
            if not is_starting:
                self._remove(records, found)
            elif deadline.is_over:
                raise CreateTimeoutError(f"another process is still starting {spec.name}")
            else:
                threading.Event().wait(_POLL_SECONDS)

    def _create(self, prepared: Prepared, spec: SandboxSpec, base: Base, deadline: Deadline) -> SandboxHandle:
        """Start a sandbox; the caller holds the lock of its name."""
        reserved = self._reserve(prepared.records, spec, deadline)
        if isinstance(reserved, SandboxHandle):
            return reserved
        try:
            self._images.lease(base, spec.name)
            # A name of its own: what an earlier sandbox of this name wrote may still be a layer of others.
            live = Live(spec, base, disk=f"{spec.name}.{secrets.token_hex(4)}")
            handle = self._start(prepared, live, reserved, deadline)
            self._start_entrypoint(handle, live)
        except BaseException:
            self._remove(prepared.records, prepared.records.find(spec.name) or reserved)
            raise
        else:
            return handle

    def _start(self, prepared: Prepared, live: Live, record: Record, deadline: Deadline) -> SandboxHandle:
        spec = live.spec
        try:
            cgroup = self._cgroups.create(spec.name, spec.limits)
        except OSError as error:
            raise DaemonError(f"the control groups of {spec.name} could not be made: {error}") from error
        own_flags = execd_flags(spec, cgroup)
        # The zygote has execd in memory already.
        program = () if self._has_zygote else prepared.bundle.command

        def plan(flags: tuple[str, ...]) -> Plan:
            argv = (*program, *flags, *own_flags)
            return self.plan(spec, live.base.root, prepared.executor.sources, argv, prepared.seccomp)

        def on_init(init: ProcessRef) -> None:
            prepared.records.update(record, init=init)

        with self._disk_for(live) as device:
            request = StartRequest(
                name=spec.name,
                disk=live.disk,
                first_id=self._first_id(record),
                plan=plan,
                socket_path=self._socket_path(record),
                cgroup=cgroup,
                deadline=deadline,
                on_init=on_init,
                generation=live.generation,
                device=device,
            )
            self._live[spec.name] = live
            started = self._started[spec.name] = prepared.executor.start(request)
        if self._config.outlives:
            prepared.records.attach(record, to_text(live))
        record = prepared.records.update(record, init=started.init, is_ready=True, disk=live.disk)
        return self._handle(record)

    def _start_entrypoint(self, handle: SandboxHandle, live: Live) -> None:
        entrypoint = live.entrypoint
        if entrypoint:
            with closing(self.executions(handle)) as client:
                client.start(Command(argv=entrypoint), key=ENTRYPOINT_KEY)

    def _disk_for(self, live: Live) -> AbstractContextManager[str | None]:
        """Give the device of a disk file, while it is needed; None for a disk in memory, or one that is there."""
        if self._disks is None or live.generation:
            return nullcontext(None)
        return self._disks.attached(live.disk, live.spec.limits.disk_bytes)

    def _drop_disks(self, ended: str | None) -> None:
        """Let go of the disk of a sandbox that ended, and of earlier ones that no other has layers on any more."""
        with self._disks_lock:
            if ended is not None:
                self._ended_disks.add(ended)
            for disk in list(self._ended_disks):
                if any(live.stands_on(disk) for live in list(self._live.values())):
                    continue
                self._ended_disks.remove(disk)
                if self._prepared is not None:
                    self._prepared.executor.forget(disk)

    def _first_id(self, record: Record) -> int:
        return self._config.uid_base + record.slot * IDS_PER_SANDBOX

    def _alive(self, handle: SandboxHandle) -> Record:
        record = self._find(handle)
        if record is None or not record.is_alive:
            raise ExecdUnreachableError(f"sandbox {handle.name} is gone")
        return record

    def _live_of(self, handle: SandboxHandle) -> Live:
        """Give what is known of a sandbox that this object has started, or an earlier process of the node."""
        record = self._alive(handle)
        self._zygote()
        live = self._live.get(handle.name) or self._remember(self._records(), record)
        if live is None:
            raise NotSupportedError(f"only the process that started {handle.name} can copy its files")
        return live

    def _remember(self, records: Records, record: Record) -> Live | None:
        """Take up what an earlier process has kept of its sandbox, if it has."""
        text = records.attached(record)
        if text is None or not record.is_alive:
            return None
        try:
            live = from_text(text)
        except (ValueError, KeyError, TypeError):
            return None  # of a release that wrote it in another way
        return self._live.setdefault(record.name, live)

    def _starter(self, record: Record) -> ProcessRef:
        """Give the process that has the disk of a sandbox mounted. Raises DaemonError once it has ended."""
        starter = None if record.init is None else record.init.parent
        if starter is None or starter.pid == 1:
            raise DaemonError("the starter of sandboxes has ended, and with it what they wrote")
        return starter

    def _zygote(self) -> Zygote:
        executor = self._prepare().executor
        if not isinstance(executor, Zygote):
            message = (
                "snapshots and forks of local sandboxes need root: run the worker as root, or use docker"
            )
            raise NotSupportedError(message)
        return executor

    def _end_processes(self, record: Record) -> None:
        """End all of a sandbox but its disk and its groups, also of one that stands still."""
        with self._ending(record):
            pass
        self._cgroups.find(record.name).kill()

    @contextmanager
    def _ending(self, record: Record) -> Iterator[None]:
        """Kill all of a sandbox, and have it ended on the way out; what comes between may start in the same groups.

        From the kill on nothing of it runs or writes any more; to take it apart costs the kernel milliseconds.
        """
        group = self._cgroups.find(record.name)
        if group.is_frozen:
            # Killed before it is thawed, so that nothing of it runs again.
            group.kill()
            thaw_for_removal(group)
        # By process 1: the kernel ends all in its namespace with it, and there is hardly anything left to look for.
        killed = None if record.init is None else kill(record.init)
        started = self._started.pop(record.name, None)
        try:
            yield
        finally:
            is_dead = await_end(killed, timeout_seconds=KILL_TIMEOUT_SECONDS)
            if started is not None and is_dead:
                started.release()
            elif started is not None:
                self._started.setdefault(record.name, started)
        if not is_dead:
            pid = record.init.pid if record.init is not None else None
            raise DaemonError(f"process {pid} of sandbox {record.name} does not die")

    def _remove(self, records: Records, record: Record) -> None:
        cgroup = self._cgroups.find(record.name)
        if record.init is None:
            cgroup.kill()
            kill_by_name(record.name)
        self._end_processes(record)
        try:
            cgroup.remove(timeout_seconds=KILL_TIMEOUT_SECONDS)
        except OSError as error:
            raise DaemonError(f"the control groups of {record.name} could not be removed: {error}") from error
        live = self._live.pop(record.name, None)
        self._drop_disks(record.disk if live is None else live.disk)
        self._images.release(record.name)
        self._socket_path(record).unlink(missing_ok=True)
        records.forget(record)

    def _drop_ended(self, name: str) -> None:
        """Let go of a sandbox of ours that another process has removed."""
        if name in self._started and self._records().find(name) is None:
            started = self._started.pop(name)
            started.release()
            live = self._live.pop(name, None)
            self._drop_disks(None if live is None else live.disk)

    def _find(self, handle: SandboxHandle) -> Record | None:
        """Give the record of this very sandbox, not of a later one of the same name."""
        record = self._records().find(handle.name)
        return record if record is not None and _ref(record) == handle.ref else None

    def _handle(self, record: Record) -> SandboxHandle:
        return SandboxHandle(runtime=self.name, name=record.name, ref=_ref(record), labels=record.labels)

    @contextmanager
    def _standing_still(self, record: Record) -> Iterator[None]:
        """Have all processes of a sandbox stand still; those that ran before go on, if they are still there."""
        group, init = self._cgroups.find(record.name), record.init
        was_paused = is_paused(group, init)
        pause(group, init)
        try:
            yield
        finally:
            if not was_paused and record.is_alive:
                resume(group, init)

    def _base_of_fork(self, live: Live, record: Record) -> Base:
        """Put what a sandbox has written on top of what it started from. Raises NotSupportedError for one too many."""
        if live.base.written >= _MAX_WRITTEN_LAYERS:
            message = f"a chain of forks has at most {_MAX_WRITTEN_LAYERS} of them: start from an image anew"
            raise NotSupportedError(message)
        layer = self._zygote().layer_of(live.disk, live.generation)
        root = live.base.root.below(layer, self._first_id(record))
        return replace(live.base, root=root, written=live.base.written + 1)

    def _socket_path(self, record: Record) -> Path:
        return self._config.state_dir / "sockets" / str(record.slot)

    def _records(self) -> Records:
        if self._prepared is not None:
            return self._prepared.records
        slots = ((1 << 31) - self._config.uid_base) // IDS_PER_SANDBOX if self._as_root else _MAX_SANDBOXES
        return Records(self._config.state_dir / "sandboxes", slots=min(slots, _MAX_SANDBOXES))

    def _prepare(self) -> Prepared:
        """Make, once, what all sandboxes share; see `prepare`."""
        with self._prepare_lock:
            if self._prepared is None:
                records = self._records()
                made = prepare(self._config, records, as_root=self._as_root)
                self._sweep(records)
                self._prepared = made
            return self._prepared

    def _sweep(self, records: Records) -> None:
        """Remove what earlier processes left that were killed, and that belongs to no sandbox one could `remove`."""
        records.sweep()
        self._cgroups.sweep()
        self._images.sweep([record.name for record in records.all()])
        if self._disks is not None:
            self._disks.sweep()
        # Now, and not when they are asked for: what one of them wrote may be a layer of another.
        for record in records.all():
            if record.name not in self._live:
                self._remember(records, record)


def _check_name() -> str:
    """Name the sandbox of a check by its process, so that others see whether that still runs."""
    process = ProcessRef.of(os.getpid())
    number = secrets.token_hex(3)
    return f"sm-check-{process.pid}-{process.started}-{number}" if process else f"sm-check-0-0-{number}"


def _sight_of(starter: ProcessRef) -> Callable[[str], Path]:
    """Give how this process sees a folder of a zygote's, be it ours or an earlier one's."""
    return lambda path: Path(f"/proc/{starter.pid}/root{path}")


def _ref(record: Record) -> str:
    """Process number and start time: never the same twice."""
    return "" if record.init is None else f"{record.init.pid}.{record.init.started}"
