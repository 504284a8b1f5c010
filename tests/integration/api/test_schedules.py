import pytest

from tests.integration.api.conftest import make_batch, make_job


def make(**changes) -> dict:
    return {
        "name": "nightly",
        "cron": "0 3 * * *",
        "timezone": "Europe/Berlin",
        "batch": make_batch(),
        **changes,
    }


def add(client, **changes) -> dict:
    response = client.post("/v1/schedules", json=make(**changes))
    assert response.status_code == 201, response.text
    return response.json()


def test_schedule_is_shown_with_its_next_times_changed_paused_and_deleted(api):
    made = add(api.client)
    assert len(made["next_fires"]) == 5
    assert made["batch"] == make_batch()
    path = f"/v1/schedules/{made['id']}"
    assert api.client.get(path).json() == made
    assert api.client.get("/v1/schedules").json()["items"] == [made]
    changed = api.client.patch(path, json={"cron": "30 4 * * *", "overlap": "skip"}).json()
    assert (changed["cron"], changed["overlap"], changed["catch_up"]) == ("30 4 * * *", "skip", "none")
    assert changed["next_fires"] != made["next_fires"]
    paused = api.client.post(f"{path}/pause").json()
    assert (paused["paused_at"] is None, paused["next_fires"]) == (False, [])
    assert api.client.patch(path, json={"name": "weekly"}).json()["next_fires"] == []
    resumed = api.client.post(f"{path}/resume").json()
    assert (resumed["paused_at"], len(resumed["next_fires"])) == (None, 5)
    assert api.client.get(f"{path}/fires").json() == {"items": [], "next_cursor": None}
    assert api.client.delete(path).status_code == 204
    assert api.client.get(path).status_code == 404


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"cron": "0 0 31 2 *"}, "cron"),
        ({"cron": "soon"}, "cron"),
        ({"timezone": "Mars/Olympus"}, "timezone"),
        ({"name": ""}, "name"),
        ({"catch_up": "some"}, "catch_up"),
        ({"overlap": True}, "overlap"),
        ({"batch": {}}, "batch.jobs"),
        ({"batch": make_batch(jobs=[make_job(steps=[])])}, "batch.jobs[0].steps"),
        (
            {"batch": make_batch(jobs=[make_job(inputs=[{"path": "/a", "blob": "sha256:" + "0" * 64}])])},
            "batch.jobs[0].inputs[0].blob",
        ),
        (
            {"batch": make_batch(on_complete={"webhook": {"url": "https://10.0.0.1/", "secret_ref": "x"}})},
            "batch.on_complete.webhook.url",
        ),
        (
            {"batch": make_batch(on_complete={"webhook": {"url": "http://127.0.0.1/", "secret_ref": "x"}})},
            "batch.on_complete.webhook.secret_ref",
        ),
        ({"every": "day"}, "every"),
    ],
)
def test_what_can_never_work_is_refused_with_its_field(api, changes, field):
    refused = api.client.post("/v1/schedules", json=make(**changes))
    assert (refused.status_code, refused.json()["field"]) == (422, field), refused.text
    assert api.count("schedules") == 0


def test_change_is_checked_like_a_new_one(api):
    path = f"/v1/schedules/{add(api.client)['id']}"
    add(api.client, name="other")
    for patch, status, field in (
        ({"cron": "0 0 30 2 *"}, 422, "cron"),
        ({"batch": {"jobs": []}}, 422, "batch.jobs"),
        ({"name": "other"}, 409, "name"),
    ):
        refused = api.client.patch(path, json=patch)
        assert (refused.status_code, refused.json()["field"]) == (status, field)
    assert api.client.get(path).json()["cron"] == "0 3 * * *"


def test_blob_that_a_schedule_names_is_in_use_until_it_is_gone(api):
    digest = api.client.post("/v1/blobs", content=b"nightly data").json()["digest"]
    batch = make_batch(jobs=[make_job(inputs=[{"path": "/a", "blob": digest}])])
    path = f"/v1/schedules/{add(api.client, batch=batch)['id']}"
    used = "SELECT digest FROM blob_uses WHERE tenant_id = %(me)s"
    assert api.rows(used) == [{"digest": digest}]
    api.client.patch(path, json={"batch": make_batch()})
    assert api.rows(used) == []
    api.client.patch(path, json={"batch": batch})
    api.client.delete(path)
    assert api.rows(used) == []
