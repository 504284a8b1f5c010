"""What the wire protocol calls its errors; their families decide the HTTP status. Source: section 1.17 of it."""

from collections.abc import Sequence
from uuid import UUID

from core.errors import (
    ConflictError,
    InvalidRequestError,
    NotFoundError,
    NotSupportedError,
    QuotaExceededError,
    SandmillError,
)

__all__ = [
    "EndpointNotReadyError",
    "PoolExhaustedError",
    "PoolMissingError",
    "SandboxMissingError",
    "SandboxOverError",
    "SandboxStateError",
    "SnapshotMissingError",
    "SnapshotStateError",
    "WireConflictError",
    "WireFailureError",
    "WireInvalidError",
    "WireUnsupportedError",
]


class SandboxMissingError(NotFoundError):
    """No such sandbox, or of another tenant: always the same answer."""

    code = "DOCKER::SANDBOX_NOT_FOUND"

    def __init__(self, sandbox_id: object) -> None:
        """sandbox_id: as the caller gave it."""
        super().__init__("sandbox", sandbox_id)


class SandboxOverError(SandboxMissingError):
    """It has ended; for whoever it belonged to."""

    def __init__(self, sandbox_id: object, message: str) -> None:
        """message: what has become of it."""
        super().__init__(sandbox_id)
        self.message = message


class SnapshotMissingError(NotFoundError):
    """No such snapshot, or of another tenant."""

    code = "SNAPSHOT::NOT_FOUND"

    def __init__(self, snapshot_id: object) -> None:
        """snapshot_id: as the caller gave it."""
        super().__init__("snapshot", snapshot_id)


class PoolMissingError(NotFoundError):
    """No such pool, or of another tenant."""

    code = "KUBERNETES::POOL_NOT_FOUND"

    def __init__(self, name: object) -> None:
        """name: as the caller gave it."""
        super().__init__("pool", name)


class PoolExhaustedError(QuotaExceededError):
    """None of the pool's sandboxes is free, and there are as many as there may be."""

    code = "KUBERNETES::POOL_CAPACITY_EXHAUSTED"

    def __init__(self, pool: str, ids: Sequence[UUID]) -> None:
        """pool: as the caller named it. ids: of all pools that fit."""
        name = "the pools that fit" if pool == "*" else f"the pool {pool}"
        super().__init__(
            f"no sandbox of {name} is free, and there may be no more of them: those there are, are in use or still "
            "start; try again, raise poolMax, or leave extensions.poolRef out"
        )
        self.pools = tuple(ids)


class EndpointNotReadyError(NotFoundError):
    """The sandbox has not started yet. Of all refusals, official clients repeat this one only."""

    code = "KUBERNETES::POD_IP_NOT_AVAILABLE"

    def __init__(self, sandbox_id: object, state: str) -> None:
        """state: where it is."""
        super().__init__("endpoint of sandbox", f"{sandbox_id} yet: it is {state}")


class WireConflictError(ConflictError):
    """The state of the thing does not allow the call."""

    def __init__(self, code: str, message: str) -> None:
        """code: of the catalogue."""
        super().__init__(message)
        self.code = code


class SandboxStateError(WireConflictError):
    """The sandbox is in another state than the call needs."""


class SnapshotStateError(WireConflictError):
    """The snapshot is in another state than the call needs."""


class WireInvalidError(InvalidRequestError):
    """The request can never work."""

    def __init__(self, code: str, message: str, *, field: str | None = None) -> None:
        """code: of the catalogue."""
        super().__init__(message if field is None else f"{field}: {message}", field=field)
        self.code = code


class WireUnsupportedError(NotSupportedError):
    """Known, but not done here."""

    def __init__(self, code: str, message: str) -> None:
        """code: of the catalogue."""
        super().__init__(message)
        self.code = code


class WireFailureError(SandmillError):
    """Something on our side, or in the sandbox's image, failed."""

    def __init__(self, code: str, message: str) -> None:
        """code: of the catalogue."""
        super().__init__(message)
        self.code = code
