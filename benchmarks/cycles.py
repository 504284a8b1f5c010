"""Whether thousands of sandboxes leave anything behind, or make the next ones slower: create, run /bin/true, remove.

Counts what the host has before and after. Exits 1 if anything is left, or if the last hundred lives took more than 1.3
times as long as the first.
"""

import argparse
import json
import secrets
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from benchmarks.leftovers import Counts, count, group_folders, host_objects
from benchmarks.timing import fork_exec, median, timed, timed_into
from core.ids import new_id
from runtimes.base import Command, ResourceLimits, SandboxSpec
from runtimes.local.config import LocalConfig
from runtimes.local.runtime import LocalRuntime

__all__ = ["Report", "run_cycles"]

LIMITS = ResourceLimits(cpu_millicores=1000, memory_bytes=128 << 20, disk_bytes=32 << 20, pids=64)
CREATE_SECONDS = 60
WARM_UP = 20
"""Lives before the first count: what is made once and kept (folders, parents of groups, spare forks) is then there."""

WINDOW = 100
MAX_RATIO = 1.3


class Report:
    """What a run gives. lives, bare: milliseconds of each life, and of a fork and exec of /bin/true right before."""

    def __init__(self, lives: list[float], bare: list[float], before: Counts, after: Counts) -> None:
        self.lives = lives
        self.bare = bare
        self.before = before
        self.after = after

    @property
    def leaks(self) -> dict[str, int]:
        """Give what there is more of than before, by kind."""
        more = {kind: number - self.before.get(kind, 0) for kind, number in self.after.items()}
        return {kind: number for kind, number in more.items() if number > 0}

    @property
    def slowdown(self) -> float:
        """Give the middle of the last hundred lives by that of the first."""
        return median(self.lives[-WINDOW:]) / median(self.lives[:WINDOW])

    @property
    def relative_slowdown(self) -> float:
        """The same in units of a fork and exec at the time, which others on the machine slow down as well."""
        return self.slowdown * median(self.bare[:WINDOW]) / median(self.bare[-WINDOW:])

    def to_json(self) -> dict[str, object]:
        """Give all figures."""
        return {
            "cycles": len(self.lives),
            "first_ms_p50": round(median(self.lives[:WINDOW]), 2),
            "last_ms_p50": round(median(self.lives[-WINDOW:]), 2),
            "last_per_first": round(self.slowdown, 3),
            "last_per_first_in_fork_execs": round(self.relative_slowdown, 3),
            "before": dict(self.before),
            "after": dict(self.after),
            "leaks": self.leaks,
        }


def run_cycles(
    runtime: LocalRuntime,
    config: LocalConfig,
    cycles: int,
    *,
    on_life: Callable[[int], None] = lambda _: None,
) -> Report:
    """Live so many lives, after a few that count for nothing.

    config: the runtime's. on_life: told the number of each.
    """
    for _ in range(WARM_UP):
        one_life(runtime)
    before = count(config.state_dir, config.cgroup_parent)
    bare: list[float] = []
    lives: list[float] = []
    for number in range(cycles):
        bare += timed(fork_exec)
        with timed_into(lives):
            one_life(runtime)
        on_life(number)
    return Report(lives, bare, before, count(config.state_dir, config.cgroup_parent, at_most=before))


def one_life(runtime: LocalRuntime) -> None:
    """Start a sandbox, run /bin/true in it, remove it. Raises RuntimeError if the command fails."""
    spec = SandboxSpec(name=f"sm-{new_id()}-1", image="host", limits=LIMITS)
    handle = runtime.create(spec, timeout_seconds=CREATE_SECONDS)
    try:
        client = runtime.executions(handle)
        done = client.run(Command(argv=("/bin/true",)), on_output=lambda *_: None)
        client.close()
    finally:
        runtime.remove(handle)
    if done.exit_code != 0:
        raise RuntimeError(f"/bin/true in {spec.name} ended with {done}")


def main() -> None:
    """Run, and print one JSON line; progress goes to standard error."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cycles", type=int, default=10_000, help="lives, one after another")
    parser.add_argument(
        "--executor", choices=("auto", "zygote", "bwrap"), default="auto", help="what starts them"
    )
    parser.add_argument("--max-ratio", type=float, default=MAX_RATIO, help="of the last hundred to the first")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sandmill-bench-") as name:
        config = config_in(Path(name), arguments.executor)
        runtime = LocalRuntime(config)
        host_before = host_objects()
        report = run_cycles(runtime, config, arguments.cycles, on_life=say_progress)
        host_after = host_objects()
        runtime.close()
        remove_parents(config)
    host = {kind: [number, host_after.get(kind, 0)] for kind, number in host_before.items()}
    print(json.dumps({"benchmark": "cycles", **report.to_json(), "host_objects": host}))
    # By both: what makes lives slower shows in either, others on the machine in one of them only.
    if report.leaks or min(report.slowdown, report.relative_slowdown) > arguments.max_ratio:
        sys.exit(1)


def config_in(folder: Path, executor: Literal["auto", "zygote", "bwrap"]) -> LocalConfig:
    """Give settings of a runtime that shares nothing with others on the host but user ids."""
    parent = f"sandmill-bench-{secrets.token_hex(4)}"
    return LocalConfig(
        state_dir=folder / "state", bundle_dir=folder / "bundles", executor=executor, cgroup_parent=parent
    )


def remove_parents(config: LocalConfig) -> None:
    """Remove the parents of groups that only this runtime had."""
    for folder in group_folders(config.cgroup_parent):
        folder.rmdir()


def say_progress(number: int) -> None:
    """Say how many there were, now and then."""
    if (number + 1) % 500 == 0:
        print(f"{number + 1} lives", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
