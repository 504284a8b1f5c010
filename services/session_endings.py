"""Why a live sandbox is over: in the words of the wire, as a failure of its trial, and as the row of its attempt."""

from collections.abc import Sequence
from dataclasses import dataclass

from core.errors import FailureClass, NotSupportedError, RunFailure, SandmillError
from core.jsonb import to_jsonb
from models.states import Outcome
from repositories.attempts import AttemptEnd
from runtimes.base import SandboxStats
from services.attempt_control import AttemptControl, StopReason
from services.outcomes import CANCELLED, Failure
from services.volume_faults import volume_fault

__all__ = [
    "SessionEnd",
    "died",
    "failed_start",
    "silent",
    "to_session_attempt_end",
    "unknown_end",
    "unswitched",
    "wanted_end",
]


@dataclass(frozen=True, slots=True)
class SessionEnd:
    """Why a sandbox is over. reason: as the wire tells it. failure None: its tenant wished it.

    is_elsewhere: only here; one that has not run yet is started on another node.
    """

    reason: str
    message: str | None = None
    failure: Failure | None = None
    is_elsewhere: bool = False


def to_session_attempt_end(
    end: SessionEnd,
    stats: SandboxStats,
    *,
    wall_seconds: float,
    is_removed: bool,
    retry_seconds: float | None,
) -> AttemptEnd:
    """Make the row of the attempt. retry_seconds None: its trial is finished. The rest: see `AttemptEnd`."""
    failure = end.failure or CANCELLED
    usage = {
        "wall_seconds": round(wall_seconds, 3),
        "cpu_seconds": stats.cpu_seconds,
        "memory_peak_bytes": stats.memory_peak_bytes,
        "log_bytes": 0,
    }
    return AttemptEnd(
        outcome=(Outcome.ERROR if end.failure else Outcome.CANCELLED).value,
        reason=end.failure.code if end.failure else end.reason,
        end_reason=end.reason,
        failure=to_jsonb(failure.to_json()),
        steps="[]",
        grade=None,
        usage=to_jsonb(usage),
        rewards=None,
        next_seq=0,
        log_bytes=0,
        truncated_bytes=0,
        is_removed=is_removed,
        retry_seconds=retry_seconds,
    )


def wanted_end(control: AttemptControl) -> SessionEnd | None:
    """Say why an attempt was asked to stop. None: it was not, or is not ours any more."""
    match control.reason:
        case None | StopReason.DISOWNED:
            return None
        case StopReason.SHUTDOWN:
            message = "the node's worker was stopped, and its sandboxes with it"
            return SessionEnd("NODE_STOPPED", message, _infra("worker_shutdown", message), is_elsewhere=True)
        case StopReason.PREEMPT:
            message = "its node is drained, and its sandboxes with it"
            return SessionEnd("NODE_DRAINED", message, _infra("preempted", message), is_elsewhere=True)
        case StopReason.DEADLINE:
            message = "it was not running within its start timeout"
            return SessionEnd("SANDBOX_START_TIMEOUT", message, _infra("start_timeout", message))
        case _:
            return SessionEnd("SANDBOX_DELETED")


def failed_start(error: SandmillError, *, is_new: bool, volumes: Sequence[str] = ()) -> SessionEnd:
    """Say why a start came to nothing, or why an adopted sandbox is not there any more.

    volumes: their names, in the order of the request.
    """
    fault = volume_fault(error, volumes) if is_new else None
    if fault is not None:
        return SessionEnd(*fault, Failure(FailureClass.SPEC, error.code, fault[1]))
    cls = error.failure_class if isinstance(error, RunFailure) else FailureClass.INFRA
    reason = _REASONS.get(error.code, "DOCKER::SANDBOX_START_FAILED") if is_new else "SANDBOX_LOST"
    return SessionEnd(reason, error.message, Failure(cls, error.code, error.message))


def died(exit_code: int | None, message: str, *, is_gone: bool) -> SessionEnd:
    """Say how one ended that nobody had asked to end."""
    text = message or (
        "the sandbox was removed by somebody else"
        if is_gone
        else f"its first process ended{'' if exit_code is None else f' with exit code {exit_code}'}"
    )
    return SessionEnd("CONTAINER_EXITED_ERROR", text, _infra("sandbox_died", text))


def silent() -> SessionEnd:
    """Of a member of a pool that did not answer when somebody was to be given it."""
    text = "it did not answer when a job was to be given it"
    return SessionEnd("POOL_MEMBER_DEAD", text, _infra("sandbox_died", text))


def unswitched(error: SandmillError, *, pauses: bool) -> str:
    """Name, for the wire, what kept a sandbox from standing still or from going on."""
    if isinstance(error, NotSupportedError):
        return "SANDBOX::API_NOT_SUPPORTED"
    return "DOCKER::SANDBOX_PAUSE_FAILED" if pauses else "DOCKER::SANDBOX_RESUME_FAILED"


def unknown_end(error: Exception) -> SessionEnd:
    """Blame what nobody foresaw on ourselves."""
    message = f"{type(error).__name__}: {error}"
    return SessionEnd("SANDBOX::INTERNAL_ERROR", message, _infra("unknown", message))


def _infra(code: str, message: str) -> Failure:
    return Failure(FailureClass.INFRA, code, message)


_PULL = "DOCKER::SANDBOX_IMAGE_PULL_FAILED"
_REASONS = {
    "image_not_found": _PULL,
    "platform_not_found": _PULL,
    "registry_error": _PULL,
    "registry_auth": _PULL,
    "registry_rate_limited": _PULL,
    "registry_tls": _PULL,
    "registry_unreachable": _PULL,
    "image_store_full": _PULL,
    "node_disk_full": "DOCKER::SANDBOX_START_FAILED",
    "spec_invalid": "SANDBOX::INVALID_PARAMETER",
    "create_timeout": "SANDBOX_START_TIMEOUT",
    "entrypoint_failed": "CONTAINER_EXITED_ERROR",
}
"""What the wire calls failures of a start, by our code."""
