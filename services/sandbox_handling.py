"""What is the same for the sandbox of an attempt of a job and for a live one: its labels and limits, found, removed."""

import time
from collections.abc import Mapping, Sequence
from uuid import UUID

from core.errors import NodeLostError, RunFailure, RuntimeUnavailableError
from core.logging import get_logger
from repositories.attempts import ClaimedAttempt
from runtimes.base import ResourceLimits, Runtime, SandboxHandle
from services.jobspec import Resources

__all__ = ["REMOVAL_PAUSES", "find_sandbox", "remove_sandbox", "sandbox_labels", "to_limits"]

log = get_logger(__name__)

REMOVAL_PAUSES = (0.2, 1.0)
"""Seconds between tries to remove one."""


def sandbox_labels(claimed: ClaimedAttempt, *, node_id: UUID, session_id: UUID) -> Mapping[str, str]:
    """Give the labels by which sweeps know whose a sandbox is."""
    return {
        "sandmill.trial": str(claimed.trial_id),
        "sandmill.fence": str(claimed.fence),
        "sandmill.node": str(node_id),
        "sandmill.session": str(session_id),
    }


def to_limits(resources: Resources, *, open_files: int | None = None) -> ResourceLimits:
    """Give the limits of a sandbox. open_files None: as many as the runtime gives by itself."""
    others = {} if open_files is None else {"open_files": open_files}
    return ResourceLimits(
        cpu_millicores=resources.cpu_millicores,
        memory_bytes=resources.memory_bytes,
        disk_bytes=resources.disk_bytes,
        pids=resources.pids,
        gpu=resources.gpu,
        **others,
    )


def find_sandbox(runtime: Runtime | None, claimed: ClaimedAttempt) -> SandboxHandle:
    """Find what another worker has made for an attempt. Raises NodeLostError, RuntimeUnavailableError."""
    if runtime is None:
        raise RuntimeUnavailableError(f"this node does not offer the runtime {claimed.runtime} any more")
    name = claimed.sandbox_name
    handle = next((each for each in runtime.list() if each.name == name), None)
    if handle is None:
        raise NodeLostError("its worker went away, and the sandbox with it")
    return handle


def remove_sandbox(
    runtime: Runtime, handle: SandboxHandle, *, pauses: Sequence[float] = REMOVAL_PAUSES
) -> bool:
    """Remove it; False if it will not go now: no reason to throw a verdict away, the worker sweeps later.

    pauses: seconds between the tries, which are one more.
    """
    for pause in (*pauses, 0.0):
        try:
            runtime.remove(handle)
        except RunFailure as error:
            log.exception("sandbox_not_removed", sandbox=handle.name, error=error.message)
            time.sleep(pause)
        else:
            return True
    return False
