"""A tenant with a guaranteed share gets it from one that took all, through every process of a real stack."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.installation import Installation, installation, local, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

SLOTS = 2


@pytest.fixture
def home(tmp_path) -> Iterator[Installation]:
    settings = {"SANDMILL_WORKER_SLOTS": str(SLOTS), "SANDMILL_PREEMPT_AFTER_SECONDS": "1"}
    # What is handed out is what slots are made of: else half of the machine would be free, and nobody would be in need.
    settings |= {"SANDMILL_WORKER_CPU_MILLICORES": "2000", "SANDMILL_WORKER_MEMORY_BYTES": str(4 << 30)}
    with installation(tmp_path, **settings) as running:
        yield running


def submit(http: Any, job: dict[str, Any]) -> str:
    reply = http.post("/v1/batches", json={"jobs": [job]})
    reply.raise_for_status()
    return reply.json()["id"]


def trials(http: Any, batch: str) -> list[dict[str, Any]]:
    found = http.get(f"/v1/batches/{batch}/trials").json()["items"]
    return [http.get(f"/v1/trials/{trial['id']}").json() for trial in found]


def test_what_was_guaranteed_is_taken_back_and_costs_the_other_no_retry(home: Installation):
    greedy, guaranteed = home.new_tenant("greedy"), home.new_tenant("guaranteed", guaranteed_share=0.5)
    with greedy, guaranteed:
        whole = {"cpu": 1, "memory_mb": 256}
        # TERM is not listened to: the grace is what ends it.
        long = local("trap '' TERM; while :; do sleep 0.1; done", resources=whole, preemptible=True)
        long |= {"trials": {"count": SLOTS}, "timeouts": {"grace": 1, "total": 3600}}
        taken = submit(greedy, long)
        wait_for(lambda: [t["state"] for t in trials(greedy, taken)] == ["running"] * SLOTS)
        wait_for(lambda: all(t["attempts"][-1]["state"] == "running" for t in trials(greedy, taken)))

        needed = submit(guaranteed, local("exit 0", resources=whole))
        wait_for(lambda: trials(guaranteed, needed)[0]["state"] == "finished", seconds=120)
        (passed,) = trials(guaranteed, needed)
        assert (passed["outcome"], len(passed["attempts"])) == ("passed", 1)

        def lost_one() -> list[dict[str, Any]]:
            return [t for t in trials(greedy, taken) if t["attempts"][0]["state"] == "finished"]

        # The younger one, and no more than had to go.
        (victim,) = lost_one()
        first = victim["attempts"][0]
        assert (first["outcome"], first["failure"]["code"]) == ("error", "preempted")
        # It has its place back once there is room, and nothing was counted against it.
        wait_for(lambda: [t["attempts"][-1]["state"] for t in trials(greedy, taken)] == ["running"] * SLOTS)
        (again,) = lost_one()
        assert (again["infra_losses"], again["task_retries"], len(again["attempts"])) == (0, 0, 2)
        greedy.post(f"/v1/batches/{taken}/cancel", json={"mode": "force"}).raise_for_status()
        wait_for(lambda: all(t["state"] == "finished" for t in trials(greedy, taken)))
