import pytest

from tests.integration.api.conftest import make_batch, submit
from tests.support.receiver import Receiver

URL = "http://127.0.0.1:9/hooks"


def add(client, **changes) -> dict:
    response = client.post("/v1/webhooks", json={"name": "ci", "url": URL, **changes})
    assert response.status_code == 201, response.text
    return response.json()


def test_secret_is_shown_once_and_a_rotation_shows_the_next(api):
    made = add(api.client, events=["trial.finished", "batch.finished"])
    assert made["secret"].startswith("whsec_")
    shown = api.client.get(f"/v1/webhooks/{made['id']}").json()
    assert shown == {name: value for name, value in made.items() if name != "secret"}
    assert api.client.get("/v1/webhooks").json()["items"] == [shown]
    rotated = api.client.post(f"/v1/webhooks/{made['id']}/rotate").json()
    assert rotated["secret"] not in {made["secret"], None}
    own = "whsec_" + "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
    assert api.client.post(f"/v1/webhooks/{made['id']}/rotate", json={"secret": own}).json()["secret"] == own


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"url": URL}, "name"),
        ({"name": "a b", "url": URL}, "name"),
        ({"name": "x"}, "url"),
        ({"name": "x", "url": "ftp://127.0.0.1/"}, "url"),
        ({"name": "x", "url": "https://10.0.0.1/"}, "url"),
        ({"name": "x", "url": "https://169.254.169.254/latest/meta-data"}, "url"),
        ({"name": "x", "url": "https://[::1]/"}, "url"),
        ({"name": "x", "url": "http://93.184.215.14/"}, "url"),
        ({"name": "x", "url": URL, "events": ["trial.started"]}, "events[0]"),
        ({"name": "x", "url": URL, "events": ["trial.finished", "trial.finished"]}, "events"),
        ({"name": "x", "url": URL, "secret": "hunter2"}, "secret"),
        ({"name": "x", "url": URL, "secret": "whsec_c2hvcnQ="}, "secret"),
        ({"name": "x", "url": URL, "retries": 3}, "retries"),
    ],
)
def test_what_can_never_work_is_refused_with_its_field(api, body, field):
    refused = api.client.post("/v1/webhooks", json=body)
    assert (refused.status_code, refused.json()["field"]) == (422, field), refused.text
    assert "hunter2" not in refused.text


def test_names_are_one_of_a_kind_until_deleted(api):
    made = add(api.client)
    again = api.client.post("/v1/webhooks", json={"name": "ci", "url": URL})
    assert (again.status_code, again.json()["field"]) == (409, "name")
    assert api.client.delete(f"/v1/webhooks/{made['id']}").status_code == 204
    assert api.client.delete(f"/v1/webhooks/{made['id']}").status_code == 404
    add(api.client)


def test_batch_may_have_a_receiver_of_its_own(own_api):
    api = own_api
    add(api.client, name="hook-1", events=[])
    hook = {"url": URL, "secret_ref": "hook-1", "events": ["trial.finished"]}
    batch = submit(api.client, make_batch(on_complete={"webhook": hook}))
    quiet = submit(api.client)
    for each in (batch, quiet):
        assert api.client.post(f"/v1/batches/{each['id']}/cancel").json()["cancelled"] == 1
    listed = api.client.get("/v1/webhook-deliveries").json()["items"]
    assert [(item["url"], item["event"], item["state"]) for item in listed] == [
        (URL, "trial.finished", "pending")
    ]
    assert listed[0]["payload"]["data"]["batch_id"] == batch["id"]
    same = api.client.get(f"/v1/webhook-deliveries/{listed[0]['id']}").json()
    assert same == listed[0]
    assert api.client.post(f"/v1/webhook-deliveries/{same['id']}/redeliver").json()["state"] == "pending"


@pytest.mark.parametrize(
    ("hook", "field"),
    [
        ({"url": URL, "secret_ref": "nobody"}, "on_complete.webhook.secret_ref"),
        ({"url": URL}, "on_complete.webhook.secret_ref"),
        ({"url": "https://10.0.0.1/", "secret_ref": "ci"}, "on_complete.webhook.url"),
        ({"url": "mailto:me", "secret_ref": "ci"}, "on_complete.webhook.url"),
        ({"url": URL, "secret_ref": "ci", "events": []}, "on_complete.webhook.events"),
        ({"url": URL, "secret_ref": "ci", "method": "GET"}, "on_complete.webhook.method"),
    ],
)
def test_batch_with_a_receiver_that_cannot_work_is_refused_whole(api, hook, field):
    before = api.count("batches")
    refused = api.client.post("/v1/batches", json=make_batch(on_complete={"webhook": hook}))
    assert (refused.status_code, refused.json()["field"]) == (422, field), refused.text
    assert api.count("batches") == before


def test_webhook_of_another_tenant_signs_for_nobody_else(api):
    add(api.client, name="mine")
    with api.new_client("stranger") as stranger:
        hook = {"url": URL, "secret_ref": "mine"}
        refused = stranger.post("/v1/batches", json=make_batch(on_complete={"webhook": hook}))
        assert (refused.status_code, refused.json()["field"]) == (422, "on_complete.webhook.secret_ref")


def test_lists_of_deliveries_go_on_where_they_ended(own_api):
    api = own_api
    with Receiver() as receiver:
        made = add(api.client, url=receiver.url(), events=["trial.finished"])
    for _ in range(3):
        api.client.post(f"/v1/batches/{submit(api.client)['id']}/cancel")
    first = api.client.get("/v1/webhook-deliveries", params={"limit": 2, "webhook_id": made["id"]}).json()
    rest = api.client.get(
        "/v1/webhook-deliveries",
        params={"limit": 2, "webhook_id": made["id"], "cursor": first["next_cursor"]},
    ).json()
    ids = [item["id"] for item in first["items"] + rest["items"]]
    assert (len(ids), ids) == (3, sorted(ids, reverse=True))
    assert api.client.get("/v1/webhook-deliveries", params={"state": "dead"}).json()["items"] == []
