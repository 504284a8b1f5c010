"""What webhooks tell of."""

from enum import StrEnum

__all__ = ["WebhookEvent"]


class WebhookEvent(StrEnum):
    """Triggers of the database write a message of each; `docs/webhooks.md` shows them."""

    TRIAL_FINISHED = "trial.finished"
    BATCH_FINISHED = "batch.finished"
