import json

import httpx
import pytest

from api.openapi_examples import EXAMPLES
from sandmill import ArchivedError, Job, Step
from tests.support.wire import Server, make_batch

JOB = Job(key="j", image="host", steps=[Step("run", "true")])


def test_webhook_comes_with_its_secret_once() -> None:
    server = Server(
        httpx.Response(201, json=EXAMPLES["WebhookSecretView"]),
        httpx.Response(200, json=EXAMPLES["Page_WebhookView_"]),
    )
    made = server.client.create_webhook("ci", "https://ci.example.org/hooks", events=["trial.finished"])
    assert made.secret == EXAMPLES["WebhookSecretView"]["secret"]
    assert json.loads(server.requests[0].content) == {
        "name": "ci",
        "url": "https://ci.example.org/hooks",
        "events": ["trial.finished"],
    }
    assert [(hook.name, hook.secret) for hook in server.client.iter_webhooks()] == [("ci", None)]


def test_schedule_sends_its_jobs_as_a_batch() -> None:
    server = Server(
        httpx.Response(201, json=EXAMPLES["ScheduleView"]),
        httpx.Response(200, json=EXAMPLES["Page_ScheduleView_"]),
    )
    made = server.client.create_schedule(
        "nightly", "0 3 * * *", [JOB], timezone="Europe/Berlin", overlap="skip"
    )
    assert (made.name, made.paused_at) == ("nightly", None)
    sent = json.loads(server.requests[0].content)
    assert sent["batch"] == {"name": "nightly", "jobs": [JOB.to_json()]}
    assert (sent["timezone"], sent["catch_up"], sent["overlap"]) == ("Europe/Berlin", "none", "skip")
    assert [schedule.cron for schedule in server.client.iter_schedules()] == ["0 3 * * *"]


def test_batch_may_name_a_receiver() -> None:
    server = Server(httpx.Response(202, json=make_batch()))
    hook = {"webhook": {"url": "https://a.example", "secret_ref": "ci"}}
    server.client.submit_batch([JOB], on_complete=hook)
    assert json.loads(server.requests[0].content)["on_complete"] == hook


WEBHOOK, DELIVERY = EXAMPLES["WebhookView"], EXAMPLES["WebhookDeliveryView"]
SCHEDULE = EXAMPLES["ScheduleView"]


def asked(server: Server) -> list[str]:
    return [f"{request.method} {request.url.raw_path.decode()}" for request in server.requests]


def test_webhook_is_looked_at_enabled_and_deleted() -> None:
    server = Server(httpx.Response(200, json=WEBHOOK), httpx.Response(200, json=WEBHOOK), httpx.Response(204))
    assert server.client.get_webhook("w/1").name == WEBHOOK["name"]
    assert server.client.enable_webhook("w").url == WEBHOOK["url"]
    server.client.delete_webhook("w")
    assert asked(server) == ["GET /v1/webhooks/w%2F1", "POST /v1/webhooks/w/enable", "DELETE /v1/webhooks/w"]


def test_webhook_gets_a_secret_of_its_own_or_one_that_is_made() -> None:
    answer = EXAMPLES["WebhookSecretView"]
    server = Server(httpx.Response(200, json=answer), httpx.Response(200, json=answer))
    assert server.client.rotate_webhook("w").secret == answer["secret"]
    server.client.rotate_webhook("w", secret="whsec_x")
    assert [json.loads(request.content) for request in server.requests] == [{}, {"secret": "whsec_x"}]


def test_deliveries_are_listed_looked_at_and_sent_again() -> None:
    server = Server(
        httpx.Response(200, json={"items": [DELIVERY], "next_cursor": None}),
        httpx.Response(200, json=DELIVERY),
        httpx.Response(200, json=DELIVERY),
    )
    (found,) = server.client.iter_webhook_deliveries(webhook_id="w", state="dead")
    assert (found.id, found.event, found.tries) == (DELIVERY["id"], DELIVERY["event"], DELIVERY["tries"])
    assert found.payload == DELIVERY["payload"]
    assert server.client.get_webhook_delivery(found.id) == found
    assert server.client.redeliver_webhook(found.id) == found
    first, *others = asked(server)
    assert "webhook_id=w" in first
    assert "state=dead" in first
    assert others == [
        f"GET /v1/webhook-deliveries/{found.id}",
        f"POST /v1/webhook-deliveries/{found.id}/redeliver",
    ]


def test_schedule_is_paused_resumed_deleted_and_says_what_became_of_its_times() -> None:
    fire = EXAMPLES["Page_FireView_"]["items"][0]
    server = Server(
        httpx.Response(200, json={**SCHEDULE, "paused_at": "2030-01-01T00:00:00Z"}),
        httpx.Response(200, json=SCHEDULE),
        httpx.Response(200, json={"items": [fire], "next_cursor": None}),
        httpx.Response(204),
    )
    assert server.client.pause_schedule("s").paused_at is not None
    assert server.client.resume_schedule("s").paused_at is None
    (found,) = server.client.iter_schedule_fires("s")
    assert (found.outcome, found.batch_id) == (fire["outcome"], fire["batch_id"])
    server.client.delete_schedule("s")
    assert [line.partition("?")[0] for line in asked(server)] == [
        "POST /v1/schedules/s/pause",
        "POST /v1/schedules/s/resume",
        "GET /v1/schedules/s/fires",
        "DELETE /v1/schedules/s",
    ]


def test_history_gives_what_is_left_of_an_archived_batch() -> None:
    batch = EXAMPLES["HistoryBatchView"]
    trial = EXAMPLES["Page_HistoryTrialView_"]["items"][0]
    gone = {"code": "archived", "message": "it is in the history", "retryable": False}
    server = Server(
        httpx.Response(410, json=gone),
        httpx.Response(200, json=batch),
        httpx.Response(200, json={"items": [trial], "next_cursor": None}),
    )
    with pytest.raises(ArchivedError):
        server.client.get_batch(batch["id"])
    assert server.client.get_archived_batch(batch["id"]).outcomes == batch["outcomes"]
    (found,) = server.client.iter_archived_trials(batch["id"])
    assert (found.id, found.attempts, found.outcome) == (trial["id"], trial["attempts"], trial["outcome"])
