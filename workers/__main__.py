"""`python -m workers`: runs the worker with the settings of the environment."""

import sys

from core.errors import SandmillError
from core.failpoints import arm_or_exit
from core.logging import configure_logging
from core.secret_rules import program_settings
from workers.process import run_worker


def main() -> None:
    """Read the settings and run until told to stop."""
    settings = program_settings("worker")
    configure_logging(level=settings.log_level, style=settings.log_format)
    arm_or_exit(program="worker")
    try:
        run_worker(settings)
    except SandmillError as error:
        sys.exit(f"worker: {error.message}")


if __name__ == "__main__":
    main()
