"""`python -m ingress`: runs the ingress of this node with the settings of the environment."""

import sys

from core.errors import SandmillError
from core.failpoints import arm_or_exit
from core.logging import configure_logging
from core.secret_rules import program_settings
from ingress.process import run_ingress


def main() -> None:
    """Read the settings and run until told to stop."""
    settings = program_settings("ingress")
    configure_logging(level=settings.log_level, style=settings.log_format)
    arm_or_exit(program="ingress")
    try:
        run_ingress(settings)
    except SandmillError as error:
        sys.exit(f"ingress: {error.message}")


if __name__ == "__main__":
    main()
