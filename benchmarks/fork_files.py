"""What it costs to fork a sandbox, and to keep a snapshot of it, by how much is in its files.

References: `cp -a` of the same files to the same disk, inside the sandbox; fork and exec of /bin/true. Needs root.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

from benchmarks.cycles import config_in, remove_parents
from benchmarks.timing import fork_exec, median, timed, timed_into
from core.ids import new_id
from runtimes.base import Command, ResourceLimits, SandboxHandle, SandboxSpec
from runtimes.local.runtime import LocalRuntime

CREATE_SECONDS = 120
FILE_BYTES = 256 << 10
_FILL = """
import os, sys
os.makedirs("/tmp/files")
for number in range({files}):
    with open(f"/tmp/files/{{number}}", "wb") as file:
        file.write(os.urandom(4096) * {repeats})
"""
_SHARE_OF_MEMORY = 0.6


def main() -> None:
    """Measure each size and print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--mebibytes", type=int, nargs="+", default=[10, 100, 1000], help="in files of 256 KiB"
    )
    parser.add_argument("--repeat", type=int, default=5, help="forks and snapshots of each size")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("forks and snapshots of local sandboxes need root: run this as root")
    result: dict[str, object] = {"benchmark": "fork_files"}
    with tempfile.TemporaryDirectory(prefix="sandmill-bench-") as name:
        config = config_in(Path(name), "zygote")
        runtime = LocalRuntime(config)
        try:
            runtime.check()
            for size in arguments.mebibytes:
                result[f"{size}_mib"] = measure(runtime, size, arguments.repeat)
        finally:
            runtime.close()
            remove_parents(config)
    print(json.dumps(result))


def measure(runtime: LocalRuntime, mebibytes: int, repeat: int) -> dict[str, object]:
    """Fill a sandbox, then copy, fork and keep it in turn."""
    # Room for the copy, which is the reference; what is written counts as memory.
    disk = (5 * mebibytes // 2 << 20) + (16 << 20)
    if disk > _SHARE_OF_MEMORY * available_bytes():
        return {"skipped": f"needs {disk >> 20} MiB of memory"}
    limits = ResourceLimits(cpu_millicores=2000, memory_bytes=disk + (256 << 20), disk_bytes=disk, pids=64)
    first = runtime.create(new_spec(limits), timeout_seconds=CREATE_SECONDS)
    times: dict[str, list[float]] = {"fork_exec": [], "create": [], "cp": [], "fork": [], "snapshot": []}
    fill = _FILL.format(files=(mebibytes << 20) // FILE_BYTES, repeats=FILE_BYTES // 4096)
    try:
        run(runtime, first, ("python3", "-c", fill))
        for number in range(repeat):
            times["fork_exec"] += timed(fork_exec)
            with timed_into(times["cp"]):
                run(runtime, first, ("cp", "-a", "/tmp/files", "/tmp/copy"))
            run(runtime, first, ("rm", "-r", "/tmp/copy"))
            with timed_into(times["snapshot"]):
                runtime.snapshot(first, f"bench-{number}")
            runtime.remove_snapshot(f"bench-{number}")
            with timed_into(times["create"]):
                other = runtime.create(new_spec(limits), timeout_seconds=CREATE_SECONDS)
            runtime.remove(other)
            with timed_into(times["fork"]):
                first, second = runtime.fork(first, new_spec(limits), timeout_seconds=CREATE_SECONDS)
            run(runtime, second, ("test", "-s", "/tmp/files/0"))
            runtime.remove(second)
    finally:
        runtime.remove(first)
    return figures(times)


def figures(times: dict[str, list[float]]) -> dict[str, object]:
    """Give middle values and ratios. create: of an empty sandbox; a fork starts two, the first one anew."""
    middle = {name: median(values) for name, values in times.items()}
    result: dict[str, object] = {f"{name}_ms_p50": round(value, 2) for name, value in middle.items()}
    for name in ("fork", "snapshot"):
        for reference in ("fork_exec", "cp"):
            result[f"{name}_per_{reference}"] = round(middle[name] / middle[reference], 3)
    return result


def new_spec(limits: ResourceLimits) -> SandboxSpec:
    """Give a spec with a name of its own."""
    return SandboxSpec(name=f"sm-{new_id()}-1", image="host", limits=limits)


def run(runtime: LocalRuntime, handle: SandboxHandle, argv: tuple[str, ...]) -> None:
    """Run a command. Raises RuntimeError with what it said if it fails."""
    said: list[bytes] = []
    done = runtime.executions(handle).run(Command(argv=argv), on_output=lambda _, data: said.append(data))
    if done.exit_code != 0:
        raise RuntimeError(f"{argv[0]} ended with {done}: {b''.join(said)!r}")


def available_bytes() -> int:
    """Give the memory that can be had without swapping."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))


if __name__ == "__main__":
    main()
