"""Dead letters as a tenant sees them: listed, replayed once, discarded."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.integration.api.conftest import (
    ApiWorld,
    RunningApi,
    first_trial,
    make_batch,
    make_job,
    make_settings,
    open_api,
    submit,
)
from tests.support.services import new_database

FAILURE = {"class": "infra", "code": "daemon_error", "message": "the engine does not answer"}


@pytest.fixture(scope="module")
def shared_api(
    postgres_url: str, migrated_template: str, redis_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningApi]:
    """An application and a database for this file: its trials are dispatched, which takes those of all tenants."""
    home = tmp_path_factory.mktemp("dead-letters") / "home"
    with (
        new_database(postgres_url, template=migrated_template) as url,
        open_api(make_settings(url, redis_url, home)) as running,
    ):
        yield running


@pytest.fixture
def api(shared_api: RunningApi) -> Iterator[ApiWorld]:
    with shared_api.new_tenant() as opened:
        yield opened
        for batch in opened.client.get("/v1/batches").json()["items"]:
            opened.client.post(f"/v1/batches/{batch['id']}/cancel")


def die(api: ApiWorld, batch: dict[str, Any], *, index: int = 0) -> str:
    """Let one trial of a batch end without a verdict, and the others pass; gives its id."""
    world = api.world
    trials = api.client.get(f"/v1/batches/{batch['id']}/trials").json()["items"]
    (dead,) = (trial["id"] for trial in trials if trial["index"] == index)
    seat = world.session()
    world.dispatcher.tick()
    for bell in world.bells.rung:
        claimed = seat.claim(bell)
        assert claimed is not None
        assert seat.start(claimed)
        end = {"outcome": "error", "reason": "daemon_error", "failure": json.dumps(FAILURE), "infra_loss": 1}
        assert seat.finish(claimed, **(end if str(bell.trial_id) == dead else {}))
    world.execute("UPDATE worker_sessions SET ended_at = now() WHERE id = %(id)s", id=seat.session_id)
    return dead


@pytest.fixture
def dead(api: ApiWorld) -> str:
    return die(api, submit(api.client))


def replay(api: ApiWorld, trial: str, body: Any = None, **headers: str) -> Any:
    return api.client.post(f"/v1/dead-letters/{trial}/replay", json=body or {}, headers=headers)


def test_dead_letter_is_listed_and_shown(api: ApiWorld, dead: str):
    (letter,) = api.client.get("/v1/dead-letters").json()["items"]
    assert (letter["trial_id"], letter["state"], letter["code"]) == (dead, "open", "daemon_error")
    assert (letter["job_key"], letter["attempts"], letter["nodes_lost"]) == ("job", 1, 0)
    assert letter["failure"]["message"] == FAILURE["message"]
    assert api.client.get(f"/v1/dead-letters/{dead}").json() == letter


def test_replay_runs_the_same_sample_again_as_a_lone_job(api: ApiWorld):
    job = make_job(key="k", labels={"repo": "r"}, trials={"count": 3, "seed": 40}, priority=7)
    batch = submit(api.client, make_batch(jobs=[job]))
    dead = die(api, batch, index=2)

    response = replay(api, dead)

    assert response.status_code == 202
    done = response.json()
    assert response.headers["Location"] == f"/v1/trials/{done['trial_id']}"
    assert done["replay_of"] == dead
    trial = api.client.get(f"/v1/trials/{done['trial_id']}").json()
    assert (trial["state"], trial["index"], trial["seed"], trial["priority"]) == ("queued", 2, 42, 7)
    assert (trial["replay_of"], trial["attempts_used"], trial["infra_losses"]) == (dead, 0, 0)
    assert (trial["job_id"], trial["batch_id"]) == (done["job_id"], done["batch_id"])
    again = api.client.get(f"/v1/jobs/{done['job_id']}").json()
    assert (again["key"], again["labels"], again["trials"]["total"]) == ("k", {"repo": "r"}, 1)
    letter = api.client.get(f"/v1/dead-letters/{dead}").json()
    assert (letter["state"], letter["replayed_as"]) == ("replayed", done["trial_id"])
    assert api.client.get(f"/v1/trials/{dead}").json()["outcome"] == "error"


def test_replay_is_made_once_unless_forced(api: ApiWorld, dead: str):
    first = replay(api, dead).json()
    second = replay(api, dead)
    assert (second.status_code, second.json()) == (200, first)
    assert second.headers["Idempotent-Replayed"] == "true"

    forced = replay(api, dead, {"force": True}, **{"Idempotency-Key": dead})
    assert forced.status_code == 202
    assert forced.json()["trial_id"] != first["trial_id"]
    repeated = replay(api, dead, {"force": True}, **{"Idempotency-Key": dead})
    assert (repeated.status_code, repeated.json()) == (200, forced.json())


def test_replays_at_the_same_time_make_one_trial(api: ApiWorld, dead: str):
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: replay(api, dead), range(8)))
    assert sorted(answer.status_code for answer in answers) == [200] * 7 + [202]
    assert len({answer.json()["trial_id"] for answer in answers}) == 1
    assert len(api.rows("SELECT id FROM trials WHERE replay_of = %(t)s", t=dead)) == 1


def test_replay_that_dies_is_a_dead_letter_of_its_own(api: ApiWorld, dead: str):
    done = replay(api, dead).json()
    die(api, {"id": done["batch_id"]})
    states = [
        (item["trial_id"], item["state"]) for item in api.client.get("/v1/dead-letters").json()["items"]
    ]
    assert states == [(done["trial_id"], "open"), (dead, "replayed")]


def test_discard_takes_it_off_the_open_ones(api: ApiWorld, dead: str):
    for _ in range(2):
        response = api.client.post(f"/v1/dead-letters/{dead}/discard")
        assert (response.status_code, response.json()["state"]) == (200, "discarded")
    assert api.client.get("/v1/dead-letters", params={"state": "open"}).json()["items"] == []
    assert len(api.client.get("/v1/dead-letters", params={"state": "discarded"}).json()["items"]) == 1

    refused = replay(api, dead)
    assert (refused.status_code, refused.json()["code"]) == (409, "conflict")
    assert "force" in refused.json()["message"]
    assert replay(api, dead, {"force": True}).status_code == 202
    refused = api.client.post(f"/v1/dead-letters/{dead}/discard")
    assert (refused.status_code, refused.json()["code"]) == (409, "conflict")


def test_list_goes_on_from_page_to_page_newest_first(api: ApiWorld):
    dead = [die(api, submit(api.client)) for _ in range(3)]
    seen: list[str] = []
    cursor = None
    while True:
        params = {"limit": 2, **({"cursor": cursor} if cursor else {})}
        page = api.client.get("/v1/dead-letters", params=params).json()
        seen += [item["trial_id"] for item in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == dead[::-1]


def test_other_tenants_see_and_replay_nothing(api: ApiWorld, dead: str):
    with api.new_client(tenant=f"other-{dead}") as other:
        assert other.get("/v1/dead-letters").json()["items"] == []
        for path, method in ((dead, "GET"), (f"{dead}/replay", "POST"), (f"{dead}/discard", "POST")):
            assert other.request(method, f"/v1/dead-letters/{path}").status_code == 404
    assert api.client.get(f"/v1/dead-letters/{dead}").json()["state"] == "open"


def test_replay_counts_against_the_limit_of_queued_trials(api: ApiWorld, dead: str):
    api.rows("UPDATE tenants SET max_queued = 0 WHERE id = %(me)s")
    refused = replay(api, dead)
    assert (refused.status_code, refused.json()["code"]) == (429, "quota_exceeded")
    assert api.client.get(f"/v1/dead-letters/{dead}").json()["state"] == "open"


@pytest.mark.parametrize(
    ("params", "field"), [({"state": "dead"}, "state"), ({"cursor": "x"}, "cursor"), ({"limit": 0}, "limit")]
)
def test_bad_filters_are_named(api: ApiWorld, params: dict[str, Any], field: str):
    response = api.client.get("/v1/dead-letters", params=params)
    assert (response.status_code, response.json()["field"]) == (422, field)


@pytest.mark.parametrize(
    ("body", "field"), [({"force": "yes"}, "force"), ({"again": True}, "again")], ids=["type", "unknown"]
)
def test_bad_words_of_a_replay_are_named(api: ApiWorld, dead: str, body: dict[str, Any], field: str):
    response = replay(api, dead, body)
    assert (response.status_code, response.json()["field"]) == (422, field)


def test_trial_that_is_no_dead_letter_is_not_found(api: ApiWorld):
    trial = first_trial(api.client, submit(api.client)["id"])["id"]
    for path, method in ((trial, "GET"), (f"{trial}/replay", "POST"), (f"{trial}/discard", "POST")):
        response = api.client.request(method, f"/v1/dead-letters/{path}")
        assert (response.status_code, response.json()["code"]) == (404, "not_found")
