"""What execd of a local sandbox is told on its command line about limits."""

from runtimes.base import ResourceLimits, SandboxSpec
from runtimes.bundle import sealing_flags
from runtimes.cgroups import SandboxCgroup
from runtimes.rlimits import lowered

__all__ = ["execd_flags"]


def execd_flags(spec: SandboxSpec, cgroup: SandboxCgroup) -> tuple[str, ...]:
    """Give the flags of one sandbox, but for those that name descriptors. cgroup: what it will be in."""
    return (*_rlimits(spec.limits, cgroup), *_account_limits(spec.limits), *sealing_flags(spec))


def _account_limits(limits: ResourceLimits) -> list[str]:
    """Give execd's flags for what its metrics are measured by."""
    values = {"cpu_millicores": limits.cpu_millicores, "memory_bytes": limits.memory_bytes}
    return [word for name, value in values.items() for word in ("--limit", f"{name}={value}")]


def _rlimits(limits: ResourceLimits, cgroup: SandboxCgroup) -> list[str]:
    """Give execd's flags for the limits every process in the sandbox inherits."""
    values = {"nofile": limits.open_files, "nproc": limits.pids, "core": 0, "fsize": limits.disk_bytes}
    if "memory" not in cgroup.enforced:
        # Coarser: per process, and counting address space that is never touched. Better than nothing.
        values["as"] = limits.memory_bytes
    return [word for name, value in lowered(values).items() for word in ("--rlimit", f"{name}={value}")]
