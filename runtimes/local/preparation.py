"""What all sandboxes of a local runtime object share, made once."""

import platform
from dataclasses import dataclass
from pathlib import Path

from core.errors import RuntimeUnavailableError
from runtimes.bundle import Bundle, ensure_bundle
from runtimes.local.bwrap import find_bwrap
from runtimes.local.config import LocalConfig
from runtimes.local.executor import Executor
from runtimes.local.host_image import shared_etc
from runtimes.local.launch import BwrapExecutor
from runtimes.local.plan_parts import Sources
from runtimes.local.records import Records
from runtimes.local.seccomp import build_filter, encode
from runtimes.local.spawner import Spawner
from runtimes.local.syscalls import native_table
from runtimes.local.zygote.client import Zygote
from runtimes.local.zygote.rehearsal import rehearsal_order

__all__ = ["Prepared", "has_zygote", "is_host_root", "prepare"]


@dataclass(frozen=True, slots=True)
class Prepared:
    """seccomp: the filter, encoded."""

    records: Records
    executor: Executor
    bundle: Bundle
    seccomp: bytes


def prepare(config: LocalConfig, records: Records, *, as_root: bool) -> Prepared:
    """Make folders, bundle, /etc, filter, and start the executor. Raises RuntimeUnavailableError."""
    table = native_table(platform.machine())
    if table is None:
        message = f"there is no system call list for {platform.machine()}: use the docker runtime"
        raise RuntimeUnavailableError(message)
    bundle = ensure_bundle(config.bundle_dir)
    state = config.state_dir
    (state / "sockets").mkdir(mode=0o700, parents=True, exist_ok=True)
    state.chmod(0o700)
    seccomp = encode(build_filter(table))
    executor = _make_executor(config, bundle, shared_etc(state), seccomp, as_root=as_root)
    return Prepared(records, executor, bundle, seccomp)


def has_zygote(config: LocalConfig, *, as_root: bool) -> bool:
    """Say whether the zygote starts the sandboxes. Raises RuntimeUnavailableError if it was asked for and cannot."""
    if not as_root:
        _refuse_what_needs_root(config)
    return as_root and config.executor != "bwrap"


def is_host_root() -> bool:
    """Say whether root here is root of the host, as far as our user namespace tells."""
    return Path("/proc/self/uid_map").read_text().split()[:2] == ["0", "0"]


def _refuse_what_needs_root(config: LocalConfig) -> None:
    need = f"needs root, and host users from {config.uid_base} on"
    asked = []
    if config.executor == "zygote":
        asked.append(f"executor zygote (SANDMILL_LOCAL_EXECUTOR) {need}: use auto")
    if config.disk == "file":
        asked.append(f"disk file (SANDMILL_LOCAL_DISK) {need}: use memory")
    if asked:
        raise RuntimeUnavailableError("; ".join(asked))


def _make_executor(
    config: LocalConfig, bundle: Bundle, etc: Path, seccomp: bytes, *, as_root: bool
) -> Executor:
    extra = config.host_paths
    if has_zygote(config, as_root=as_root):
        staging = config.state_dir / "root"
        staging.mkdir(mode=0o700, exist_ok=True)
        shown = {str(path): str(path) for path in extra}
        sources = Sources(etc=str(etc), bundle=str(bundle.path), extra=shown)
        meeting = config.state_dir / "zygotes" if config.outlives else None
        rehearsal = rehearsal_order(sources, seccomp, first_id=config.uid_base)
        return Zygote(bundle, sources, staging, rehearsal, meeting=meeting)
    disk = config.state_dir / "disk"
    disk.mkdir(mode=0o700, exist_ok=True)
    spawner = Spawner(find_bwrap(), etc, bundle.path, extra, as_root=as_root)
    return BwrapExecutor(spawner, str(disk), outlives=config.outlives)
