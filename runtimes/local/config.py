"""Settings of the `local` runtime."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["LocalConfig"]


class LocalConfig(BaseModel):
    """What a node says about its `local` runtime.

    state_dir: records and sockets of the sandboxes; made with mode 0700, never shared between nodes.
    bundle_dir: where the execd bundle is built once and found again.
    uid_base: as root, sandbox n has the 65,536 host users from uid_base + 65,536 n on. Above the ids of accounts and
    engines; ids of 2^31 and more, which some tools take for negative, are not used.
    executor: what starts sandboxes. zygote: forks a process that has execd in memory, for root. bwrap: for everyone.
    auto: the zygote where it can be.
    disk: where what sandboxes write lives. memory: quick, and counts as their memory. file: a sparse file below
    state_dir for each; takes 0.1 s longer to start, needs mkfs.ext4 and loop devices, and the zygote.
    outlives: whether sandboxes go on when the process that made them ends, however it does. The next one finds them by
    `list` and can use and remove them; nobody else will.
    cgroup_parent: one path component below each hierarchy.
    host_paths: folders of the host shown read-only at the same place in addition to /usr, e.g. a Python outside of it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    type: Literal["local"] = "local"
    state_dir: Path
    bundle_dir: Path
    uid_base: int = Field(default=720_000, ge=1_000, le=2_000_000_000)
    executor: Literal["auto", "zygote", "bwrap"] = "auto"
    disk: Literal["memory", "file"] = "memory"
    outlives: bool = False
    cgroup_parent: str = Field(default="sandmill", pattern=r"^[a-z][a-z0-9_-]{0,31}$")
    host_paths: tuple[Path, ...] = ()
