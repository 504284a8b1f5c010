"""The one tree of errors.

Each class carries a stable `code` and says whether the same call may work later (`retryable`). HTTP statuses are
given to the families in `api/errors.py` alone. `RunFailure` is the family of a trial's physical failures: it also
carries the failure class that the retry rules read (`jobs.md` 1.4).
"""

from enum import StrEnum

__all__ = [
    "ArchivedError",
    "ArtifactUploadError",
    "BadImageError",
    "ConflictError",
    "CreateTimeoutError",
    "DaemonError",
    "EntrypointFailedError",
    "ExecdUnreachableError",
    "FailureClass",
    "ForbiddenError",
    "IdempotencyConflictError",
    "ImageNotFoundError",
    "ImageStoreFullError",
    "InvalidRequestError",
    "NodeDiskFullError",
    "NotFoundError",
    "NotSupportedError",
    "PayloadTooLargeError",
    "PlatformNotFoundError",
    "QuotaExceededError",
    "RegistryAuthError",
    "RegistryError",
    "RegistryRateLimitedError",
    "RegistryTlsError",
    "RegistryUnreachableError",
    "RunFailure",
    "RuntimeUnavailableError",
    "SandmillError",
    "SettingError",
    "SpecInvalidError",
    "StaleFenceError",
    "UnauthenticatedError",
    "UnavailableError",
]


class FailureClass(StrEnum):
    """Who is to blame for a trial without success; decides on retries."""

    TASK = "task"
    INFRA = "infra"
    SPEC = "spec"
    QUOTA = "quota"
    CANCELLED = "cancelled"


class SandmillError(Exception):
    """Root of all errors this project raises on purpose."""

    code = "internal_error"
    retryable = False

    def __init__(self, message: str, *, field: str | None = None) -> None:
        """Keep the message a person reads and the request field it is about, if any."""
        super().__init__(message)
        self.message = message
        self.field = field


class InvalidRequestError(SandmillError):
    """The caller sent something that can never work; `field` names it."""

    code = "invalid_request"


class PayloadTooLargeError(InvalidRequestError):
    """The body is larger than the limit the message states."""

    code = "payload_too_large"


class UnauthenticatedError(SandmillError):
    """No key, an unknown key or a revoked one: always the same answer."""

    code = "unauthenticated"


class ForbiddenError(SandmillError):
    """The key is valid but not allowed to do this."""

    code = "forbidden"


class NotFoundError(SandmillError):
    """The thing does not exist, or belongs to another tenant: always the same answer."""

    code = "not_found"

    def __init__(self, kind: str, key: object) -> None:
        """kind: noun of the glossary. key: the id the caller gave."""
        super().__init__(f"no {kind} {key}")


class ArchivedError(SandmillError):
    """The thing has gone to the history, with less of it left."""

    code = "archived"

    def __init__(self, kind: str, key: object, batch_id: object) -> None:
        """kind: noun of the glossary. key: the id the caller gave. batch_id: by which the history has it."""
        super().__init__(f"{kind} {key} is archived: see GET /v1/history/batches/{batch_id}")


class ConflictError(SandmillError):
    """The state of the thing does not allow the call."""

    code = "conflict"


class IdempotencyConflictError(ConflictError):
    """The same Idempotency-Key was used before with another body."""

    code = "idempotency_conflict"

    def __init__(self) -> None:
        """Name the header, so that the caller knows what to change."""
        super().__init__(
            "this Idempotency-Key was used with another body: send the same body or a new key",
            field="Idempotency-Key",
        )


class StaleFenceError(ConflictError):
    """The writer no longer owns the attempt: it must stop and kill its sandbox."""

    code = "stale_fence"


class QuotaExceededError(SandmillError):
    """A limit of the tenant is reached; the same call may work later."""

    code = "quota_exceeded"
    retryable = True


class NotSupportedError(SandmillError):
    """Known, but not done by this runtime or release."""

    code = "not_supported"


class SettingError(SandmillError):
    """A variable of the environment is missing or wrong; the message names it and says what it may be."""

    code = "setting_invalid"


class UnavailableError(SandmillError):
    """A service this one stands on is away; the same call may work soon."""

    code = "unavailable"
    retryable = True


class RunFailure(SandmillError):  # noqa: N818 -- "failure" is the field's word for this family
    """A trial could not go on; carries the failure class of `jobs.md` 1.4.

    retry_after_seconds: whoever refused asked to be left alone for so long; None: nobody did.
    """

    code = "unknown"
    failure_class = FailureClass.INFRA
    retryable = True
    retry_after_seconds: float | None = None


class RuntimeUnavailableError(RunFailure):
    """The host cannot run this runtime; the message says what to do about it."""

    code = "runtime_unavailable"


class DaemonError(RunFailure):
    """The container engine or the launcher of the sandbox failed."""

    code = "daemon_error"


class CreateTimeoutError(RunFailure):
    """The sandbox was not ready within its start timeout."""

    code = "create_timeout"


class ExecdUnreachableError(RunFailure):
    """execd in the sandbox does not answer, or its answer broke off."""

    code = "execd_unreachable"


class EntrypointFailedError(RunFailure):
    """The program that a live sandbox is for failed as soon as it was started."""

    code = "entrypoint_failed"
    failure_class = FailureClass.SPEC
    retryable = False

    def __init__(self, message: str, *, output: bytes, total_bytes: int, ended: str) -> None:
        """output: the end of what it wrote; total_bytes: all of that. ended: how, in words."""
        super().__init__(message)
        self.output = output
        self.total_bytes = total_bytes
        self.ended = ended


class NodeLostError(RunFailure):
    """The worker that ran an attempt went away, and the next one cannot go on with it."""

    code = "node_lost"


class ArtifactUploadError(RunFailure):
    """A collected file could not be stored."""

    code = "artifact_upload"


class ImageNotFoundError(RunFailure):
    """No such image for this runtime."""

    code = "image_not_found"
    failure_class = FailureClass.SPEC
    retryable = False


class BadImageError(RunFailure):
    """The image exists but cannot be started."""

    code = "bad_image"
    failure_class = FailureClass.SPEC
    retryable = False


class PlatformNotFoundError(ImageNotFoundError):
    """The image exists, but not for the platform asked for; the message names those there are."""

    code = "platform_not_found"


class ImageStoreFullError(RunFailure):
    """The disk of the image store has no room for the image; nothing of it was kept."""

    code = "image_store_full"

    def __init__(self, *, free_bytes: int, needed_bytes: int) -> None:
        """needed_bytes: with the reserve that stays free."""
        super().__init__(
            f"the disk of the image store is full: {free_bytes >> 20} MiB are free, {needed_bytes >> 20} MiB are "
            "needed; remove images, or free some space"
        )


class NodeDiskFullError(RunFailure):
    """The disk of the container engine has no room left; the message says for what."""

    code = "node_disk_full"


class RegistryError(RunFailure):
    """A registry answered in a way that gives no image; the message has its words."""

    code = "registry_error"
    retryable = False


class RegistryAuthError(RegistryError):
    """The registry wants credentials, or refuses those it was given."""

    code = "registry_auth"
    failure_class = FailureClass.SPEC


class RegistryRateLimitedError(RegistryError):
    """The registry was asked too often; the same call may work later."""

    code = "registry_rate_limited"
    retryable = True


class RegistryTlsError(RegistryError):
    """The registry cannot be talked to safely: its certificate is not one we trust, or it has none."""

    code = "registry_tls"


class RegistryUnreachableError(RegistryError):
    """The registry does not answer; the same call may work soon."""

    code = "registry_unreachable"
    retryable = True


class SpecInvalidError(RunFailure):
    """The job asks for something impossible that only the node could find out."""

    code = "spec_invalid"
    failure_class = FailureClass.SPEC
    retryable = False


class VolumeMissingError(SpecInvalidError):
    """There is no named volume of that name on the node, and the job says that none is to be made."""
