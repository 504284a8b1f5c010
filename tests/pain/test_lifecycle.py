"""What users of similar services found wrong with the life of sandboxes, and what attackers try on its calls.

| case | by |
|---|---|
| B-001 | below; of one that ends `tests/integration/api/test_wire_calls.py` |
| B-002 | `test_renewals_outlive_…` in `tests/chaos/test_live_faults.py` |
| B-004 | the expiry is a column, no process has timers: `test_sessions.py`, `test_session_crashes.py` |
| B-005, B-013 | `test_death_from_outside_…` in both; the record: `tests/integration/api/test_wire_calls.py` |
| B-007 | `test_delete_…` in both: queued, starting, running, pausing, paused, resuming, stopping, failed, ended |
| B-008 | `test_start_that_fails_says_why_and_holds_nothing` |
| B-010, B-011, B-017, B-140 | `tests/integration/api/test_wire_create.py` |
| B-014 | `tests/integration/queue/test_pools.py` |
| B-016 | a timeout never pauses here; what a pause keeps: `tests/contract/test_runtime.py` |
| B-019 | `tests/integration/api/test_wire_calls.py` |
| B-020 | groups of sandboxes are batches: `tests/integration/queue/test_batch_verbs.py` |
| B-022 | `tests/integration/worker/test_session_crashes.py`: the row comes first, at every point |
| B-023 | a client's cache; the server says at once how it ended: `tests/integration/api/test_wire_calls.py` |
| B-025 | names are `sm-ID-FENCE`, never used twice |
| B-133 | `tests/integration/api/test_wire_calls.py` |
| B-134, B-137, B-139 | `tests/integration/runtimes/test_image_pull.py`, `tests/pain/test_images.py` |
| B-148 | reasons of ends: `tests/integration/worker/test_sessions.py` |
| B-149 | `tests/clients/live/test_descriptors.py` |
| B-151, B-152, B-154 | clients: `tests/clients`; error bodies: `tests/integration/api/test_wire_calls.py` |
| B-155 | `test_what_is_piped_in_…` in `tests/clients/live/test_cli.py`, as far as the published program goes |
| T59, T61, T64, T65, T70, T71, T98 | `tests/integration/api/test_wire_calls.py` |
| T60 | no call takes more than one id |
| T24, T57, T83 | `tests/integration/api/test_wire_create.py` |
| T66, T67 | `tests/integration/api/test_wire_fuzz.py`, `test_wire_calls.py` |
| T68, T91 | below |
| T82 | `tests/integration/worker/test_session_crashes.py` |
| T89 | times are the database's; `test_expiry_is_judged_by_the_clock_of_the_database` |
| T45 to T56, T58 | sandboxes have no way out in this release: `tests/security/test_escape.py` |
"""

import dataclasses
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

import pytest

from services.session_sweeping import SessionSweeper
from tests.integration.api.conftest import ApiWorld, own_api  # noqa: F401 -- fixtures are found by name

pytestmark = pytest.mark.timeout(240)

BODY: dict[str, Any] = {
    "image": {"uri": "fake"},
    "timeout": 600,
    "resourceLimits": {"cpu": "1", "memory": "1Gi"},
    "entrypoint": ["tail", "-f", "/dev/null"],
}


@pytest.fixture
def api(own_api: ApiWorld) -> ApiWorld:  # noqa: F811
    services = own_api.app.state.services
    settings = services.settings.model_copy(update={"sandbox_create_wait_seconds": 0.0})
    own_api.app.state.services = dataclasses.replace(services, settings=settings)
    return own_api


def make(api: ApiWorld) -> str:
    response = api.client.post("/v1/sandboxes", json=BODY)
    assert response.status_code == 202, response.text
    return response.json()["id"]


def test_renewal_that_meets_the_expiry_counts_or_says_that_it_does_not(api):
    """B-001."""
    sweeper = SessionSweeper(api.engine, tell_nodes=lambda _: None, tell=lambda _: None)
    later = "2050-01-01T00:00:00+00:00"
    outcomes: Counter[int] = Counter()
    for number in range(40):
        sandbox = make(api)
        api.rows(
            "UPDATE sandbox_sessions SET expires_at = clock_timestamp() WHERE trial_id = %(id)s RETURNING 1",
            id=sandbox,
        )
        start = threading.Barrier(2)

        def sweep(start: threading.Barrier = start) -> None:
            start.wait(10)
            sweeper.run()

        with ThreadPoolExecutor(1) as pool:
            swept = pool.submit(sweep)
            if number % 2:
                start.wait(10)
            renewed = api.client.post(f"/v1/sandboxes/{sandbox}/renew-expiration", json={"expiresAt": later})
            if not number % 2:
                start.wait(10)
            swept.result(30)
        sweeper.run()
        outcomes[renewed.status_code] += 1
        seen = api.client.get(f"/v1/sandboxes/{sandbox}")
        if renewed.status_code == 200:
            assert datetime.fromisoformat(seen.json()["expiresAt"]) == datetime.fromisoformat(later)
        else:
            assert renewed.status_code in {404, 409}, renewed.text
            assert seen.status_code == 404
    assert outcomes[200] >= 20  # those that came first


def test_parallel_creates_stop_exactly_at_the_limit(api):
    """T68."""
    api.rows("UPDATE tenants SET max_queued = 10 WHERE id = %(me)s RETURNING 1")
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: api.client.post("/v1/sandboxes", json=BODY), range(100)))
    assert Counter(answer.status_code for answer in answers) == {202: 10, 429: 90}
    assert api.count("sandbox_sessions") == 10
    for answer in answers:
        if answer.status_code == 202:
            assert api.client.delete(f"/v1/sandboxes/{answer.json()['id']}").status_code == 204
    assert make(api)


def test_calls_at_once_on_one_sandbox_leave_it_in_one_state(api):
    """T91: every answer is one that a single caller could have had, and the end wins."""
    for _ in range(10):
        sandbox = make(api)
        path = f"/v1/sandboxes/{sandbox}"
        calls = [
            lambda path=path: api.client.delete(path),
            lambda path=path: api.client.delete(path),
            lambda path=path: api.client.post(f"{path}/pause"),
            lambda path=path: api.client.patch(f"{path}/metadata", json={"a": "b"}),
            lambda path=path: api.client.post(
                f"{path}/renew-expiration", json={"expiresAt": "2050-01-01T00:00:00Z"}
            ),
        ]
        with ThreadPoolExecutor(len(calls)) as pool:
            answers = [each.result(30).status_code for each in [pool.submit(call) for call in calls]]
        assert answers[:2] == [204, 204]
        assert answers[2] in {404, 409}
        assert set(answers[3:]) <= {200, 404, 409}
        assert api.client.get(path).status_code == 404
        events = api.client.get(f"{path}/record").json()["events"]
        assert [event["reason"] for event in events].count("SANDBOX_DELETED") == 2  # wished, and done
