"""The order that a zygote carries out once for itself before it takes any: a sandbox like most."""

from runtimes.base import ResourceLimits, SandboxSpec
from runtimes.bundle import sealing_flags
from runtimes.local.host_image import HOST_IMAGE, build_plan
from runtimes.local.plan_parts import Sources
from runtimes.local.roots import HOST_ROOT
from runtimes.local.zygote.orders import LISTENER, MESSAGES, Disk, Order

__all__ = ["rehearsal_order"]

_LIMITS = ResourceLimits(cpu_millicores=1000, memory_bytes=64 << 20, disk_bytes=1 << 20, pids=64)


def rehearsal_order(sources: Sources, seccomp: bytes, *, first_id: int) -> Order:
    """Give the order. seccomp: encoded filter. first_id: host id of 0 inside."""
    name = "sm-rehearsal"
    spec = SandboxSpec(name=name, image=HOST_IMAGE, limits=_LIMITS)
    flags = ("--rlimit", "core=0", "--limit", f"memory_bytes={_LIMITS.memory_bytes}", *sealing_flags(spec))
    plan = build_plan(spec, HOST_ROOT, sources, (), seccomp)
    return Order(plan, Disk(name), first_id, (LISTENER, MESSAGES), flags)
