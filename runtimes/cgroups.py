"""Control groups of sandboxes: limits, accounting, killing; version 1, version 2 and hosts that mix both.

What the host does not let us do is left out of `SandboxCgroup.enforced`; the caller then falls back to rlimits.
"""

import errno
import os
import re
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from runtimes.base import ResourceLimits, SandboxStats

__all__ = ["CgroupMount", "CgroupTree", "SandboxCgroup", "cgroup_mounts", "cgroup_of"]

_PERIOD_US = 100_000
"""Length of a CPU accounting period: the kernel's default, short enough that a throttled program stays responsive."""

_MIN_QUOTA_US = 1_000
"""The kernel refuses smaller quotas."""

_STALE_SECONDS = 600.0
"""Between the making of a group and its first process lie milliseconds, or the start timeout of a stuck host."""

_CONTROLLERS = ("memory", "pids", "cpu")

_ACCOUNTS = {
    "memory_usage": {1: "memory.usage_in_bytes", 2: "memory.current"},
    "memory_events": {1: "memory.oom_control", 2: "memory.events"},
    "cpu_usage": {1: "cpuacct.usage", 2: "cpu.stat"},
}
"""By version: the cpu controller of version 1 has a cpu.stat, too, which tells of no use."""

_READ_BYTES = 16 << 10

_FREEZER_POLL_SECONDS = 0.000_1
"""Most sandboxes stand still in less than a millisecond."""

_FREEZER_FILES = {1: "freezer.state", 2: "cgroup.freeze"}
_FREEZER_WORDS = {1: ("THAWED", "FROZEN"), 2: ("0", "1")}

_NOT_OURS = (
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOENT,
    errno.EBUSY,
    errno.EOPNOTSUPP,
)
"""Errors that mean "this host keeps that controller to itself"; others are real failures."""


@dataclass(frozen=True, slots=True)
class CgroupMount:
    """One mounted hierarchy. root: the cgroup shown at path. controllers: empty for version 2, which lists its own."""

    path: Path
    root: str
    version: int
    controllers: frozenset[str]


def cgroup_mounts(mountinfo: str | None = None) -> list[CgroupMount]:
    """Read the mounted hierarchies of this process. Format: proc(5), /proc/pid/mountinfo."""
    text = Path("/proc/self/mountinfo").read_text() if mountinfo is None else mountinfo
    mounts = []
    for line in text.splitlines():
        fields, _, tail = line.partition(" - ")
        kind, _, options = tail.partition(" ")
        root, point = (_unescape(field) for field in fields.split(" ")[3:5])
        if kind == "cgroup2":
            mounts.append(CgroupMount(Path(point), root, 2, frozenset()))
        elif kind == "cgroup":
            names = frozenset(options.rsplit(" ", 1)[-1].split(","))
            mounts.append(CgroupMount(Path(point), root, 1, names & {*_CONTROLLERS, "cpuacct", "freezer"}))
    return mounts


def _unescape(field: str) -> str:
    """Undo the octal escapes of mountinfo (blank, tab, newline, backslash)."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


class SandboxCgroup:
    """The groups of one sandbox, one folder per hierarchy. enforced: controllers whose limit is really set."""

    def __init__(self, folders: Mapping[Path, int], enforced: frozenset[str] = frozenset()) -> None:
        """folders: path to its cgroup version (1 or 2)."""
        self._folders = dict(folders)
        self.enforced = enforced

    @contextmanager
    def entered_by_this_thread(self) -> Iterator[None]:
        """Hold the calling thread in the version 1 groups: what it starts is born there.

        Moving a whole process costs the kernel a grace period of 10 ms and more, a thread's own move does not.
        """
        inside = [folder for folder, version in self._folders.items() if version == 1]
        before = _thread_folders() if inside else []
        try:
            for folder in inside:
                (folder / "tasks").write_text("0")
            yield
        finally:
            for folder in before:
                (folder / "tasks").write_text("0")

    def open_for_a_child(self) -> list[tuple[str, int]]:
        """Open what a forked child needs to be in all groups; the caller closes it.

        "cgroup": the folder of version 2 to be born in, "tasks": a file of version 1 to write "0" to,
        "account:NAME": see `open_accounts`.
        """
        opened = []
        for folder, version in self._folders.items():
            if version == 2:
                opened.append(("cgroup", os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)))
            else:
                opened.append(("tasks", os.open(f"{folder}/tasks", os.O_WRONLY | os.O_CLOEXEC)))
        return opened + [(f"account:{name}", descriptor) for name, descriptor in self.open_accounts()]

    def open_accounts(self) -> list[tuple[str, int]]:
        """Open the files that tell use, by the names execd has for them (`--account`). The caller closes them."""
        opened = []
        for name, files in _ACCOUNTS.items():
            for folder, version in self._folders.items():
                with suppress(FileNotFoundError):
                    path = f"{folder}/{files[version]}"
                    opened.append((name, os.open(path, os.O_RDONLY | os.O_CLOEXEC)))
                    break
        return opened

    def freeze(self, *, timeout_seconds: float) -> bool:
        """Stop every process in it where it stands; False if no hierarchy here can.

        Raises OSError (ETIMEDOUT) if they do not all stand still in time.
        """
        return self._set_frozen(frozen=True, timeout_seconds=timeout_seconds)

    def thaw(self, *, timeout_seconds: float) -> bool:
        """Let them go on; see `freeze`."""
        return self._set_frozen(frozen=False, timeout_seconds=timeout_seconds)

    @property
    def is_frozen(self) -> bool:
        """Whether its processes were stopped by `freeze`."""
        return any(
            _is_frozen(folder, version)
            for folder, version in self._folders.items()
            if (folder / _FREEZER_FILES[version]).exists()
        )

    def _set_frozen(self, *, frozen: bool, timeout_seconds: float) -> bool:
        for folder, version in self._folders.items():
            control = folder / _FREEZER_FILES[version]
            if not control.exists():
                continue
            control.write_text(_FREEZER_WORDS[version][frozen])
            deadline = time.monotonic() + timeout_seconds
            while _is_frozen(folder, version) != frozen:
                if time.monotonic() > deadline:
                    raise OSError(errno.ETIMEDOUT, "its processes do not stand still", str(control))
                time.sleep(_FREEZER_POLL_SECONDS)
            return True
        return False

    def place(self, pid: int) -> None:
        """Move a process, and so all it will start, into the groups it was not born in: those of version 2."""
        for folder, version in self._folders.items():
            if version == 2:
                (folder / "cgroup.procs").write_text(str(pid))

    def process_ids(self) -> set[int]:
        """All processes still in one of the groups, zombies left out by the kernel."""
        ids: set[int] = set()
        for folder in self._folders:
            with suppress(FileNotFoundError):
                ids.update(map(int, _read(f"{folder}/cgroup.procs").split()))
        return ids

    def kill(self) -> None:
        """Send SIGKILL to all of it: at once where the kernel has cgroup.kill (5.14), else to each member there is.

        Also reaches what nobody has a record of, since its creator was killed before it could write one. Never root's
        processes: a worker's own thread is in a version 1 group for the moment in which it starts the sandbox.
        """
        for folder, version in self._folders.items():
            if version == 2:
                with suppress(OSError):
                    (folder / "cgroup.kill").write_text("1")
        for pid in self.process_ids() - {os.getpid()}:
            if _real_uid(pid):
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)

    def stats(self) -> SandboxStats:
        """Read what the host accounts for."""
        cpu = peak = kills = memory = processes = None
        for folder in self._folders:
            nanoseconds = _read_int(folder / "cpuacct.usage")
            micros = _read_key(folder / "cpu.stat", "usage_usec")
            if nanoseconds is not None:
                cpu = nanoseconds / 1e9
            elif micros is not None and cpu is None:
                cpu = micros / 1e6
            peak = _first(
                peak, _read_int(folder / "memory.max_usage_in_bytes"), _read_int(folder / "memory.peak")
            )
            kills = _first(
                kills,
                _read_key(folder / "memory.oom_control", "oom_kill"),
                _read_key(folder / "memory.events", "oom_kill"),
            )
            memory = _first(
                memory, _read_int(folder / "memory.usage_in_bytes"), _read_int(folder / "memory.current")
            )
            processes = _first(processes, _read_int(folder / "pids.current"))
        return SandboxStats(
            cpu_seconds=cpu,
            memory_peak_bytes=peak,
            oom_kills=kills,
            memory_bytes=memory,
            processes=processes,
        )

    def remove(self, *, timeout_seconds: float) -> None:
        """Remove the empty groups. Raises OSError (EBUSY) if something still lives in them after the timeout."""
        deadline = time.monotonic() + timeout_seconds
        for folder in self._folders:
            while True:
                try:
                    folder.rmdir()
                except FileNotFoundError:
                    break
                except OSError as error:
                    # A dead process leaves its group a moment after its parent hears of it.
                    if error.errno != errno.EBUSY or time.monotonic() > deadline:
                        raise
                    self.kill()
                    time.sleep(0.002)
                else:
                    break


class CgroupTree:
    """Makes one group per sandbox below a common parent, e.g. /sys/fs/cgroup/memory/sandmill/sm-1."""

    def __init__(self, parent: str, mounts: list[CgroupMount] | None = None) -> None:
        """parent: a single path component, made on first use."""
        self._parent = parent
        self._mounts = cgroup_mounts() if mounts is None else mounts

    def create(self, name: str, limits: ResourceLimits) -> SandboxCgroup:
        """Make the groups of a sandbox and set its limits where the host allows it."""
        folders: dict[Path, int] = {}
        enforced: set[str] = set()
        for mount in self._usable():
            if mount.version == 1 and not _can_come_back(mount):
                continue
            folder = mount.path / self._parent / name
            try:
                if mount.version == 2:
                    _enable(mount.path, self._parent)
                _make_folder(folder)
            except OSError as error:
                if error.errno not in _NOT_OURS:
                    raise
                continue
            folders[folder] = mount.version
            settings = _settings_v1(limits) if mount.version == 1 else _settings_v2(limits)
            enforced |= _apply(folder, mount, settings)
        return SandboxCgroup(folders, frozenset(enforced))

    def unenforced(self, name: str, limits: ResourceLimits) -> frozenset[str]:
        """Try it out: give the controllers that would not limit a sandbox here. name: of no sandbox there is."""
        group = self.create(name, limits)
        group.remove(timeout_seconds=0)
        return frozenset(_CONTROLLERS) - group.enforced

    def find(self, name: str) -> SandboxCgroup:
        """Give the groups of a sandbox that exist, made by this or an earlier process."""
        paths = {mount.path / self._parent / name: mount.version for mount in self._usable()}
        return SandboxCgroup({path: version for path, version in paths.items() if path.is_dir()})

    def sweep(self) -> None:
        """Remove groups that nothing lives in or ever will: their owner died and its state was deleted."""
        oldest = time.time() - _STALE_SECONDS
        for mount in self._usable():
            for folder in (mount.path / self._parent).glob("sm-*"):
                with suppress(OSError):
                    _let_die(folder, mount.version)
                # rmdir refuses a group that has processes.
                with suppress(OSError):
                    if folder.stat().st_mtime < oldest:
                        folder.rmdir()

    def _usable(self) -> Iterator[CgroupMount]:
        """Hierarchies that limit or account for something we use; each folder once.

        On hosts that mix versions, version 2 has no controllers of ours; it would only make each start slower.
        """
        has_version_1 = any(mount.controllers for mount in self._mounts)
        seen: set[Path] = set()
        for mount in self._mounts:
            is_useful = mount.controllers or (mount.version == 2 and not has_version_1)
            if is_useful and mount.path not in seen:
                seen.add(mount.path)
                yield mount


def cgroup_of(pid: int) -> SandboxCgroup:
    """Find the groups a process is in, for reading: an engine's container, say. Empty if it is gone."""
    try:
        table = Path(f"/proc/{pid}/cgroup").read_text()
    except OSError:
        return SandboxCgroup({})
    return SandboxCgroup(_folders_in(table))


def _thread_folders() -> list[Path]:
    """Give the version 1 groups the calling thread is in now."""
    table = _folders_in(Path("/proc/thread-self/cgroup").read_text())
    return [folder for folder, version in table.items() if version == 1]


def _can_come_back(mount: CgroupMount) -> bool:
    """Say whether a thread that enters a group of this hierarchy may return to where it is now."""
    return os.geteuid() == 0 or all(
        os.access(folder / "tasks", os.W_OK)
        for folder in _thread_folders()
        if folder.is_relative_to(mount.path)
    )


def _folders_in(table: str) -> dict[Path, int]:
    """Find the folders of a /proc/pid/cgroup table: path to cgroup version."""
    folders: dict[Path, int] = {}
    mounts = cgroup_mounts()
    for line in table.splitlines():
        _, names, place = line.split(":", 2)
        for mount in mounts:
            if mount.version == 2 if not names else mount.controllers & set(names.split(",")):
                relative = place.removeprefix(mount.root.rstrip("/")).lstrip("/")
                folders[mount.path / relative] = mount.version
    return {folder: version for folder, version in folders.items() if folder.is_dir()}


def _enable(root: Path, parent: str) -> None:
    """Hand the controllers down to the children of root and parent, as far as root has them (version 2)."""
    (root / parent).mkdir(mode=0o755, exist_ok=True)
    for folder in (root, root / parent):
        have = (folder / "cgroup.controllers").read_text().split()
        on = (folder / "cgroup.subtree_control").read_text().split()
        for name in _CONTROLLERS:
            if name in have and name not in on:
                with suppress(OSError):
                    (folder / "cgroup.subtree_control").write_text(f"+{name}")


def _make_folder(folder: Path) -> None:
    """Make the group, and its parent the first time; one that is there already is as good."""
    try:
        os.mkdir(folder, 0o755)  # noqa: PTH102 -- Path.mkdir asks twice
    except FileExistsError:
        return
    except FileNotFoundError:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)


def _settings_v1(limits: ResourceLimits) -> dict[str, list[tuple[str, str, bool]]]:
    """Files to write per controller: name, value, needed. memsw comes after memory: it may not be smaller."""
    quota = max(_MIN_QUOTA_US, limits.cpu_millicores * _PERIOD_US // 1000)
    return {
        "memory": [
            ("memory.limit_in_bytes", str(limits.memory_bytes), True),
            ("memory.swappiness", "0", False),
            ("memory.memsw.limit_in_bytes", str(limits.memory_bytes), False),
        ],
        "pids": [("pids.max", str(limits.pids), True)],
        "cpu": [("cpu.cfs_period_us", str(_PERIOD_US), True), ("cpu.cfs_quota_us", str(quota), True)],
    }


def _settings_v2(limits: ResourceLimits) -> dict[str, list[tuple[str, str, bool]]]:
    """Files to write per controller: name, value, needed."""
    quota = max(_MIN_QUOTA_US, limits.cpu_millicores * _PERIOD_US // 1000)
    return {
        "memory": [
            ("memory.max", str(limits.memory_bytes), True),
            ("memory.swap.max", "0", False),
        ],
        "pids": [("pids.max", str(limits.pids), True)],
        "cpu": [("cpu.max", f"{quota} {_PERIOD_US}", True)],
    }


def _apply(folder: Path, mount: CgroupMount, settings: dict[str, list[tuple[str, str, bool]]]) -> set[str]:
    """Write limits; gives the controllers that took all they need."""
    done: set[str] = set()
    for controller, files in settings.items():
        if mount.version == 1 and controller not in mount.controllers:
            continue
        try:
            for name, value, needed in files:
                if needed:
                    _write(f"{folder}/{name}", value)
                else:
                    with suppress(FileNotFoundError):
                        _write(f"{folder}/{name}", value, flags=0)
        except OSError as error:
            if error.errno not in _NOT_OURS:
                raise
            continue
        done.add(controller)
    return done


def _write(path: str, value: str, *, flags: int = os.O_CREAT) -> None:
    """Write a file of a group by as few system calls as there can be: a start has a dozen of them."""
    descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC | flags, 0o644)
    try:
        os.write(descriptor, value.encode())
    finally:
        os.close(descriptor)


def _is_frozen(folder: Path, version: int) -> bool:
    if version == 2:
        return _read_key(folder / "cgroup.events", "frozen") == 1
    return (folder / "freezer.state").read_text().strip() == "FROZEN"


def _read(path: str) -> bytes:
    """Read a small file of a group or a process."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        content = b""
        while piece := os.read(descriptor, _READ_BYTES):
            content += piece
        return content
    finally:
        os.close(descriptor)


def _let_die(folder: Path, version: int) -> None:
    """Thaw a group whose processes were killed while they stood still: in version 1 they would stay for ever."""
    if not (folder / _FREEZER_FILES[version]).exists() or not _is_frozen(folder, version):
        return
    if any(_is_killed(int(pid)) for pid in (folder / "cgroup.procs").read_text().split()):
        (folder / _FREEZER_FILES[version]).write_text(_FREEZER_WORDS[version][False])


def _is_killed(pid: int) -> bool:
    """Say whether SIGKILL waits for a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    pending = re.findall(r"^(?:SigPnd|ShdPnd):\s+([0-9a-f]+)", status, re.MULTILINE)
    return any(int(mask, 16) & 1 << (signal.SIGKILL - 1) for mask in pending)


def _read_int(path: Path) -> int | None:
    """Read a file that holds one number; None if it is not there."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _read_key(path: Path, key: str) -> int | None:
    """Read one line of a `key value` file; None if it is not there."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.split()[:1] == [key]), None)


def _first(*values: int | None) -> int | None:
    """Take the first value that is known."""
    return next((value for value in values if value is not None), None)


def _real_uid(pid: int) -> int | None:
    """Give the real user of a process; None when it is gone. The owner of /proc/PID would be root for a hidden one."""
    try:
        status = _read(f"/proc/{pid}/status")
    except OSError:
        return None
    found = re.search(rb"^Uid:\s+(\d+)", status, re.MULTILINE)
    return None if found is None else int(found[1])
