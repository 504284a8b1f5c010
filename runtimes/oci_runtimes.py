"""What starts containers, by its name in the engine's list, and what is different with it."""

from collections.abc import Collection
from dataclasses import dataclass

from core.errors import SpecInvalidError

__all__ = ["DEFAULT_FAMILY", "OciFamily", "check_oci_runtime", "family_of"]


@dataclass(frozen=True, slots=True)
class OciFamily:
    """A kind of OCI runtime.

    shares_kernel: processes of a container are processes of this host, so that we can look at them from outside.
    extra_pids: processes and threads that the runtime itself has in the container's group.
    """

    name: str
    shares_kernel: bool
    extra_pids: int = 0


DEFAULT_FAMILY = OciFamily("runc", shares_kernel=True)

_GVISOR = OciFamily("gvisor", shares_kernel=False, extra_pids=256)
"""Its kernel is a program of some twenty threads, more under load; with ptrace each process inside has one outside."""

_MACHINE = OciFamily("machine", shares_kernel=False, extra_pids=256)

_BEGINNINGS = {
    "runsc": _GVISOR,
    "gvisor": _GVISOR,
    "io.containerd.runsc": _GVISOR,
    "kata": _MACHINE,
    "io.containerd.kata": _MACHINE,
    "firecracker": _MACHINE,
    "io.containerd.firecracker": _MACHINE,
}


def family_of(name: str | None) -> OciFamily:
    """Tell the kind of an OCI runtime by how its name begins; the rest, such as crun, share the kernel."""
    return next(
        (family for start, family in _BEGINNINGS.items() if (name or "").startswith(start)), DEFAULT_FAMILY
    )


def check_oci_runtime(name: str, known: Collection[str]) -> None:
    """Raise SpecInvalidError for an OCI runtime that the engine has not got."""
    if name in known:
        return
    message = (
        f"oci_runtime: the engine of this node has no {name!r}, only {', '.join(sorted(known))}: "
        "add it to `runtimes` in the engine's daemon.json, or choose another"
    )
    raise SpecInvalidError(message, field="oci_runtime")
