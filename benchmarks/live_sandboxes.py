"""A live sandbox over the wire: create to the first command's output, alone and fifty at once.

References, taken in turn with the rest: docker-py's create and start of the same image in each way of connecting it,
and fork and exec of /bin/true.
"""

import argparse
import json
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from benchmarks.bare_docker import WAYS, bare_rates, bare_start, open_engine
from benchmarks.timing import fork_exec, median, percentile, timed
from launcher.stack import Stack, StackConfig
from tests.support.images import DEBIAN_IMAGE, docker_problem, ensure_debian_image

CROWD = 50
RETRY_SECONDS = 0.002
IMAGES = {"local": "host", "docker": DEBIAN_IMAGE}


def main() -> None:
    """Run both runtimes, as far as there are, and print one JSON line each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=40, help="creates one after another")
    parser.add_argument("--only", choices=sorted(IMAGES), action="append", help="of these runtimes alone")
    arguments = parser.parse_args()
    problem = docker_problem()
    for runtime in arguments.only or IMAGES:
        if runtime == "docker" and problem is not None:
            print(json.dumps({"benchmark": "live_sandboxes", "runtime": runtime, "skipped": problem}))
            continue
        if runtime == "docker":
            ensure_debian_image()
        print(json.dumps(measure(runtime, arguments.repeat)))


def measure(runtime: str, repeat: int) -> dict[str, Any]:
    """Start an installation of this runtime and take all sides in turn."""
    with running(runtime) as api:
        return _measure(api, runtime, repeat)


@contextmanager
def running(runtime: str) -> Iterator["Api"]:
    """Give the API of an installation with one runtime."""
    environment = {
        "SANDMILL_RUNTIME": runtime,
        "SANDMILL_RUNTIMES": json.dumps([runtime]),
        "SANDMILL_INGRESS_PORT": str(free_port()),
        "SANDMILL_WORKER_CPU_MILLICORES": "1000000",
        "SANDMILL_WORKER_MEMORY_BYTES": str(1 << 40),
        "SANDMILL_LOG_LEVEL": "warning",
    }
    with tempfile.TemporaryDirectory(prefix="sandmill-bench-") as home:
        config = StackConfig(home=Path(home), with_flower=False, environment=environment)
        with Stack(config) as stack, httpx.Client(timeout=120) as http:
            yield Api(http, stack.api_url, stack.api_key, IMAGES[runtime])


def _measure(api: "Api", runtime: str, repeat: int) -> dict[str, Any]:
    for _ in range(5):
        api.kill(api.first_output()[0])  # warm
    ways = WAYS if runtime == "docker" else {}
    creates, outputs, baselines = [], [], []
    bare: dict[str, list[float]] = {way: [] for way in ways}
    with open_engine() if ways else nullcontext() as engine:
        for _ in range(repeat):
            sandbox, created, said = api.first_output()
            api.kill(sandbox)
            creates.append(created)
            outputs.append(said)
            baselines += timed(fork_exec)
            for way in ways:
                bare[way].append(bare_start(engine, DEBIAN_IMAGE, way))
            time.sleep(0.05)
    rates = bare_rates(DEBIAN_IMAGE) if ways else {}
    crowd = make_crowd(api)
    if crowd.lost:
        raise RuntimeError(f"{crowd.lost} sandboxes were lost")
    remove_crowd(api, crowd)
    result = {
        "benchmark": "live_sandboxes",
        "runtime": runtime,
        "create_ms_p50": round(median(creates), 1),
        "first_output_ms_p50": round(median(outputs), 1),
        "first_output_per_fork_exec": round(median(outputs) / median(baselines), 1),
        "crowd": CROWD,
        "crowd_ms_p99": round(percentile(crowd.times_ms, 99), 1),
        "crowd_seconds": round(crowd.seconds, 2),
    }
    slowest = percentile(crowd.times_ms, 99) / 1000
    for way in ways:
        result |= {
            f"docker_py_{way}_ms_p50": round(median(bare[way]), 1),
            f"first_output_per_docker_py_{way}": round(median(outputs) / median(bare[way]), 3),
            f"docker_py_{way}_per_second": round(rates[way], 2),
            f"crowd_p99_per_docker_py_{way}": round(slowest / (CROWD / rates[way]), 3),
        }
    return result


class Api:
    """The calls an official client makes, over kept connections."""

    def __init__(
        self, http: httpx.Client, url: str, key: str, image: str, *, patience_seconds: float = 0
    ) -> None:
        """patience_seconds: how long to try again where nobody listens yet in a sandbox that is said to run."""
        self._patience_seconds = patience_seconds
        self._http = http
        self._url = f"{url}/v1/sandboxes"
        self._headers = {"OPEN-SANDBOX-API-KEY": key}
        self._image = image
        self.alive: set[str] = set()

    def create(self) -> str:
        body = {
            "image": {"uri": self._image},
            "timeout": 600,
            "resourceLimits": {"cpu": "1", "memory": "256Mi"},
            "entrypoint": ["tail", "-f", "/dev/null"],
        }
        answer = self._http.post(self._url, json=body, headers=self._headers)
        answer.raise_for_status()
        sandbox = str(answer.json()["id"])
        self.alive.add(sandbox)
        return sandbox

    def run(self, sandbox: str) -> None:
        """Return with the first output of a command."""
        answer = self._http.get(f"{self._url}/{sandbox}/endpoints/44772", headers=self._headers)
        answer.raise_for_status()
        endpoint = answer.json()
        deadline = time.perf_counter() + self._patience_seconds
        while True:
            try:
                return self._say(f"http://{endpoint['endpoint']}/command", endpoint.get("headers", {}))
            except httpx.TransportError:
                if time.perf_counter() > deadline:
                    raise
            time.sleep(RETRY_SECONDS)

    def _say(self, url: str, headers: dict[str, str]) -> None:
        with self._http.stream("POST", url, json={"command": "echo ready"}, headers=headers) as events:
            events.raise_for_status()
            for line in events.iter_lines():
                if '"stdout"' in line:
                    return
        raise RuntimeError("the command said nothing")

    def first_output(self) -> tuple[str, float, float]:
        """Give a sandbox's id, and the milliseconds until it was made and until its first command said something."""
        started = time.perf_counter()
        sandbox = self.create()
        created = time.perf_counter()
        self.run(sandbox)
        return sandbox, (created - started) * 1000, (time.perf_counter() - started) * 1000

    def list_page(self, size: int) -> int:
        """Give how many sandboxes the newest page has."""
        answer = self._http.get(self._url, params={"pageSize": size}, headers=self._headers)
        answer.raise_for_status()
        return len(answer.json()["items"])

    def kill(self, sandbox: str) -> None:
        self._http.delete(f"{self._url}/{sandbox}", headers=self._headers).raise_for_status()
        self.alive.discard(sandbox)


@dataclass(frozen=True)
class Crowd:
    """Sandboxes made at once. times_ms: of each until its first output; seconds: until all had said something."""

    sandboxes: list[str]
    times_ms: list[float]
    seconds: float
    lost: int


def make_crowd(api: Api, count: int = CROWD) -> Crowd:
    """Create so many at once; they stay. Those whose calls fail are counted as lost."""

    def one(_: int) -> tuple[str, float, float] | None:
        try:
            return api.first_output()
        except httpx.HTTPError as error:
            print(f"lost: {error!r}", file=sys.stderr)
            return None

    started = time.perf_counter()
    with ThreadPoolExecutor(count) as pool:
        made = [each for each in pool.map(one, range(count)) if each is not None]
    seconds = time.perf_counter() - started
    sandboxes = [sandbox for sandbox, _, _ in made]
    return Crowd(sandboxes, [said for _, _, said in made], seconds, count - len(set(sandboxes)))


def remove_crowd(api: Api, crowd: Crowd) -> None:
    """Kill them."""
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(api.kill, crowd.sandboxes))


def free_port() -> int:
    """Give a port of the loopback that nobody listens on now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


if __name__ == "__main__":
    main()
