"""`python -m scheduler`: runs the scheduler with the settings of the environment."""

from core.failpoints import arm_or_exit
from core.logging import configure_logging
from core.secret_rules import program_settings
from scheduler.process import Scheduler


def main() -> None:
    """Read the settings and run until told to stop."""
    settings = program_settings("scheduler")
    configure_logging(level=settings.log_level, style=settings.log_format)
    arm_or_exit(program="scheduler")
    Scheduler(settings).run()


if __name__ == "__main__":
    main()
