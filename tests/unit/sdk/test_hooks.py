import json

import httpx

from api.openapi_examples import EXAMPLES
from sandmill import Job, Step
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
