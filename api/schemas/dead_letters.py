"""Dead letters on the wire."""

from datetime import datetime
from typing import Literal
from uuid import UUID

from pydantic import Field

from api.schemas.base import RequestSchema, ResponseSchema
from api.schemas.trials import FailureView

__all__ = ["DeadLetterView", "ReplayRequest", "ReplayView"]


class ReplayRequest(RequestSchema):
    """How to replay."""

    force: bool = Field(
        default=False, description="Once more, though it was replayed before; or though it was discarded."
    )


class ReplayView(ResponseSchema):
    """The trial that runs a dead one again."""

    trial_id: UUID
    job_id: UUID | None = Field(description="Null once it is archived.")
    batch_id: UUID | None = Field(description="Null once it is archived.")
    replay_of: UUID = Field(description="The dead trial, which stays as it is.")


class DeadLetterView(ResponseSchema):
    """A trial that ended in `error` by a failure of class infra."""

    trial_id: UUID
    batch_id: UUID
    job_id: UUID
    job_key: str | None = Field(description="Null once the job is archived.")
    state: Literal["open", "replayed", "discarded"]
    code: str = Field(description="Of the failure: `poison`, or that of the last attempt.")
    failure: FailureView
    attempts: int = Field(description="How many tries it had.")
    nodes_lost: int = Field(description="On how many different nodes its worker was lost.")
    created_at: datetime
    replayed_as: UUID | None = Field(
        description="The trial that ran it again, the latest if there are several."
    )
    replayed_at: datetime | None
    discarded_at: datetime | None
