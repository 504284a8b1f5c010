"""Client of Sandmill, which runs untrusted code in sandboxes at any scale.

from sandmill import Client, Job, Step

with Client() as client:                     # SANDMILL_API_URL, SANDMILL_API_KEY
    job = client.submit_job(Job(key="hello", image="host", steps=[Step("run", "echo hello")]))
    print(client.wait(job.batch_id).trials.by_outcome)
"""

from sandmill.batches import BatchInfo, Cancellation, JobInfo, PauseResult, TrialCounts
from sandmill.client import Client
from sandmill.dead_letters import DeadLetter, Replay
from sandmill.errors import (
    ArchivedError,
    ConflictError,
    ConnectionLostError,
    ErrorDetail,
    ForbiddenError,
    IdempotencyConflictError,
    InvalidRequestError,
    NotFoundError,
    NotSupportedError,
    PayloadTooLargeError,
    ProtocolError,
    QuotaExceededError,
    SandmillError,
    TooManyFailuresError,
    UnauthenticatedError,
    UnavailableError,
    WaitTimeoutError,
)
from sandmill.events import BatchEvent
from sandmill.history import ArchivedBatch, ArchivedTrial
from sandmill.hooks import Schedule, ScheduleFire, Webhook, WebhookDelivery
from sandmill.jobs import (
    Artifact,
    Concurrency,
    ExitCodeVerdict,
    Input,
    Job,
    JobDefaults,
    JunitVerdict,
    LogVerdict,
    Need,
    PatchStep,
    Placement,
    Resources,
    Retry,
    RetryRule,
    RewardVerdict,
    Step,
    Timeouts,
    Trials,
    Verdict,
)
from sandmill.logs import LogStream
from sandmill.outputs import ArtifactInfo, LogChunk
from sandmill.retry import RetryPolicy
from sandmill.trials import AttemptInfo, Failure, StepInfo, TestSet, TestsInfo, TrialDetail, TrialInfo

__all__ = [
    "ArchivedBatch",
    "ArchivedError",
    "ArchivedTrial",
    "Artifact",
    "ArtifactInfo",
    "AttemptInfo",
    "BatchEvent",
    "BatchInfo",
    "Cancellation",
    "Client",
    "Concurrency",
    "ConflictError",
    "ConnectionLostError",
    "DeadLetter",
    "ErrorDetail",
    "ExitCodeVerdict",
    "Failure",
    "ForbiddenError",
    "IdempotencyConflictError",
    "Input",
    "InvalidRequestError",
    "Job",
    "JobDefaults",
    "JobInfo",
    "JunitVerdict",
    "LogChunk",
    "LogStream",
    "LogVerdict",
    "Need",
    "NotFoundError",
    "NotSupportedError",
    "PatchStep",
    "PauseResult",
    "PayloadTooLargeError",
    "Placement",
    "ProtocolError",
    "QuotaExceededError",
    "Replay",
    "Resources",
    "Retry",
    "RetryPolicy",
    "RetryRule",
    "RewardVerdict",
    "SandmillError",
    "Schedule",
    "ScheduleFire",
    "Step",
    "StepInfo",
    "TestSet",
    "TestsInfo",
    "Timeouts",
    "TooManyFailuresError",
    "TrialCounts",
    "TrialDetail",
    "TrialInfo",
    "Trials",
    "UnauthenticatedError",
    "UnavailableError",
    "Verdict",
    "WaitTimeoutError",
    "Webhook",
    "WebhookDelivery",
]
