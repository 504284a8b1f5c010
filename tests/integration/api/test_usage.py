"""What a tenant used: whose, when, and by whose fault."""

from datetime import UTC, date, datetime, timedelta

import pytest

from tests.integration.api.conftest import submit


def run_one(api, seat, **end):
    submit(api.client)
    api.world.dispatcher.tick()
    world = api.world
    bell = world.execute("SELECT trial_id, fence FROM attempts ORDER BY created_at DESC LIMIT 1")[0]
    claimed = seat.claim(_Bell(**bell))
    assert claimed is not None
    seat.start(claimed)
    assert seat.finish(claimed, **end)
    return bell


class _Bell:
    def __init__(self, trial_id, fence):
        self.trial_id, self.fence = trial_id, fence


USED = '{"cpu_seconds": 2.5, "memory_peak_bytes": 1000, "log_bytes": 10}'
BROKEN = '{"class": "infra", "code": "execd_unreachable", "message": "x"}'


def test_own_and_infra_attempts_are_metered_apart(own_api):
    seat = own_api.world.session()
    run_one(own_api, seat, usage=USED)
    run_one(own_api, seat, usage='{"cpu_seconds": 0.5, "memory_peak_bytes": 5000, "log_bytes": 1}')
    run_one(own_api, seat, usage=USED, outcome="error", failure=BROKEN)
    usage = own_api.client.get("/v1/usage").json()
    task, infra = usage["task"], usage["infra"]
    assert (task["attempts"], task["cpu_seconds"], task["memory_peak_bytes"], task["log_bytes"]) == (
        2,
        3.0,
        5000,
        11,
    )
    assert (infra["attempts"], infra["cpu_seconds"], infra["memory_peak_bytes"]) == (1, 2.5, 1000)
    assert task["attempt_seconds"] > 0
    today = datetime.now(UTC).date()
    assert [day["day"] for day in usage["days"]] == [today.isoformat()]
    assert usage["days"][0]["task"] == task
    assert date.fromisoformat(usage["to"]) == today + timedelta(days=1)


def test_artifacts_count_and_other_tenants_do_not(own_api):
    seat = own_api.world.session()
    bell = run_one(own_api, seat, usage=USED)
    own_api.rows(
        "INSERT INTO artifacts (trial_id, fence, path, tenant_id, digest, size_bytes)"
        " VALUES (%(t)s, %(f)s, '/a', %(me)s, 'sha256:0', 77), (%(t)s, %(f)s, '/b', %(me)s, 'sha256:1', 3)",
        t=bell["trial_id"],
        f=bell["fence"],
    )
    assert own_api.client.get("/v1/usage").json()["task"]["artifact_bytes"] == 80
    with own_api.new_client(tenant="other") as other:
        assert other.get("/v1/usage").json()["task"]["attempts"] == 0


def test_archived_days_are_added_to_what_is_not_archived(own_api):
    seat = own_api.world.session()
    run_one(own_api, seat, usage=USED)
    today = datetime.now(UTC).date()
    for day in (today, today - timedelta(days=3), today - timedelta(days=40)):
        own_api.rows(
            "INSERT INTO usage_days VALUES (%(me)s, %(day)s, 'task', 5, 50, 5.5, 9000, 100, 10)", day=day
        )
    usage = own_api.client.get("/v1/usage").json()
    assert (usage["task"]["attempts"], usage["task"]["cpu_seconds"]) == (11, 13.5)
    assert usage["task"]["memory_peak_bytes"] == 9000
    longer = own_api.client.get("/v1/usage", params={"from": str(today - timedelta(days=40))}).json()
    assert longer["task"]["attempts"] == 5


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"from": "2026-01-02", "to": "2026-01-02"}, "to"),
        ({"from": "2024-01-01", "to": "2026-01-02"}, "to"),
        ({"from": "yesterday"}, "from"),
        ({"since": "2026-01-01"}, "since"),
    ],
)
def test_bad_ranges_name_the_field(api, query, field):
    response = api.client.get("/v1/usage", params=query)
    assert (response.status_code, response.json()["field"]) == (422, field)
