"""A live sandbox over the wire: create to the first command's output, alone and fifty at once, and a list of many.

References, taken in turn with the rest: docker-py's create and start of the same image, and fork and exec of /bin/true.
"""

import argparse
import json
import socket
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import docker
import httpx

from benchmarks.timing import fork_exec, median, percentile, timed
from launcher.stack import Stack, StackConfig
from tests.support.images import DEBIAN_IMAGE, docker_problem, ensure_debian_image

CROWD = 50
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
    environment = {
        "SANDMILL_RUNTIME": runtime,
        "SANDMILL_RUNTIMES": json.dumps([runtime]),
        "SANDMILL_INGRESS_PORT": str(_free_port()),
        "SANDMILL_WORKER_CPU_MILLICORES": "1000000",
        "SANDMILL_WORKER_MEMORY_BYTES": str(1 << 40),
        "SANDMILL_LOG_LEVEL": "warning",
    }
    with tempfile.TemporaryDirectory(prefix="sandmill-bench-") as home:
        config = StackConfig(home=Path(home), with_flower=False, environment=environment)
        with Stack(config) as stack, httpx.Client(timeout=120) as http:
            return _measure(Api(http, stack.api_url, stack.api_key, IMAGES[runtime]), runtime, repeat)


def _measure(api: "Api", runtime: str, repeat: int) -> dict[str, Any]:
    for _ in range(5):
        api.kill(api.first_output()[0])  # warm
    creates, outputs, baselines, bare = [], [], [], []
    engine = docker.from_env().api if runtime == "docker" else None
    for _ in range(repeat):
        sandbox, created, said = api.first_output()
        api.kill(sandbox)
        creates.append(created)
        outputs.append(said)
        baselines += timed(fork_exec)
        if engine is not None:
            bare.append(bare_start(engine))
        time.sleep(0.05)
    rate = None if engine is None else bare_rate()
    crowd, seconds = crowd_ms(api)
    result = {
        "benchmark": "live_sandboxes",
        "runtime": runtime,
        "create_ms_p50": round(median(creates), 1),
        "first_output_ms_p50": round(median(outputs), 1),
        "first_output_per_fork_exec": round(median(outputs) / median(baselines), 1),
        "crowd": CROWD,
        "crowd_ms_p99": round(percentile(crowd, 99), 1),
        "crowd_seconds": round(seconds, 2),
    }
    if bare and rate:
        result |= {
            "docker_py_create_start_ms_p50": round(median(bare), 1),
            "first_output_per_docker_py": round(median(outputs) / median(bare), 3),
            "docker_py_per_second": round(rate, 2),
            "crowd_p99_per_bare": round(percentile(crowd, 99) / 1000 / (CROWD / rate), 3),
        }
    return result


class Api:
    """The calls an official client makes, over kept connections."""

    def __init__(self, http: httpx.Client, url: str, key: str, image: str) -> None:
        self._http = http
        self._url = f"{url}/v1/sandboxes"
        self._headers = {"OPEN-SANDBOX-API-KEY": key}
        self._image = image

    def create(self) -> str:
        body = {
            "image": {"uri": self._image},
            "timeout": 600,
            "resourceLimits": {"cpu": "1", "memory": "256Mi"},
            "entrypoint": ["tail", "-f", "/dev/null"],
        }
        answer = self._http.post(self._url, json=body, headers=self._headers)
        answer.raise_for_status()
        return str(answer.json()["id"])

    def run(self, sandbox: str) -> None:
        """Return with the first output of a command."""
        answer = self._http.get(f"{self._url}/{sandbox}/endpoints/44772", headers=self._headers)
        answer.raise_for_status()
        endpoint = answer.json()
        with self._http.stream(
            "POST",
            f"http://{endpoint['endpoint']}/command",
            json={"command": "echo ready"},
            headers=endpoint.get("headers", {}),
        ) as events:
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

    def kill(self, sandbox: str) -> None:
        self._http.delete(f"{self._url}/{sandbox}", headers=self._headers).raise_for_status()


def crowd_ms(api: Api) -> tuple[list[float], float]:
    """Create fifty at once; gives the milliseconds of each until its first output, and the seconds of all."""
    started = time.perf_counter()
    with ThreadPoolExecutor(CROWD) as pool:
        made = list(pool.map(lambda _: api.first_output(), range(CROWD)))
    seconds = time.perf_counter() - started
    if len({sandbox for sandbox, _, _ in made}) != CROWD:
        raise RuntimeError("a sandbox was lost")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda each: api.kill(each[0]), made))
    return [said for _, _, said in made], seconds


def bare_start(engine: Any) -> float:
    """Milliseconds of docker-py's create and start of the same image, without a network as ours are."""
    started = time.perf_counter()
    container = engine.create_container(DEBIAN_IMAGE, ["sleep", "600"], network_disabled=True)["Id"]
    try:
        engine.start(container)
        return (time.perf_counter() - started) * 1000
    finally:
        engine.remove_container(container, force=True)


def bare_rate() -> float:
    """How many a second docker-py creates and starts, as many at a time as serve the engine best here."""

    def start(engine: Any) -> str:
        container = engine.create_container(DEBIAN_IMAGE, ["sleep", "600"], network_disabled=True)["Id"]
        engine.start(container)
        return str(container)

    rates = []
    for width in (2, 4):
        engine = docker.from_env().api
        started = time.perf_counter()
        with ThreadPoolExecutor(width) as pool:
            made = list(pool.map(lambda _, engine=engine: start(engine), range(16)))
        rates.append(16 / (time.perf_counter() - started))
        for container in made:
            engine.remove_container(container, force=True)
    return max(rates)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


if __name__ == "__main__":
    main()
