"""The examples of the OpenAPI document are read with the classes that write the real answers."""

import json

import pytest
from pydantic import TypeAdapter

from api.openapi_examples import EXAMPLES
from api.routes.health import HealthView, VersionView
from api.schemas.admin import AdminEventView, KeyView, LeaderView, NewKeyView, NodeView, QueueView, TenantView
from api.schemas.batches import (
    BatchView,
    CancelView,
    JobDetail,
    JobView,
    PauseView,
    RegradeView,
    ResumeView,
    RetryView,
    SubmittedBatchView,
    SubmittedJobView,
)
from api.schemas.dead_letters import DeadLetterView, ReplayView
from api.schemas.errors import ErrorView
from api.schemas.events import EventPageView
from api.schemas.history import HistoryBatchView, HistoryTrialView
from api.schemas.logs import BlobView, LogPageView
from api.schemas.pages import Page
from api.schemas.schedules import FireView, ScheduleView
from api.schemas.trials import ArtifactView, AttemptView, TrialDetailView, TrialView
from api.schemas.usage import UsageView
from api.schemas.webhooks import WebhookDeliveryView, WebhookSecretView, WebhookView
from tests.support.launching import REPOSITORY

MODELS = {
    "AttemptView": AttemptView,
    "BatchView": BatchView,
    "BlobView": BlobView,
    "CancelView": CancelView,
    "DeadLetterView": DeadLetterView,
    "ErrorView": ErrorView,
    "EventPageView": EventPageView,
    "PauseView": PauseView,
    "RegradeView": RegradeView,
    "ResumeView": ResumeView,
    "RetryView": RetryView,
    "HealthView": HealthView,
    "JobDetail": JobDetail,
    "KeyView": KeyView,
    "LeaderView": LeaderView,
    "LogPageView": LogPageView,
    "NewKeyView": NewKeyView,
    "NodeView": NodeView,
    "Page_AdminEventView_": Page[AdminEventView],
    "Page_KeyView_": Page[KeyView],
    "Page_NodeView_": Page[NodeView],
    "Page_QueueView_": Page[QueueView],
    "Page_TenantView_": Page[TenantView],
    "QueueView": QueueView,
    "SubmittedBatchView": SubmittedBatchView,
    "SubmittedJobView": SubmittedJobView,
    "TenantView": TenantView,
    "UsageView": UsageView,
    "Page_ArtifactView_": Page[ArtifactView],
    "Page_BatchView_": Page[BatchView],
    "Page_DeadLetterView_": Page[DeadLetterView],
    "Page_JobView_": Page[JobView],
    "Page_TrialView_": Page[TrialView],
    "ReplayView": ReplayView,
    "HistoryBatchView": HistoryBatchView,
    "Page_HistoryTrialView_": Page[HistoryTrialView],
    "Page_FireView_": Page[FireView],
    "Page_ScheduleView_": Page[ScheduleView],
    "ScheduleView": ScheduleView,
    "Page_WebhookDeliveryView_": Page[WebhookDeliveryView],
    "Page_WebhookView_": Page[WebhookView],
    "TrialDetailView": TrialDetailView,
    "VersionView": VersionView,
    "WebhookDeliveryView": WebhookDeliveryView,
    "WebhookSecretView": WebhookSecretView,
    "WebhookView": WebhookView,
}


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_example_is_a_real_answer(name: str) -> None:
    adapter = TypeAdapter(MODELS[name])
    value = adapter.validate_json(json.dumps(EXAMPLES[name]))
    written = json.loads(adapter.dump_json(value, by_alias=True))
    assert written == EXAMPLES[name]


def test_every_body_of_every_operation_has_an_example() -> None:
    document = json.loads((REPOSITORY / "specs/openapi.json").read_text())
    missing = [
        (method, path, media_type)
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
        for holder in (*operation["responses"].values(), operation.get("requestBody", {}))
        for media_type, body in holder.get("content", {}).items()
        if not body.keys() & {"example", "examples"} and body.get("schema")
    ]
    assert missing == []
