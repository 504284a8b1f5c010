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
    as its own, the whole machine.
    """

    def __init__(
        self,
        descriptors: Mapping[str, int] | None = None,
        limits: Mapping[str, int] | None = None,
        *,
        cgroup_folder: str = "/sys/fs/cgroup",
        proc_folder: str = "/proc",
    ) -> None:
        """descriptors: by ACCOUNT_NAMES, open for reading, of control group files of version 1 or 2.

        limits: by LIMIT_NAMES.
        """
        self._descriptors = dict(descriptors or {})
        self._limits = dict(limits or {})
        self._cgroup = cgroup_folder
        self._proc = proc_folder

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
        """Bytes in use, cached file content included; never more than the total."""
        used = _number(self._read("memory_usage"))
        if used is None:
            used = self._machine_memory("MemTotal") - self._machine_memory("MemAvailable")
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
        return self._machine_cpu_seconds()

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

    def _machine_cpu_seconds(self) -> float:
        line, _, _ = (read_small_file(f"{self._proc}/stat", max_bytes=_MAX_BYTES) or b"").partition(b"\n")
        ticks = [_number(field) or 0 for field in line.split()[1:9]]
        # user nice system idle iowait irq softirq steal: idle and iowait are no use of a processor, steal not ours.
        return (sum(ticks[:3]) + sum(ticks[5:7])) / os.sysconf("SC_CLK_TCK")


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
