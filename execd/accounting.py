"""What the sandbox uses and may use: memory, processor time, kills for lack of memory."""

import os
from collections.abc import Mapping
from typing import Final

from execd.readfile import read_small_file

__all__ = ["ACCOUNT_NAMES", "LIMIT_NAMES", "Accounting"]

ACCOUNT_NAMES: Final = ("memory_usage", "memory_events", "cpu_usage")
LIMIT_NAMES: Final = ("cpu_millicores", "memory_bytes")

_MAX_BYTES: Final = 16 * 1024
_MAX_DIGITS: Final = 19
_STAT_FIELDS: Final = 15
"""Of /proc/PID/stat after the name: from the state to the children's times."""

_FILES: Final = {
    "memory_usage": ("memory.current", "memory/memory.usage_in_bytes"),
    "memory_events": ("memory.events", "memory/memory.oom_control"),
    "memory_limit": ("memory.max", "memory/memory.limit_in_bytes"),
    "cpu_usage": ("cpu.stat", "cpuacct/cpuacct.usage", "cpu,cpuacct/cpuacct.usage"),
}
"""Below /sys/fs/cgroup: of version 2 first, then of version 1."""


class Accounting:
    """Figures of the whole sandbox, read anew at each call.

    Each comes from the first source that has it: what execd was started with, the control group that the sandbox sees
    as its own; else limits are the machine's, and use is that of all processes the sandbox has.
    """

    def __init__(
        self,
        descriptors: Mapping[str, int] | None = None,
        limits: Mapping[str, int] | None = None,
        *,
        cgroup_folder: str = "/sys/fs/cgroup",
        proc_folder: str = "/proc",
        pid: int | None = None,
    ) -> None:
        """descriptors: by ACCOUNT_NAMES, open for reading, of control group files of version 1 or 2.

        limits: by LIMIT_NAMES. pid: of execd, if not this process.
        """
        self._descriptors = dict(descriptors or {})
        self._limits = dict(limits or {})
        self._cgroup = cgroup_folder
        self._proc = proc_folder
        self._pid = os.getpid() if pid is None else pid

    def oom_kills(self) -> int | None:
        """Processes killed since the sandbox began because its memory was used up; None if no one counts them."""
        return _value_of("oom_kill", self._read("memory_events"))

    def memory_total(self) -> int:
        """Bytes the sandbox may use."""
        if "memory_bytes" in self._limits:
            return self._limits["memory_bytes"]
        machine = self._machine_memory("MemTotal")
        limit = _number(self._read("memory_limit"))
        # A group of version 1 without a limit shows one larger than any machine.
        return limit if limit is not None and (not machine or limit < machine) else machine

    def memory_used(self) -> int:
        """Bytes in use, never more than the total. Cached file content is included where a control group tells."""
        used = _number(self._read("memory_usage"))
        if used is None:
            used = self._own_memory()
        return max(0, min(used, self.memory_total()))

    def cpu_count(self) -> float:
        """Processors the sandbox may use, e.g. 0.5."""
        if "cpu_millicores" in self._limits:
            return self._limits["cpu_millicores"] / 1000
        machine = float(len(os.sched_getaffinity(0)))
        quota = self._cpu_quota()
        return machine if quota is None else min(quota, machine)

    def cpu_seconds(self) -> float:
        """Processor time used since the sandbox began; only differences are of use."""
        content = self._read("cpu_usage")
        nanoseconds = _number(content)
        if nanoseconds is not None:
            return nanoseconds / 1e9
        microseconds = _value_of("usage_usec", content)
        if microseconds is not None:
            return microseconds / 1e6
        return self._own_cpu_seconds()

    def _read(self, name: str) -> bytes:
        """Give a file's content, empty if there is no such file."""
        descriptor = self._descriptors.get(name)
        if descriptor is not None:
            try:
                return os.pread(descriptor, _MAX_BYTES, 0)
            except OSError:
                return b""  # the group is gone; what the sandbox sees is no better
        for path in _FILES[name]:
            content = self._file(path)
            if content:
                return content
        return b""

    def _file(self, path: str) -> bytes:
        return read_small_file(os.path.join(self._cgroup, path), max_bytes=_MAX_BYTES) or b""

    def _cpu_quota(self) -> float | None:
        quota, _, period = self._file("cpu.max").strip().partition(b" ")
        if not quota:
            for folder in ("cpu", "cpu,cpuacct"):
                quota = quota or self._file(f"{folder}/cpu.cfs_quota_us")
                period = period or self._file(f"{folder}/cpu.cfs_period_us")
        share, whole = _number(quota), _number(period)
        return share / whole if share and whole else None

    def _machine_memory(self, key: str) -> int:
        content = read_small_file(f"{self._proc}/meminfo", max_bytes=_MAX_BYTES) or b""
        kibibytes = _value_of(f"{key}:", content)
        return 1024 * (kibibytes or 0)

    def _own_cpu_seconds(self) -> float:
        """Sum up what the sandbox's processes have used, with those among their children that ended before them."""
        ticks = 0
        for fields in self._own_processes().values():
            # utime stime cutime cstime: what a process used goes over to its parent when it is waited for.
            ticks += sum(_number(field) or 0 for field in fields[11:15])
        return ticks / os.sysconf("SC_CLK_TCK")

    def _own_memory(self) -> int:
        """Sum up the bytes that the sandbox's processes have for themselves: what they share would count for each."""
        pages = 0
        for pid in self._own_processes():
            content = read_small_file(f"{self._proc}/{pid}/statm", max_bytes=_MAX_BYTES) or b""
            _, resident, shared, *_ = [*(_number(field) or 0 for field in content.split()), 0, 0, 0]
            pages += max(0, resident - shared)
        return pages * os.sysconf("SC_PAGE_SIZE")

    def _own_processes(self) -> dict[int, list[bytes]]:
        """Give the fields of /proc/PID/stat after the name of execd and all that came from it, by pid.

        As the first process of a namespace execd sees no others. Elsewhere it adopts orphans, so all descend from it.
        """
        found = {}
        for name in _names_in(self._proc):
            if name.isdecimal():
                content = read_small_file(f"{self._proc}/{name}/stat", max_bytes=_MAX_BYTES) or b""
                fields = content.rpartition(b")")[2].split()
                if len(fields) >= _STAT_FIELDS:
                    found[int(name)] = fields
        if self._pid == 1:
            return found
        children: dict[int, list[int]] = {}
        for pid, fields in found.items():
            children.setdefault(_number(fields[1]) or 0, []).append(pid)
        own: dict[int, list[bytes]] = {}
        pending = [self._pid]
        while pending:
            pid = pending.pop()
            if pid in found and pid not in own:
                own[pid] = found[pid]
                pending += children.get(pid, ())
        return own


def _names_in(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:  # a sandbox without /proc
        return []


def _number(content: bytes) -> int | None:
    """Read a file of one number; None for anything else, such as `max`."""
    text = content.strip()
    return int(text) if text.isdigit() and len(text) <= _MAX_DIGITS else None


def _value_of(key: str, content: bytes) -> int | None:
    """Read the number after a key that begins a line."""
    name = key.encode("ascii")
    for line in content.splitlines():
        fields = line.split()
        if len(fields) >= 2 and fields[0] == name:
            return _number(fields[1])
    return None
