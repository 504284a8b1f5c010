"""`./run bench [NAME …]`: runs the benchmarks, each in a process of its own."""

import subprocess
import sys
from pathlib import Path

NAMES = (
    "file_transfer",
    "list_sandboxes",
    "live_sandboxes",
    "log_lines",
    "pool_hit",
    "proxy",
    "queue",
    "sandbox_start",
)
LONG = ("cycles", "dispatch_scale", "docker_start", "fork_files", "published_server")
"""Run only when named."""


def main() -> None:
    """Run those named, or all."""
    names = sys.argv[1:] or NAMES
    unknown = sorted(set(names) - {*NAMES, *LONG})
    if unknown:
        sys.exit(f"no benchmark {', '.join(unknown)}; there are: {', '.join(NAMES + LONG)}")
    root = Path(__file__).resolve().parent.parent
    for name in names:
        subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], cwd=root, check=True)


if __name__ == "__main__":
    main()
