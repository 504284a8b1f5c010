"""Open batches, events and verbs over HTTP."""

import json
import threading

import pytest

from services.batch_progress import BatchProgressKeeper, ProgressTold
from services.wake import Wake
from tests.integration.api.conftest import first_trial, make_batch, make_job, submit


@pytest.fixture
def keeper(own_api):
    wake = Wake(Wake.connect(own_api.settings.redis_url.get_secret_value()))
    told = ProgressTold(stopped=wake.cancelled, moved=wake.moved, queued=lambda: None)
    yield BatchProgressKeeper(own_api.engine, told)
    wake._client.close()


def end_all(api, outcome: str = "passed") -> None:
    api.rows(
        "UPDATE trials SET state = 'finished', outcome = %(o)s, finished_at = now() WHERE state = 'queued'",
        o=outcome,
    )


def open_batch(api, **changes):
    return submit(api.client, {"open": True, "jobs": [], **changes})


def append(api, batch, *jobs, key: str | None = None, **changes):
    headers = {} if key is None else {"Idempotency-Key": key}
    return api.client.post(f"/v1/batches/{batch['id']}/jobs", json={"jobs": jobs, **changes}, headers=headers)


def test_an_open_batch_grows_with_its_own_defaults_until_it_is_closed(api):
    batch = open_batch(api, defaults={"image": "fake", "env": {"A": "1"}}, priority=7)
    assert (batch["open"], batch["jobs"], batch["trials"]["total"]) == (True, 0, 0)
    steps = [{"name": "run", "run": "true"}]
    grown = append(
        api, batch, {"key": "a", "steps": steps}, {"key": "b", "steps": steps}, matrix={"v": [1, 2]}
    )
    assert (grown.status_code, grown.json()["jobs"], grown.json()["trials"]["total"]) == (202, 4, 4)
    job = api.client.get(f"/v1/batches/{batch['id']}/jobs").json()["items"][0]
    spec = api.client.get(f"/v1/jobs/{job['id']}").json()["spec"]
    assert (job["key"], spec["env"], spec["priority"]) == ("a@1", {"A": "1"}, 7)

    closed = api.client.post(f"/v1/batches/{batch['id']}/close")
    assert closed.json()["open"] is False
    assert api.client.post(f"/v1/batches/{batch['id']}/close").status_code == 200
    refused = append(api, batch, {"key": "c", "steps": steps})
    assert (refused.status_code, refused.json()["code"]) == (409, "conflict")


def test_appending_twice_with_one_key_appends_once(api):
    batch = open_batch(api)
    first = append(api, batch, make_job(key="a"), key="k")
    again = append(api, batch, make_job(key="a"), key="k")
    other = append(api, batch, make_job(key="b"), key="k")
    assert (first.status_code, again.status_code, other.status_code) == (202, 200, 409)
    assert again.headers["Idempotent-Replayed"] == "true"
    assert again.json()["jobs"] == 1


def test_what_is_wrong_with_appended_jobs_is_told_with_its_field(api):
    batch = open_batch(api)
    assert append(api, batch, make_job(key="a")).status_code == 202
    taken = append(api, batch, make_job(key="a")).json()
    unknown = append(api, batch, make_job(key="b", needs=[{"job": "nobody"}])).json()
    circle = append(
        api, batch, make_job(key="x", needs=[{"job": "y"}]), make_job(key="y", needs=[{"job": "x"}])
    ).json()
    assert [taken["field"], unknown["field"], circle["field"]] == [
        "jobs[0].key", "jobs[0].needs[0].job", "jobs[0].needs",
    ]  # fmt: skip
    assert api.client.get(f"/v1/batches/{batch['id']}").json()["jobs"] == 1


@pytest.mark.parametrize("kind", ["batches", "jobs", "trials"])
def test_every_verb_works_on_every_kind(api, kind):
    batch = submit(api.client, make_batch(jobs=[make_job(key="a")]))
    trial = first_trial(api.client, batch["id"])
    path = f"/v1/{kind}/{ {'batches': batch['id'], 'jobs': trial['job_id'], 'trials': trial['id']}[kind] }"
    assert api.client.post(f"{path}/pause").json() == {"paused": 1, "running": 0}
    shown = api.client.get(f"/v1/trials/{trial['id']}").json()
    assert (shown["state"], shown["paused"]) == ("paused", True)
    if kind != "trials":
        assert api.client.get(path).json()["paused"] is True
    assert api.client.post(f"{path}/resume").json() == {"resumed": 1}
    assert api.client.post(f"{path}/cancel", json={"mode": "force"}).json() == {
        "cancelled": 1,
        "cancelling": 0,
    }
    assert api.client.post(f"{path}/regrade").json() == {"regrading": 0, "not_gradable": 1}
    assert api.client.post(f"{path}/retry").json() == {"retried": 1}
    found = api.client.get(f"/v1/batches/{batch['id']}/trials?superseded=true").json()["items"]
    old, new = sorted(found, key=lambda one: one["retry_of"] is not None)
    assert (old["superseded_by"], new["retry_of"], new["state"]) == (new["id"], old["id"], "queued")
    assert len(api.client.get(f"/v1/batches/{batch['id']}/trials").json()["items"]) == 1


@pytest.mark.parametrize(
    ("verb", "body", "field"),
    [
        ("retry", {"outcomes": []}, "outcomes"),
        ("retry", {"outcomes": ["lost"]}, "outcomes[0]"),
        ("retry", {"outcome": ["error"]}, "outcome"),
        ("regrade", {"verdict": {"from": "x"}}, "verdict"),
        ("cancel", {"mode": "soft"}, "mode"),
    ],
)
def test_bad_bodies_of_verbs_are_refused_with_their_field(api, verb, body, field):
    batch = submit(api.client)
    answer = api.client.post(f"/v1/batches/{batch['id']}/{verb}", json=body)
    assert (answer.status_code, answer.json()["field"]) == (422, field)


def test_events_come_as_pages(own_api, keeper):
    api = own_api
    batch = submit(api.client, make_batch(jobs=[make_job(key="a", trials={"count": 3})]))
    url = f"/v1/batches/{batch['id']}/events"
    assert api.client.get(url).json() == {"items": [], "next_cursor": "0"}
    end_all(api)
    keeper.advance()
    page = api.client.get(f"{url}?limit=2").json()
    assert [(e["seq"], e["type"], e["job_key"], e["outcome"]) for e in page["items"]] == [
        (1, "trial.finished", "a", "passed"),
        (2, "trial.finished", "a", "passed"),
    ]
    rest = api.client.get(f"{url}?after={page['next_cursor']}").json()
    assert [e["type"] for e in rest["items"]] == ["trial.finished", "batch.finished"]
    assert rest["next_cursor"] is None


def follow(api, batch, **headers: str):
    url = f"/v1/batches/{batch['id']}/events?follow=true"
    with api.client.stream("GET", url, headers=headers) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        for block in response.read().decode().split("\n\n"):
            lines = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
            if lines:
                yield lines


def test_a_follower_hears_of_ends_and_of_the_batch_s_own_end_and_can_come_back(own_api, keeper):
    api = own_api
    batch = submit(api.client, make_batch(jobs=[make_job(key="a"), make_job(key="b")]))
    heard: list = []
    listener = threading.Thread(target=lambda: heard.extend(follow(api, batch)))
    listener.start()
    end_all(api)
    keeper.advance()
    listener.join(15)
    assert not listener.is_alive()
    assert [(one.get("id"), one["event"]) for one in heard] == [
        ("1", "trial.finished"), ("2", "trial.finished"), ("3", "batch.finished"), (None, "end"),
    ]  # fmt: skip
    assert json.loads(heard[0]["data"])["seq"] == 1
    again = list(follow(api, batch, **{"Last-Event-ID": "2"}))
    assert [one["event"] for one in again] == ["batch.finished", "end"]


def test_a_bad_event_id_is_refused(api):
    batch = submit(api.client)
    answer = api.client.get(f"/v1/batches/{batch['id']}/events", headers={"Last-Event-ID": "-1"})
    assert (answer.status_code, answer.json()["field"]) == (422, "Last-Event-ID")
