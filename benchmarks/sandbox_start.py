"""How long a sandbox takes until execd answers, and a command through it, against fork and exec of /bin/true."""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from core.errors import RunFailure
from core.ids import new_id
from runtimes.base import Command, ResourceLimits, Runtime, SandboxSpec
from runtimes.registry import build_runtime

LIMITS = ResourceLimits(cpu_millicores=1000, memory_bytes=256 << 20, disk_bytes=64 << 20, pids=64)


def main() -> None:
    """Measure each runtime this host offers and print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=30, help="sandboxes per runtime")
    parser.add_argument("--docker-image", help="an image the local engine has; without it Docker is left out")
    arguments = parser.parse_args()
    baseline = timed(lambda: subprocess.run(["/bin/true"], check=True), arguments.repeat)
    result: dict[str, object] = {"benchmark": "sandbox_start", "fork_exec_ms_p50": round(median(baseline), 2)}
    images = {"local": "host"} | ({"docker": arguments.docker_image} if arguments.docker_image else {})
    with tempfile.TemporaryDirectory(prefix="sandmill-bench-") as folder:
        for name, image in images.items():
            runtime = build_runtime(name, Path(folder))
            try:
                runtime.check()
                result[name] = measure(runtime, image, arguments.repeat, median(baseline))
            except RunFailure as error:
                result[name] = {"skipped": error.message}
            finally:
                runtime.close()
    print(json.dumps(result))


def measure(runtime: Runtime, image: str, repeat: int, baseline_ms: float) -> dict[str, float]:
    """Create, run /bin/true ten times, remove; again and again."""
    creates, commands, removes = [], [], []
    for number in range(repeat + 1):
        spec = SandboxSpec(name=f"sm-{new_id()}-1", image=image, limits=LIMITS)
        started = time.perf_counter()
        handle = runtime.create(spec, timeout_seconds=30)
        created = time.perf_counter()
        client = runtime.executions(handle)
        runs = timed(
            lambda client=client: client.run(Command(argv=("/bin/true",)), on_output=lambda *_: None), 10
        )
        client.close()
        before = time.perf_counter()
        runtime.remove(handle)
        if number:  # the first one also builds the bundle
            creates.append(1000 * (created - started))
            commands += runs
            removes.append(1000 * (time.perf_counter() - before))
    return {
        "create_ms_p50": round(median(creates), 1),
        "create_per_fork_exec": round(median(creates) / baseline_ms, 1),
        "command_ms_p50": round(median(commands), 2),
        "command_per_fork_exec": round(median(commands) / baseline_ms, 2),
        "remove_ms_p50": round(median(removes), 1),
    }


def timed(action: Callable[[], object], times: int) -> list[float]:
    """Milliseconds of each call."""
    result = []
    for _ in range(times):
        started = time.perf_counter()
        action()
        result.append(1000 * (time.perf_counter() - started))
    return result


def median(values: list[float]) -> float:
    """Middle value."""
    return statistics.median(values)


if __name__ == "__main__":
    os.chdir("/")
    main()
