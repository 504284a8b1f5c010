"""What the wire calls a volume that a node could not give as it was asked for."""

import re
from collections.abc import Sequence

from core.errors import SandmillError, SpecInvalidError, VolumeMissingError

__all__ = ["volume_fault"]

_FIELD = re.compile(r"volumes\[(?P<name>.*)\]\.(?P<part>\w+)")
_PLACES = {
    "claim": "pvc.claimName",
    "host_path": "host.path",
    "mount_path": "mountPath",
    "sub_path": "subPath",
}
_REASONS = {
    "host_path": "VOLUME::HOST_PATH_NOT_ALLOWED",
    "mount_path": "VOLUME::INVALID_MOUNT_PATH",
    "sub_path": "VOLUME::INVALID_SUB_PATH",
}


def volume_fault(error: SandmillError, volumes: Sequence[str]) -> tuple[str, str] | None:
    """Give (reason, message that names the field) where a failed start blames a volume. None: it does not.

    volumes: their names, in the order of the request.
    """
    found = _FIELD.fullmatch(error.field or "") if isinstance(error, SpecInvalidError) else None
    if found is None or found["name"] not in volumes or found["part"] not in _PLACES:
        return None
    place = f"volumes[{volumes.index(found['name'])}].{_PLACES[found['part']]}"
    reason = _REASONS.get(found["part"], "SANDBOX::INVALID_PARAMETER")
    if isinstance(error, VolumeMissingError):
        reason = "VOLUME::PVC_NOT_FOUND"
    return reason, f"{place}: {error.message.removeprefix(f'{error.field}: ')}"
