"""What a warm pool saves: a create that is given a member, against one that starts a sandbox, in turn, by one client.

Reference for the API itself: a list of one sandbox. `--runtime docker` measures containers. Then the same of a job,
from the claim of its attempt to its first step, by the clock of the database.
"""

import argparse
import json
import socket
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from benchmarks.timing import median, summary, timed_into
from tests.support.images import BUSYBOX_IMAGE, ensure_images
from tests.support.running_stack import running_stack

_POOL = "bench"
_REFILL_SECONDS = 30.0


def main() -> None:
    """Measure and print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=40, help="creates of each kind")
    parser.add_argument("--runtime", choices=("local", "docker"), default="local")
    options = parser.parse_args()
    image = "host"
    if options.runtime == "docker":
        ensure_images()
        image = BUSYBOX_IMAGE
    env = {"SANDMILL_RUNTIMES": json.dumps([options.runtime]), "SANDMILL_RUNTIME": options.runtime}
    with tempfile.TemporaryDirectory() as folder, running_stack(Path(folder) / "home", env) as stack:
        headers = {"OPEN-SANDBOX-API-KEY": stack.api_key}
        with httpx.Client(base_url=stack.api_url, headers=headers, timeout=60) as client:
            result = measure(client, image, options.pairs) | measure_jobs(client, image, options.pairs)
            print(json.dumps(result | {"runtime": options.runtime}))


def measure(client: httpx.Client, image: str, pairs: int) -> dict[str, Any]:
    """Take pairs of a hit and a cold create, and one list beside each; milliseconds."""
    hits: list[float] = []
    cold: list[float] = []
    lists: list[float] = []
    size = {"bufferMin": 2, "bufferMax": 2, "poolMin": 0, "poolMax": 4}
    body = {"name": _POOL, "template": {"image": {"uri": image}}, "capacitySpec": size}
    client.post("/v1/pools", json=body).raise_for_status()
    try:
        for number in range(pairs + 3):
            is_warm_up = number < 3
            _wait_for_members(client, size["bufferMax"])
            with timed_into([] if is_warm_up else hits):
                one = create(client, {"extensions": {"poolRef": _POOL}}, is_hit=True)
            _delete(client, one)
            _wait_for_members(client, size["bufferMax"])
            with timed_into([] if is_warm_up else cold):
                # A variable that no pool has, so that none can answer.
                other = create(client, _plain(image, {"N": str(number)}), is_hit=False)
            _delete(client, other)
            with timed_into([] if is_warm_up else lists):
                client.get("/v1/sandboxes", params={"pageSize": 1}).raise_for_status()
        is_probed = _has_ingress(client, image)
    finally:
        client.delete(f"/v1/pools/{_POOL}")
    return {
        "benchmark": "pool_hit",
        "pairs": pairs,
        "probed": is_probed,
        **summary("hit", hits, {"cold": median(cold), "list": median(lists)}),
        **summary("cold", cold, {}),
        **summary("list", lists, {}),
    }


def measure_jobs(client: httpx.Client, image: str, pairs: int) -> dict[str, Any]:
    """Take pairs of jobs that differ in the workdir alone, for one of which there is a pool; milliseconds."""
    hits: list[float] = []
    cold: list[float] = []
    size = {"bufferMin": 2, "bufferMax": 2, "poolMin": 0, "poolMax": 4}
    template = {"image": {"uri": image}, "extensions": {"sandmill.for": "jobs", "sandmill.workdir": "/tmp/w"}}
    client.post(
        "/v1/pools", json={"name": _POOL, "template": template, "capacitySpec": size}
    ).raise_for_status()
    try:
        for number in range(pairs + 3):
            for workdir, times in (("/tmp/w", hits), ("/tmp/v", cold)):
                _wait_for_members(client, size["bufferMax"])
                milliseconds = _run_job(client, image, workdir)
                if number >= 3:
                    times.append(milliseconds)
    finally:
        client.delete(f"/v1/pools/{_POOL}")
    return {**summary("job_hit", hits, {"job_cold": median(cold)}), **summary("job_cold", cold, {})}


def _run_job(client: httpx.Client, image: str, workdir: str) -> float:
    """Run one to its end; gives milliseconds from the claim of its attempt to its first step."""
    job = {"image": image, "workdir": workdir, "steps": [{"name": "run", "run": "true"}]}
    answer = client.post("/v1/jobs", json=job)
    answer.raise_for_status()
    path = f"/v1/batches/{answer.json()['batch_id']}/trials"
    trial_id = client.get(path).json()["items"][0]["id"]
    deadline = time.monotonic() + _REFILL_SECONDS
    while time.monotonic() < deadline:
        trial = client.get(f"/v1/trials/{trial_id}").json()
        if trial["outcome"] == "passed":
            (attempt,) = trial["attempts"]
            claimed, started = (datetime.fromisoformat(attempt[key]) for key in ("claimed_at", "started_at"))
            return 1000 * (started - claimed).total_seconds()
        time.sleep(0.02)
    message = f"a job did not pass: {trial}"
    raise RuntimeError(message)


def create(client: httpx.Client, body: dict[str, Any], *, is_hit: bool) -> str:
    """Create one that runs when the answer comes; gives its id."""
    answer = client.post("/v1/sandboxes", json={"timeout": 600, **body})
    answer.raise_for_status()
    sandbox = answer.json()
    if sandbox["status"]["state"] != "Running" or ("allocation" in sandbox) is not is_hit:
        message = f"not what was to be measured: {sandbox}"
        raise RuntimeError(message)
    return str(sandbox["id"])


def _plain(image: str, env: dict[str, str]) -> dict[str, Any]:
    return {
        "image": {"uri": image},
        "resourceLimits": {"cpu": "1", "memory": "2Gi"},
        "entrypoint": ["tail", "-f", "/dev/null"],
        "env": env,
    }


def _delete(client: httpx.Client, sandbox_id: str) -> None:
    client.delete(f"/v1/sandboxes/{sandbox_id}").raise_for_status()


def _wait_for_members(client: httpx.Client, number: int) -> None:
    """Until the pool is filled and nothing starts or ends: neither kind of create should pay for the other's."""
    deadline = time.monotonic() + _REFILL_SECONDS
    while time.monotonic() < deadline:
        status = client.get(f"/v1/pools/{_POOL}").json()["status"]
        if status["available"] == status["total"] == number:
            return
        time.sleep(0.05)
    message = f"the pool was not filled again: {status}"
    raise RuntimeError(message)


def _has_ingress(client: httpx.Client, image: str) -> bool:
    """Whether members were asked before they were given: only where an ingress runs can they be."""
    sandbox_id = create(client, _plain(image, {"N": "last"}), is_hit=False)
    endpoint = client.get(f"/v1/sandboxes/{sandbox_id}/endpoints/44772").json()["endpoint"]
    _delete(client, sandbox_id)
    parts = urlsplit(f"http://{endpoint}")
    try:
        socket.create_connection((parts.hostname or "", parts.port or 80), timeout=1).close()
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main()
