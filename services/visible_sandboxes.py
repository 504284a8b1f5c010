"""What a tenant is told of its own sandboxes that are over."""

from datetime import UTC, datetime
from uuid import UUID

from models.live_sandboxes import WireState
from repositories.live_sandboxes import SandboxRow
from services.sandbox_errors import SandboxMissingError, SandboxOverError

__all__ = ["visible"]


def visible(row: SandboxRow | None, sandbox_id: UUID) -> SandboxRow:
    """Give a sandbox of the caller that the wire shows. Raises SandboxMissingError; of one that is over, why it is."""
    if row is None:
        raise SandboxMissingError(sandbox_id)
    if row.hidden_at is not None:
        raise SandboxOverError(
            sandbox_id, f"sandbox {sandbox_id} has ended, it is {row.state}: {_end_of(row)}"
        )
    return row


def _end_of(row: SandboxRow) -> str:
    """Say how one ended, when, and by whom."""
    reason = row.end_reason or row.state_reason
    why = ": ".join(part for part in (reason, row.state_message) if part)
    actor = f"by {row.ended_by or 'nobody known'}"
    if row.state == WireState.FAILED:
        how = f"found {actor} at {_spelled_time(row.ended_at)}"
    elif reason == "SANDBOX_EXPIRED":
        how = f"expired at {_spelled_time(row.expires_at)}, ended {actor}"
    else:
        verb = "deleted" if reason == "SANDBOX_DELETED" else "ended"
        how = f"{verb} {actor} at {_spelled_time(row.ended_at)}"
    return f"{how} ({why})"


def _spelled_time(at: datetime | None) -> str:
    if at is None:
        return "a time that nobody noted"
    return at.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
