"""`./run chaos`: all cells of the crash matrix, some of them, random faults for minutes, or the long property test."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos.campaign import run_campaign
from tests.chaos.cells import LIVE_SLACK_SECONDS, Cell, all_cells, prepare, rotating_cells, run_cell
from tests.chaos.harness import chaos_stack
from tests.chaos.judge import left_behind
from tests.support.images import docker_problem, ensure_images
from tests.support.invariants import watched


def main() -> None:
    """Run what the arguments say; exit code 1 when something was wrong."""
    parser = argparse.ArgumentParser(prog="./run chaos", description=__doc__)
    parser.add_argument(
        "--cells", type=int, metavar="N", help="run N cells, chosen by the seed; default: all"
    )
    parser.add_argument("--only", metavar="TEXT", default="", help="run the cells whose name contains it")
    parser.add_argument(
        "--runtimes",
        default="",
        metavar="NAMES",
        help="of the cells, default: what works here; of a campaign the first one, default: fake",
    )
    parser.add_argument("--seed", help="of the choice, and of the campaign; default: the date")
    parser.add_argument("--minutes", type=float, metavar="M", help="no cells, but M minutes of random faults")
    parser.add_argument("--property", action="store_true", help="no cells, but the state machine, at length")
    arguments = parser.parse_args()
    if arguments.property:
        sys.exit(run_property())
    with tempfile.TemporaryDirectory(prefix="sandmill-chaos-") as home:
        if arguments.minutes is not None:
            (runtime, *_) = arguments.runtimes.split(",") if arguments.runtimes else ["fake"]
            if runtime == "docker":
                ensure_images()
            summary = run_campaign(
                Path(home) / "home", minutes=arguments.minutes, seed=arguments.seed, runtime=runtime
            )
            print(json.dumps(summary, indent=2))
            sys.exit(int(bool(summary["problems"])))
        runtimes = arguments.runtimes.split(",") if arguments.runtimes else default_runtimes()
        cells = all_cells(runtimes)
        if arguments.cells is not None:
            cells = rotating_cells(min(arguments.cells, len(cells)), runtimes=runtimes, seed=arguments.seed)
        sys.exit(
            run_cells(Path(home) / "home", [cell for cell in cells if arguments.only in str(cell)], runtimes)
        )


def default_runtimes() -> list[str]:
    """Give those that work on this machine: fake anywhere, local and docker as root with what they need."""
    runtimes = ["fake"]
    if os.geteuid() == 0:
        runtimes.append("local")
    if docker_problem() is None:
        runtimes.append("docker")
    return runtimes


def run_cells(home: Path, cells: list[Cell], runtimes: list[str]) -> int:
    """Run cells on one stack, a line each; gives the exit code."""
    failed = 0
    if "docker" in runtimes:
        ensure_images()
    # What depends on no runtime is tried on the one that starts nothing.
    with chaos_stack(home, runtimes=tuple(dict.fromkeys(("fake", *runtimes)))) as stack:
        prepare(stack)
        with watched(stack.database_url, slack_seconds=LIVE_SLACK_SECONDS) as watch:
            for number, cell in enumerate(cells, 1):
                began = time.monotonic()
                problems = run_cell(stack, cell, watch)
                failed += bool(problems)
                mark = "FAIL" if problems else "ok"
                print(f"{number}/{len(cells)} {mark} {cell} {time.monotonic() - began:.1f} s", flush=True)
                for problem in problems:
                    print(f"    {problem}", flush=True)
            left = left_behind(stack)
            for problem in left:
                print(f"    {problem}", flush=True)
    print(f"{len(cells) - failed} of {len(cells)} cells ended right", flush=True)
    return int(failed > 0 or bool(left))


def run_property() -> int:
    """Run the state machine of the queue with many more examples than in CI."""
    environment = {**os.environ, "SANDMILL_PROPERTY_EXAMPLES": "1000", "SANDMILL_PROPERTY_STEPS": "60"}
    test = "tests/integration/queue/test_state_machine.py"
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--timeout=0", test]
    return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    main()
