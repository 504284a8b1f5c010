"""Sandmill on `docker` beside the published opensandbox-server: the same calls on the same engine and image, in turn.

The server comes from its package, in an environment of its own, with the settings of its example. Its execd would be
pulled from a registry: in its place stands the smallest that can answer (`reference_execd`), which makes the reference
rather faster than it is. Its ports are published on the loopback alone, which spares it a forwarder for each.
Further references: docker-py's create and start in each way of connecting a container.
"""

import argparse
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import docker
import httpx

from benchmarks.bare_docker import WAYS, bare_rates, bare_start, open_engine
from benchmarks.live_sandboxes import CROWD, Api, Crowd, free_port, make_crowd, remove_crowd, running
from benchmarks.timing import median, percentile, timed_into
from tests.support.client_environment import client_environment
from tests.support.images import DEBIAN_IMAGE, derived_image, docker_problem, ensure_debian_image

HERE = Path(__file__).parent
LOCK = HERE / "requirements-published-server.lock"
EXECD_SOURCE = HERE / "reference_execd" / "main.go"
KEY = "reference"
EXECD_SECONDS = 30
"""How long its execd may take to listen in a container that has been started."""

PAGE = 20
LISTS = 5

BOOTSTRAP = b"""#!/bin/sh
/opt/opensandbox/execd &
exec "$@"
"""
"""What the server starts every container with: the way of the image is to start execd beside the entrypoint."""

CONFIG = """
[server]
host = "{host}"
port = {port}
api_key = "{key}"
[log]
level = "WARNING"
[runtime]
type = "docker"
execd_image = "{execd_image}"
[store]
type = "sqlite"
path = "{folder}/server.db"
[docker]
network_mode = "{network}"
drop_capabilities = [
  "AUDIT_WRITE", "MKNOD", "NET_ADMIN", "NET_RAW", "SYS_ADMIN", "SYS_MODULE", "SYS_PTRACE", "SYS_TIME", "SYS_TTY_CONFIG",
]
no_new_privileges = true
pids_limit = 4096
publish_host = "{host}"
sandbox_env = {{ REFERENCE_EXECD_ADDRESS = "{execd_address}" }}
"""

HOST = "127.0.44.72"
"""A part of the loopback of its own: on a busy machine some connection may hold execd's port of 127.0.0.1."""

NETWORKS = {"bridge": ":44772", "host": f"{HOST}:44772"}
"""Where execd listens, by the server's network mode. `host` is for one sandbox at a time: all share that port. In a
third mode, `none`, it tells of endpoints at which nobody listens.
"""


def main() -> None:
    """Measure and print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--repeat", type=int, default=30, help="creates of each kind, one after another, in turn"
    )
    parser.add_argument("--rounds", type=int, default=2, help="crowds of each kind, in turn")
    parser.add_argument("--crowd", type=int, default=CROWD, help="creates at once")
    options = parser.parse_args()
    problem = docker_problem() or (
        None if shutil.which("go") else "no Go toolchain to build the reference execd with"
    )
    if problem is not None:
        print(json.dumps({"benchmark": "published_server", "skipped": problem}))
        return
    ensure_debian_image()
    with ExitStack() as stack:
        programs = client_environment(LOCK)
        execd = build_execd()
        files = {"execd": execd, "bootstrap.sh": BOOTSTRAP}
        image = stack.enter_context(derived_image(DEBIAN_IMAGE, "ENV PATH=/usr/bin:/bin", files=files))
        sides = {"sandmill": stack.enter_context(running("docker"))}
        for network in NETWORKS:
            api = stack.enter_context(published(programs, image, network))
            sides[f"published_{network}"] = api
        result = {
            "benchmark": "published_server",
            "published_version": installed_version(programs),
            "reference_execd_bytes": len(execd),
            "cpus": os.cpu_count(),
            "load": round(os.getloadavg()[0], 1),
            **one_by_one(sides, options.repeat),
            **crowds(
                {name: sides[name] for name in ("sandmill", "published_bridge")},
                options.crowd,
                options.rounds,
            ),
        }
    print(json.dumps(result))


def build_execd() -> bytes:
    """Give the static program."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "execd")
        argv = ["go", "build", "-trimpath", "-ldflags=-s -w", "-o", str(program), str(EXECD_SOURCE)]
        subprocess.run(argv, check=True, env={**os.environ, "CGO_ENABLED": "0"}, timeout=300)
        return program.read_bytes()


def installed_version(programs: Path) -> str:
    """Give the version of the published server."""
    program = "import importlib.metadata as m; print(m.version('opensandbox-server'))"
    done = subprocess.run(
        [str(programs / "python"), "-c", program], check=True, capture_output=True, text=True, timeout=60
    )
    return done.stdout.strip()


@contextmanager
def published(programs: Path, execd_image: str, network: str) -> Iterator[Api]:
    """Run the published server with one network mode; gives its API. Its containers are removed with it."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="sandmill-bench-") as folder, httpx.Client(timeout=120) as http:
        config = Path(folder, "config.toml")
        values = {"host": HOST, "port": port, "key": KEY, "folder": folder}
        values |= {"execd_image": execd_image, "network": network, "execd_address": NETWORKS[network]}
        config.write_text(CONFIG.format(**values))
        api = Api(http, f"http://{HOST}:{port}", KEY, DEBIAN_IMAGE, patience_seconds=EXECD_SECONDS)
        with Path(folder, "log").open("wb") as log:
            argv = [str(programs / "opensandbox-server"), "--config", str(config)]
            process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder)
            try:
                wait_until_healthy(http, port, process, Path(folder, "log"))
                yield api
            finally:
                remove_left(api)
                process.terminate()
                process.wait(timeout=30)


def wait_until_healthy(http: httpx.Client, port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Return when it answers; raises with its last words if it ends or takes a minute."""
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        try:
            if http.get(f"http://{HOST}:{port}/health").status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.1)
    raise RuntimeError(f"the published server did not start: {log.read_text()[-2000:]}")


def remove_left(api: Api) -> None:
    """Remove containers that a failed run left: nothing else would."""
    with open_engine() as engine:
        for sandbox in api.alive:
            try:
                engine.remove_container(f"sandbox-{sandbox}", force=True)
            except docker.errors.NotFound:
                continue


def one_by_one(sides: Mapping[str, Api], repeat: int) -> dict[str, Any]:
    """Create, hear a command and kill at each side in turn, and start a bare container in each way."""
    for api in sides.values():
        for _ in range(3):
            api.kill(
                api.first_output()[0]
            )  # warm; the first of the published server fetches execd out of its image
    creates: dict[str, list[float]] = {name: [] for name in sides}
    outputs: dict[str, list[float]] = {name: [] for name in [*sides, *(f"docker_py_{way}" for way in WAYS)]}
    with open_engine() as engine:
        for _ in range(repeat):
            for name, api in sides.items():
                sandbox, created, said = api.first_output()
                api.kill(sandbox)
                creates[name].append(created)
                outputs[name].append(said)
            for way in WAYS:
                outputs[f"docker_py_{way}"].append(bare_start(engine, DEBIAN_IMAGE, way))
    return {
        "create_ms_p50": medians(creates),
        "first_output_ms_p50": medians(outputs),
        "first_output_per": per(outputs, "sandmill"),
    }


def crowds(sides: Mapping[str, Api], count: int, rounds: int) -> dict[str, Any]:
    """Create many at once at each side in turn, and a page of the list while they are there.

    In each round beside them the rate of bare containers: it changes from minute to minute.
    """
    made: dict[str, list[Crowd]] = {name: [] for name in sides}
    pages: dict[str, list[float]] = {name: [] for name in sides}
    bare: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(rounds):
        for name, api in sides.items():
            crowd = make_crowd(api, count)
            made[name].append(crowd)
            for _ in range(LISTS):
                with timed_into(pages[name]):
                    api.list_page(PAGE)
            remove_crowd(api, crowd)
        for way, rate in bare_rates(DEBIAN_IMAGE).items():
            bare[way].append(1000 * count / rate)
    slowest = {
        name: [percentile(crowd.times_ms, 99) for crowd in each if crowd.times_ms]
        for name, each in made.items()
    }
    slowest |= {f"docker_py_{way}": times for way, times in bare.items()}
    return {
        "crowd": count,
        "crowd_lost": {name: sum(crowd.lost for crowd in each) for name, each in made.items()},
        "crowd_ms_p99": medians(slowest),
        "crowd_p99_per": per(slowest, "sandmill"),
        f"list_page_of_{PAGE}_among_{count}_ms_p50": medians(pages),
        "list_page_per": per(pages, "sandmill"),
    }


def medians(values: Mapping[str, list[float]]) -> dict[str, float]:
    """Middle value of each."""
    return {name: round(median(each), 1) for name, each in values.items()}


def per(values: Mapping[str, list[float]], subject: str) -> dict[str, float]:
    """Ratio of the subject's middle value to that of each of the others."""
    return {
        name: round(median(values[subject]) / median(each), 3)
        for name, each in values.items()
        if name != subject
    }


if __name__ == "__main__":
    main()
