"""What this project adds to the start of a container: until execd answers, against the engine's own create and start.

One after the other, in pairs taken in turn; then many at once, against the rate at which the bare engine starts as many
by as many threads as the runtime lets at it.
"""

import argparse
import json
import os
import resource
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import docker

from benchmarks.timing import median, percentile, timed_into
from core.ids import new_id
from runtimes.base import ResourceLimits, SandboxHandle, SandboxSpec
from runtimes.docker import DockerConfig, DockerRuntime
from tests.support.images import BUSYBOX_IMAGE, ensure_images

LIMITS = ResourceLimits(cpu_millicores=1000, memory_bytes=256 << 20, disk_bytes=64 << 20, pids=64)
CREATE_SECONDS = 120
PARALLEL = 2 * (os.cpu_count() or 1)


class Bare:
    """Containers of the same image and limits, by docker-py alone. network: none, or the engine's usual bridge."""

    def __init__(self, image: str, network: str) -> None:
        """Connect to the engine."""
        self.client = docker.APIClient(version="auto", timeout=CREATE_SECONDS)
        self._image = image
        self._settings = self.client.create_host_config(
            network_mode=network,
            mem_limit=LIMITS.memory_bytes,
            memswap_limit=LIMITS.memory_bytes,
            pids_limit=LIMITS.pids,
            cpu_quota=LIMITS.cpu_millicores * 100,
            cpu_period=100_000,
        )

    def create(self) -> str:
        """Create and start one, which does nothing."""
        made = self.client.create_container(self._image, command=["sleep", "600"], host_config=self._settings)
        self.client.start(made["Id"])
        return str(made["Id"])

    def remove(self, container: str) -> None:
        """Kill and remove it."""
        self.client.remove_container(container, force=True, v=True)


class Ours:
    """Live sandboxes of the `docker` runtime."""

    def __init__(self, runtime: DockerRuntime, image: str) -> None:
        """Take a runtime that has been checked."""
        self.runtime = runtime
        self._image = image

    def create(self) -> SandboxHandle:
        """Make one; returns when its execd has answered, which a create alone need not wait for."""
        spec = SandboxSpec(
            f"sm-{new_id()}-1", self._image, LIMITS, is_sealed=False, is_writable=True, workdir="/tmp"
        )
        handle = self.runtime.create(spec, timeout_seconds=CREATE_SECONDS)
        with closing(self.runtime.executions(handle)) as client:
            client.ping()
        return handle

    def remove(self, handle: SandboxHandle) -> None:
        """Kill and remove it."""
        self.runtime.remove(handle)


def main() -> None:
    """Measure and print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=30, help="pairs, one after the other")
    parser.add_argument("--crowd", type=int, default=50, help="creates at once")
    parser.add_argument("--rounds", type=int, default=3, help="crowds of each kind, in turn")
    arguments = parser.parse_args()
    ensure_images()
    with running(BUSYBOX_IMAGE) as ours:
        bare, bridge = Bare(BUSYBOX_IMAGE, "none"), Bare(BUSYBOX_IMAGE, "bridge")
        result = {
            "benchmark": "docker_start",
            "cpus": os.cpu_count(),
            "load": os.getloadavg()[0],
            **one_by_one({"bare": bare, "bare_bridge": bridge, "ours": ours}, arguments.repeat),
            **crowds(bare, ours, arguments.crowd, arguments.rounds),
        }
    print(json.dumps(result))


@contextmanager
def running(image: str) -> Iterator[Ours]:
    """Give the runtime, after a first sandbox."""
    with tempfile.TemporaryDirectory(prefix="sandmill-bench-") as folder:
        place = Path(folder)
        runtime = DockerRuntime(DockerConfig(bundle_dir=place / "bundles", state_dir=place / "docker"))
        try:
            runtime.check()
            ours = Ours(runtime, image)
            ours.remove(ours.create())
            yield ours
        finally:
            runtime.close()


def one_by_one(subjects: dict[str, Any], repeat: int) -> dict[str, float]:
    """Start one of each in turn."""
    times: dict[str, list[float]] = {name: [] for name in subjects}
    own_cpu: dict[str, float] = dict.fromkeys(subjects, 0.0)
    for _ in range(repeat):
        for name, subject in subjects.items():
            before = cpu_ms()
            with timed_into(times[name]):
                made = subject.create()
            own_cpu[name] += cpu_ms() - before
            subject.remove(made)
    ratios = [ours / bare for ours, bare in zip(times["ours"], times["bare"], strict=True)]
    result = {f"{name}_ms_p50": round(median(values), 1) for name, values in times.items()}
    return result | {
        "ours_per_bare_p50": round(median(times["ours"]) / median(times["bare"]), 3),
        "ours_per_bare_paired_p50": round(median(ratios), 3),
        "ours_per_bare_bridge_p50": round(median(times["ours"]) / median(times["bare_bridge"]), 3),
        "own_cpu_ms": round(own_cpu["ours"] / repeat, 1),
        "docker_py_cpu_ms": round(own_cpu["bare"] / repeat, 1),
    }


def crowds(bare: Bare, ours: Ours, count: int, rounds: int) -> dict[str, float]:
    """Start many at once, of each kind in turn; the aim is p99 of ours by `count / engine rate`."""
    rates: list[float] = []
    slowest: list[float] = []
    lost = 0
    for _ in range(rounds):
        seconds, _, made = crowd(bare, count, threads=PARALLEL)
        rates.append(len(made) / seconds)
        _, times, made = crowd(ours, count, threads=count)
        lost += count - len(made)
        slowest.append(percentile(times, 99) / 1000)
    allowed = [count / rate for rate in rates]
    return {
        "crowd": count,
        "engine_per_second": round(median(rates), 2),
        "crowd_p99_seconds": round(median(slowest), 2),
        "crowd_p99_per_engine_time": round(
            median([ours / bare for ours, bare in zip(slowest, allowed, strict=True)]), 3
        ),
        "crowd_lost": lost,
    }


def crowd(subject: Any, count: int, *, threads: int) -> tuple[float, list[float], list[Any]]:
    """Start so many by so many threads: (seconds until all were there, milliseconds of each, what was made)."""
    times: list[float] = []
    made: list[Any] = []

    def one(_: int) -> None:
        with timed_into(times):
            made.append(subject.create())

    with ThreadPoolExecutor(threads) as pool:
        started = time.perf_counter()
        try:
            list(pool.map(one, range(count)))
            seconds = time.perf_counter() - started
        finally:
            with ThreadPoolExecutor(PARALLEL) as removers:
                list(removers.map(subject.remove, made))
    return seconds, times, made


def cpu_ms() -> float:
    """Processor time of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return 1000 * (used.ru_utime + used.ru_stime)


if __name__ == "__main__":
    main()
