from concurrent.futures import ThreadPoolExecutor

import pytest

from api.schemas.examples import BATCH_EXAMPLE, JOB_EXAMPLE
from repositories.retention import RetentionRepository
from tests.integration.api.conftest import first_trial, make_batch, make_job, submit


def test_a_batch_is_accepted_and_can_be_looked_at(api):
    response = api.client.post("/v1/batches", json=make_batch(name="nightly", labels={"model": "m1"}))

    assert response.status_code == 202
    batch = response.json()
    assert response.headers["Location"] == f"/v1/batches/{batch['id']}"
    assert (batch["name"], batch["labels"], batch["state"], batch["jobs"]) == (
        "nightly",
        {"model": "m1"},
        "running",
        1,
    )
    assert batch["trials"] == {"total": 1, "by_state": {"queued": 1}, "by_outcome": {}}
    assert batch.pop("warnings") == []
    assert api.client.get(response.headers["Location"]).json() == batch


@pytest.mark.parametrize(("path", "body"), [("/v1/batches", BATCH_EXAMPLE), ("/v1/jobs", JOB_EXAMPLE)])
def test_the_published_examples_are_accepted(api, path, body):
    assert api.client.post(path, json=body).status_code == 202


def test_defaults_are_merged_under_each_job(api):
    body = {
        "priority": 5,
        "defaults": {
            "image": "fake",
            "resources": {"cpu": 2, "memory_mb": 256},
            "env": {"A": "1", "from": "x"},
            "steps": [{"name": "run", "run": "true"}],
            "verdict": {"from": "log", "parser": "unittest"},
        },
        "jobs": [
            {"key": "a", "resources": {"memory_mb": 1024}, "env": {"B": "2"}},
            {
                "key": "b",
                "priority": -3,
                "verdict": {"from": "exit_code"},
                "steps": [{"name": "s", "run": "exit 1"}],
            },
        ],
    }
    batch = submit(api.client, body)

    jobs = api.client.get(f"/v1/batches/{batch['id']}/jobs").json()["items"]
    first, second = (api.client.get(f"/v1/jobs/{job['id']}").json()["spec"] for job in jobs)
    assert first["resources"] == {"cpu": 2.0, "memory_mb": 1024, "disk_mb": 1024, "pids": 256, "gpu": 0}
    assert first["env"] == {"A": "1", "B": "2", "from": "x"}
    assert first["verdict"]["from"] == "log"
    assert first["priority"] == 5
    assert [step["name"] for step in second["steps"]] == ["s"]
    assert second["verdict"] == {"from": "exit_code", "step": None, "pass": [0]}
    assert second["priority"] == -3


def test_trials_are_made_with_index_seed_and_limits(api):
    body = make_batch(
        jobs=[make_job(trials={"count": 3, "seed": 40}, resources={"cpu": 0.5, "memory_mb": 64})]
    )
    batch = submit(api.client, body)

    trials = api.client.get(f"/v1/batches/{batch['id']}/trials").json()["items"]
    assert [(t["index"], t["seed"], t["job_key"]) for t in trials] == [
        (0, 40, "job"),
        (1, 41, "job"),
        (2, 42, "job"),
    ]
    row = api.rows(
        "SELECT cpu_millicores, memory_bytes, runtime, queue_deadline FROM trials WHERE tenant_id = %(me)s"
    )[0]
    assert (row["cpu_millicores"], row["memory_bytes"], row["runtime"]) == (500, 64 << 20, "fake")
    assert row["queue_deadline"] is not None


def test_trials_queue_in_the_order_of_the_request(api):
    jobs = [make_job(key=f"j{number}", trials={"count": 2}) for number in range(20)]
    batch = submit(api.client, make_batch(jobs=jobs))

    rows = api.rows(
        "SELECT j.key, t.index FROM trials t JOIN jobs j ON j.id = t.job_id WHERE t.batch_id = %(b)s ORDER BY t.seq",
        b=batch["id"],
    )
    expected = [(f"j{number}", index) for number in range(20) for index in range(2)]
    assert [(row["key"], row["index"]) for row in rows] == expected
    listed = api.client.get(f"/v1/batches/{batch['id']}/trials?limit=500").json()["items"]
    assert [(t["job_key"], t["index"]) for t in listed] == expected


def test_a_lone_job_gets_a_batch_of_its_own(api):
    response = api.client.post("/v1/jobs", json=make_job(key="lone", labels={"a": "b"}, priority=7))

    job = response.json()
    assert response.status_code == 202
    assert response.headers["Location"] == f"/v1/jobs/{job['id']}"
    assert (job["key"], job["labels"], job["spec"]["priority"]) == ("lone", {"a": "b"}, 7)
    batch = api.client.get(f"/v1/batches/{job['batch_id']}").json()
    assert (batch["implicit"], batch["jobs"], batch["priority"]) == (True, 1, 7)


def test_a_shown_spec_can_be_submitted_again_and_is_the_same_work(api):
    first = api.client.post("/v1/jobs", json=JOB_EXAMPLE).json()
    second = api.client.post("/v1/jobs", json=first["spec"])

    assert second.status_code == 202, second.text
    assert second.json()["digest"] == first["digest"]
    assert second.json()["spec"] == first["spec"]


def test_the_same_key_and_body_give_the_same_batch(api):
    body = make_batch()
    first = api.client.post("/v1/batches", json=body, headers={"Idempotency-Key": "k1"})
    again = api.client.post(
        "/v1/batches", json=dict(reversed(body.items())), headers={"Idempotency-Key": "k1"}
    )

    assert (first.status_code, again.status_code) == (202, 200)
    assert again.headers["Idempotent-Replayed"] == "true"
    assert again.json() == first.json()
    assert api.count("batches") == 1


def test_the_same_key_with_another_body_or_route_is_a_conflict(api):
    submit(api.client, **{"Idempotency-Key": "k1"})
    other = api.client.post("/v1/batches", json=make_batch(name="x"), headers={"Idempotency-Key": "k1"})
    route = api.client.post("/v1/jobs", json=make_job(), headers={"Idempotency-Key": "k1"})

    assert (other.status_code, other.json()["code"]) == (409, "idempotency_conflict")
    assert (route.status_code, route.json()["field"]) == (409, "Idempotency-Key")
    assert api.count("batches") == 1


def test_idempotency_keys_of_two_tenants_are_apart(api):
    submit(api.client, **{"Idempotency-Key": "k1"})
    with api.new_client("other") as other:
        submit(other, make_batch(name="x"), **{"Idempotency-Key": "k1"})
    assert api.count("batches") == 1


def test_twenty_clients_with_one_key_make_one_batch(api):
    def send(_number):
        return api.client.post("/v1/batches", json=make_batch(), headers={"Idempotency-Key": "same"})

    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(send, range(20)))

    assert sorted(answer.status_code for answer in answers) == [200] * 19 + [202]
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert (api.count("batches"), api.count("trials")) == (1, 1)


def test_a_refused_batch_leaves_its_idempotency_key_free(api):
    unknown = make_job(inputs=[{"path": "/x", "blob": "sha256:" + "0" * 64}])
    refused = api.client.post(
        "/v1/batches", json=make_batch(jobs=[unknown]), headers={"Idempotency-Key": "k"}
    )
    assert refused.status_code == 422
    assert refused.json()["field"] == "jobs[0].inputs[0].blob"
    submit(api.client, **{"Idempotency-Key": "k"})


def test_an_expired_idempotency_key_is_free_again(api):
    first = submit(api.client, **{"Idempotency-Key": "k"})
    api.rows(
        "UPDATE idempotency SET expires_at = clock_timestamp() - interval '1 second' WHERE tenant_id = %(me)s"
    )
    second = submit(api.client, make_batch(name="other"), **{"Idempotency-Key": "k"})
    assert first["id"] != second["id"]


def test_a_full_queue_answers_429_and_stores_nothing(api):
    api.rows("UPDATE tenants SET max_queued = 2 WHERE id = %(me)s")
    refused = api.client.post("/v1/batches", json=make_batch(jobs=[make_job(trials={"count": 3})]))
    assert (refused.status_code, refused.json()["code"]) == (429, "quota_exceeded")
    assert int(refused.headers["Retry-After"]) > 0
    assert api.count("batches") == 0
    submit(api.client, make_batch(jobs=[make_job(trials={"count": 2})]))


def test_small_binary_inputs_are_stored_as_blobs(api):
    body = make_job(inputs=[{"path": "/a", "base64": "AP8="}, {"path": "/b", "base64": "aGk="}])
    inputs = api.client.post("/v1/jobs", json=body).json()["spec"]["inputs"]
    assert inputs[1]["text"] == "hi"
    assert api.client.get(f"/v1/blobs/{inputs[0]['blob']}").content == b"\x00\xff"


def test_cancel_finishes_waiting_trials_at_once(api):
    batch = submit(api.client, make_batch(jobs=[make_job(trials={"count": 3})]))
    done = api.client.post(f"/v1/batches/{batch['id']}/cancel", json={"mode": "force"})
    again = api.client.post(f"/v1/batches/{batch['id']}/cancel")

    assert done.json() == {"cancelled": 3, "cancelling": 0}
    assert again.json() == {"cancelled": 0, "cancelling": 0}
    after = api.client.get(f"/v1/batches/{batch['id']}").json()
    assert after["trials"]["by_outcome"] == {"cancelled": 3}
    assert after["cancel_requested"] is True
    trial = first_trial(api.client, batch["id"])
    assert (trial["failure"]["class"], trial["failure"]["code"]) == ("cancelled", "cancelled")


def test_cancel_tells_running_trials_and_leaves_their_state_to_the_worker(own_api):
    api = own_api
    batch = submit(api.client, make_batch(jobs=[make_job(trials={"count": 2})]))
    world = api.world
    world.session(slots=1)
    assert world.dispatcher.tick() == 1

    done = api.client.post(f"/v1/batches/{batch['id']}/cancel").json()
    assert done == {"cancelled": 1, "cancelling": 1}
    rows = api.rows("SELECT state, desired, cancel_mode FROM trials ORDER BY state")
    assert [tuple(row.values()) for row in rows] == [
        ("finished", "cancel", "graceful"),
        ("running", "cancel", "graceful"),
    ]
    api.client.post(f"/v1/batches/{batch['id']}/cancel", json={"mode": "force"})
    api.client.post(f"/v1/batches/{batch['id']}/cancel", json={"mode": "graceful"})
    assert api.rows("SELECT cancel_mode FROM trials WHERE state = 'running'")[0]["cancel_mode"] == "force"


def test_one_trial_can_be_cancelled(api):
    batch = submit(api.client, make_batch(jobs=[make_job(trials={"count": 2})]))
    trial = first_trial(api.client, batch["id"])
    assert api.client.post(f"/v1/trials/{trial['id']}/cancel").json() == {"cancelled": 1, "cancelling": 0}
    assert api.client.post(f"/v1/trials/{trial['id']}/cancel").json() == {"cancelled": 0, "cancelling": 0}
    counts = api.client.get(f"/v1/batches/{batch['id']}").json()["trials"]
    assert counts["by_state"] == {"queued": 1, "finished": 1}


def test_trials_are_filtered(api):
    jobs = [make_job(key="a", trials={"count": 2}), make_job(key="b")]
    batch = submit(api.client, make_batch(jobs=jobs))
    api.client.post(f"/v1/trials/{first_trial(api.client, batch['id'])['id']}/cancel")

    def listed(query):
        return [
            (t["job_key"], t["index"])
            for t in api.client.get(f"/v1/batches/{batch['id']}/trials?{query}").json()["items"]
        ]

    assert listed("state=queued") == [("a", 1), ("b", 0)]
    assert listed("outcome=cancelled") == [("a", 0)]
    assert listed("job=b") == [("b", 0)]
    assert listed("job=a&state=queued") == [("a", 1)]


def test_a_thousand_jobs_are_stored_by_one_request(api):
    steps = [
        {"name": "setup", "role": "setup", "run": "true"},
        {"name": "verify", "role": "verify", "run": "python3 -m unittest -v", "timeout": 60},
    ]
    jobs = [
        make_job(
            key=f"instance-{number}",
            steps=steps,
            inputs=[{"path": "/testbed/patch.diff", "text": "x" * 500, "before": "verify"}],
            verdict={"from": "log", "parser": "unittest", "fail_to_pass": ["t.T.test_1", "t.T.test_2"]},
        )
        for number in range(1000)
    ]
    batch = submit(api.client, {"jobs": jobs})
    assert (batch["jobs"], batch["trials"]["total"]) == (1000, 1000)
    assert api.count("trials") == 1000


def test_archived_batch_answers_gone_and_is_in_the_history(own_api):
    api = own_api
    batch = submit(api.client)["id"]
    trial = first_trial(api.client, batch)["id"]
    api.client.post(f"/v1/batches/{batch}/cancel")
    api.world.end_batches()
    api.rows("UPDATE batches SET archiving_at = now() WHERE id = %(b)s", b=batch)
    with api.engine.begin() as connection:
        assert RetentionRepository(connection).archive_page().is_batch_done
    for path in (f"/v1/batches/{batch}", f"/v1/batches/{batch}/trials", f"/v1/trials/{trial}"):
        gone = api.client.get(path)
        assert (gone.status_code, gone.json()["code"]) == (410, "archived"), path
    assert api.client.post(f"/v1/batches/{batch}/cancel").status_code == 410
    assert api.client.get("/v1/batches").json()["items"] == []
    kept = api.client.get(f"/v1/history/batches/{batch}").json()
    assert (kept["id"], kept["trials"], kept["outcomes"]) == (batch, 1, {"cancelled": 1})
    trials = api.client.get(f"/v1/history/batches/{batch}/trials").json()["items"]
    assert [(item["id"], item["outcome"], item["attempts"]) for item in trials] == [(trial, "cancelled", 0)]
