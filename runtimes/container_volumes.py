"""What a container sees of outside: named volumes of the engine, and allowed folders of the host."""

import errno
import fnmatch
import hashlib
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from docker.errors import APIError, NotFound

from core.errors import DaemonError, NodeDiskFullError, SpecInvalidError, VolumeMissingError
from runtimes import linux
from runtimes.base import SandboxSpec, VolumeClaim, VolumeMount
from runtimes.engine import Engine
from runtimes.engine_errors import daemon_error
from runtimes.host_folders import HostFolder, open_host_path, open_sub_path

__all__ = ["NODE_LABEL", "PreparedMounts", "collect_volumes", "prepared_mounts", "remove_volumes"]

_MANAGED_LABEL = "sandmill.volume"
"""On all volumes this runtime made. No other is ever removed."""

_OWNER_LABEL = "sandmill.volume-of"
"""The sandbox with which a volume goes."""

NODE_LABEL = "sandmill.node"

_LONGEST_NAME = 200
"""The engine makes a folder of the name, and 255 is what file systems take."""


@dataclass(slots=True)
class PreparedMounts:
    """The mounts of one container. settings: for the engine. removed_with_it: names of volumes.

    identities: by path in the sandbox, what has to be there in the end.
    """

    settings: list[dict[str, Any]] = field(default_factory=list)
    removed_with_it: list[str] = field(default_factory=list)
    identities: dict[str, tuple[int, int]] = field(default_factory=dict)

    def check(self, pid: int) -> None:
        """Look whether a container sees what was meant. Raises SpecInvalidError.

        The engine takes paths, on which another sandbox that shares the folder may have put a link in between; and an
        image may have a link where the mount was to be.
        """
        if not self.identities:
            return
        root = os.open(f"/proc/{pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for path, identity in self.identities.items():
                if _identity_below(root, path) != identity:
                    message = f"volumes: something else came to be at {path} than was asked for; try again"
                    raise SpecInvalidError(message, field="volumes")
        finally:
            os.close(root)


@contextmanager
def prepared_mounts(
    engine: Engine,
    spec: SandboxSpec,
    owner: tuple[int, int],
    *,
    allowed_paths: Sequence[str],
    allowed_volumes: Sequence[str],
) -> Iterator[PreparedMounts]:
    """Make and find what a sandbox asks for. What was made for it alone goes again if the block raises.

    owner: (uid, gid) of folders that are made. allowed_volumes: patterns of names that others made.
    Raises SpecInvalidError, and kinds of RunFailure.
    """
    mounts = PreparedMounts()
    with ExitStack() as held:
        try:
            for volume in spec.volumes:
                if volume.claim is None:
                    folder = _host_folder(volume, allowed_paths, owner)
                    _add_folder(mounts, volume, held.enter_context(folder))
                    continue
                claim = replace(volume.claim, name=_name_of(volume.claim, allowed_volumes))
                facts = _volume_of(engine, volume, claim, spec, owner)
                _check_access(facts, volume, claim, allowed_volumes)
                if (facts.get("Labels") or {}).get(_OWNER_LABEL) == spec.name:
                    mounts.removed_with_it.append(claim.name)
                if volume.sub_path is None:
                    mounts.settings.append(_volume_setting(volume, claim))
                else:
                    _add_folder(mounts, volume, held.enter_context(_folder_in(volume, facts, owner)))
            yield mounts
        except BaseException:
            remove_volumes(engine, mounts.removed_with_it)
            raise


def remove_volumes(engine: Engine, names: Sequence[str]) -> bool:
    """Remove volumes that this runtime made; False if one would not go. Another sandbox may still use one."""
    is_done = True
    for name in names:
        try:
            engine.remove_volume(name)
        except NotFound:
            continue
        except APIError:
            is_done = False
    return is_done


def collect_volumes(engine: Engine, node: str, names: Collection[str]) -> tuple[int, int]:
    """Remove volumes of this node that were to go with their sandboxes, which have gone: (removed, left).

    node: id in their labels. names: of all sandboxes there are, or are being made.
    """
    labels = [f"{_MANAGED_LABEL}", f"{NODE_LABEL}={node}"]
    found = engine.volumes(filters={"label": labels})["Volumes"] or ()
    owners = {str(volume["Name"]): (volume["Labels"] or {}).get(_OWNER_LABEL) for volume in found}
    orphans = [name for name, owner in owners.items() if owner and owner not in names]
    left = sum(not remove_volumes(engine, [name]) for name in orphans)
    return len(orphans) - left, left


def _name_of(claim: VolumeClaim, allowed: Sequence[str]) -> str:
    """Give the engine's name for a volume: those that an operator allows belong to all, others to their owner."""
    if not claim.owner or _is_allowed(claim.name, allowed):
        return claim.name
    name = claim.name if len(claim.name) <= _LONGEST_NAME else hashlib.sha256(claim.name.encode()).hexdigest()
    return f"sandmill-{hashlib.sha256(claim.owner.encode()).hexdigest()[:16]}-{name}"


def _is_allowed(name: str, allowed: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in allowed)


def _volume_of(
    engine: Engine, volume: VolumeMount, claim: VolumeClaim, spec: SandboxSpec, owner: tuple[int, int]
) -> Mapping[str, Any]:
    """Find a named volume, or make it. claim: with the engine's name, which is not told to who asks for another."""
    try:
        facts: Mapping[str, Any] = engine.inspect_volume(claim.name)
    except NotFound:
        if not claim.create_if_missing:
            field = f"volumes[{volume.name}].claim"
            message = f"there is no volume {_asked_for(volume)!r} on this node, and none is to be made"
            raise VolumeMissingError(f"{field}: {message}", field=field) from None
        labels = {_MANAGED_LABEL: "managed"}
        if NODE_LABEL in spec.labels:
            labels[NODE_LABEL] = spec.labels[NODE_LABEL]
        if claim.delete_with_sandbox:
            labels[_OWNER_LABEL] = spec.name
        try:
            facts = engine.create_volume(claim.name, labels=labels)
        except APIError as error:
            raise daemon_error(f"volume {claim.name!r} could not be made", error) from error
        with _translated(volume):
            if owner[0] and facts.get("Driver") == "local":
                os.chown(facts["Mountpoint"], *owner)
    except APIError as error:
        raise daemon_error(f"volume {claim.name!r} could not be looked at", error) from error
    return facts


def _asked_for(volume: VolumeMount) -> str:
    """Give the name of a named volume as it was asked for."""
    return "" if volume.claim is None else volume.claim.name


def _check_access(
    facts: Mapping[str, Any], volume: VolumeMount, claim: VolumeClaim, allowed: Sequence[str]
) -> None:
    """Refuse volumes that are none of the sandboxes' business: of a database on the same engine, say."""
    is_ours = _MANAGED_LABEL in (facts.get("Labels") or {})
    if not is_ours and not _is_allowed(claim.name, allowed):
        message = (
            f"volume {_asked_for(volume)!r} was not made by sandboxes: an operator may allow it by its name"
        )
        volume.refuse("claim", message)


def _volume_setting(volume: VolumeMount, claim: VolumeClaim) -> dict[str, Any]:
    return {
        "Type": "volume",
        "Source": claim.name,
        "Target": volume.mount_path,
        "ReadOnly": volume.read_only,
    }


def _folder_in(volume: VolumeMount, facts: Mapping[str, Any], owner: tuple[int, int]) -> HostFolder:
    """Open the part of a volume that is asked for."""
    if facts.get("Driver") != "local" or facts.get("Options"):
        driver = facts.get("Driver")
        volume.refuse(
            "sub_path", f"parts of a volume of driver {driver!r} cannot be shown, only of plain local ones"
        )
    with _translated(volume), HostFolder(os.open(facts["Mountpoint"], os.O_PATH | os.O_CLOEXEC)) as top:
        return open_sub_path(volume, top, volume.sub_path or ".", owner)


def _host_folder(volume: VolumeMount, allowed: Sequence[str], owner: tuple[int, int]) -> HostFolder:
    with _translated(volume):
        found = open_host_path(volume, volume.host_path or "", allowed, owner)
        if volume.sub_path is None:
            return found
        with found:
            return open_sub_path(volume, found, volume.sub_path, owner)


def _add_folder(mounts: PreparedMounts, volume: VolumeMount, folder: HostFolder) -> None:
    mounts.settings.append(
        {
            "Type": "bind",
            "Source": folder.path,
            "Target": volume.mount_path,
            "ReadOnly": volume.read_only,
            # What is mounted below it is not asked for, and nothing the sandbox does comes back. In its own folder,
            # where the volumes are, the engine takes rslave alone, and elsewhere that needs a mount of its own.
            "BindOptions": {
                "Propagation": "rprivate" if volume.claim is None else "rslave",
                "NonRecursive": True,
            },
        }
    )
    mounts.identities[volume.mount_path] = folder.identity


@contextmanager
def _translated(volume: VolumeMount) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        what = f"volumes[{volume.name}]: {volume.host_path or volume.claim} cannot be shown: {error.strerror}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NodeDiskFullError(what) from error
        raise DaemonError(what) from error


def _identity_below(root: int, path: str) -> tuple[int, int] | None:
    with suppress(OSError), HostFolder(linux.open_below(root, path, os.O_PATH, as_root=True)) as found:
        return found.identity
    return None
