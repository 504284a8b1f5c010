"""Planning a sandbox of an image from the store."""

from core.errors import SpecInvalidError
from runtimes.base import SandboxSpec
from runtimes.bundle import BUNDLE_MOUNT, without_settings
from runtimes.local.images import ImageConfig
from runtimes.local.plan import Bind, Directory, Mount, Overlay, Plan, TextFile
from runtimes.local.plan_parts import (
    DEFAULT_PATH,
    Sources,
    checked_workdir,
    environment,
    is_below,
    kernel_mounts,
)
from runtimes.local.roots import Root

__all__ = ["build_stored_plan"]

_NO_WORKDIR = {"/dev", "/proc", BUNDLE_MOUNT}

_HOSTS = "127.0.0.1 localhost sandbox\n::1 localhost\n"


def build_stored_plan(
    spec: SandboxSpec, root: Root, sources: Sources, argv: tuple[str, ...], seccomp: bytes | None
) -> Plan:
    """Plan a sandbox on the layers of a root. Raises SpecInvalidError for a workdir or environment it cannot have.

    All of it can be written, as far as its user may: what is written lands above the layers.
    """
    config = root.config or ImageConfig()
    workdir = checked_workdir(spec.workdir or config.workdir or "/")
    if is_below(workdir, _NO_WORKDIR):
        message = f"workdir {workdir} cannot be made: it belongs to the kernel or to execd"
        raise SpecInvalidError(message, field="workdir")
    mounts: list[Mount] = [
        Overlay("/", root.layers, root.owners, spec.limits.disk_bytes),
        Bind(sources.bundle, BUNDLE_MOUNT),
        # Of the build's network, if the image has them at all.
        TextFile("/etc/hosts", _HOSTS),
        TextFile("/etc/hostname", "sandbox\n"),
        # No name server: a look-up fails at once instead of waiting for one that no sandbox can reach.
        TextFile("/etc/resolv.conf", ""),
        Directory("/tmp", 0o1777),  # noqa: S108 -- the sandbox's own
        *kernel_mounts(spec.limits, sources),
        Directory(workdir),
    ]
    base = {"PATH": DEFAULT_PATH, "HOME": root.home, **without_settings(config.env), "PWD": workdir}
    return Plan(
        mounts=tuple(mounts),
        argv=argv,
        workdir=workdir,
        environment=environment(base, spec.env),
        uid=root.uid,
        gid=root.gid,
        seccomp=seccomp,
    )
