"""Lists: bounded, stable while others write, and deaf to cursors of other lists."""

from urllib.parse import quote

import pytest

from tests.integration.api.conftest import ApiWorld, make_batch, make_job, submit


def walk(api: ApiWorld, path: str, limit: int) -> list[list[str]]:
    pages, cursor = [], None
    while True:
        params = {"limit": limit, **({} if cursor is None else {"cursor": cursor})}
        page = api.client.get(path, params=params).json()
        pages.append([item["id"] for item in page["items"]])
        cursor = page["next_cursor"]
        if cursor is None:
            return pages
        assert len(pages) < 50


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 500])
def test_walking_gives_every_row_once(api, limit):
    made = [submit(api.client)["id"] for _ in range(7)]
    for path in ("/v1/batches", "/v1/jobs"):
        pages = walk(api, path, limit)
        seen = [identity for page in pages for identity in page]
        assert len(seen) == len(set(seen)) == 7
        assert all(len(page) <= limit for page in pages)
        if path == "/v1/batches":
            assert seen == made[::-1]


def test_walking_the_jobs_and_trials_of_a_batch_keeps_the_order_of_the_request(api):
    jobs = [make_job(key=f"j{n}", trials={"count": 2}) for n in range(5)]
    batch = submit(api.client, make_batch(jobs=jobs))
    path = f"/v1/batches/{batch['id']}"
    assert sum(len(page) for page in walk(api, f"{path}/trials", 3)) == 10
    keys, cursor = [], None
    while True:
        page = api.client.get(
            f"{path}/jobs", params={"limit": 2, **({"cursor": cursor} if cursor else {})}
        ).json()
        keys += [job["key"] for job in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert keys == ["j0", "j1", "j2", "j3", "j4"]


def test_rows_made_meanwhile_shift_no_page(api):
    made = [submit(api.client)["id"] for _ in range(4)]
    first = api.client.get("/v1/batches?limit=2").json()
    submit(api.client)
    second = api.client.get("/v1/batches", params={"limit": 2, "cursor": first["next_cursor"]}).json()
    assert [b["id"] for b in first["items"] + second["items"]] == made[::-1]


def test_cursors_of_other_lists_filters_and_tenants_are_refused(api):
    jobs = [make_job(key=f"j{n}") for n in range(3)]
    one, two = (submit(api.client, make_batch(jobs=jobs))["id"] for _ in range(2))
    cursor = api.client.get(f"/v1/batches/{one}/trials?limit=1&state=queued").json()["next_cursor"]
    listing = api.client.get("/v1/batches?limit=1").json()["next_cursor"]

    def status(client, path, used):
        return client.get(f"{path}{'&' if '?' in path else '?'}cursor={quote(used)}").status_code

    path = f"/v1/batches/{one}"
    assert status(api.client, f"{path}/trials?state=queued", cursor) == 200
    with api.new_client("stranger") as stranger:
        assert status(stranger, "/v1/batches", listing) == 422
    for other in (f"{path}/trials", f"/v1/batches/{two}/trials?state=queued", f"{path}/jobs", "/v1/jobs"):
        assert status(api.client, other, cursor) == 422, other
    for made_up in ("", "x", "AAAA", "é", "x" * 9000):
        assert status(api.client, "/v1/batches", made_up) == 422
