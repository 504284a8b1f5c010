"""Cron expressions in a time zone: when they fire."""

import zoneinfo
from collections.abc import Iterator
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from core.errors import InvalidRequestError

__all__ = ["fires_after", "parse_cron"]

_MAX_CHARS = 200
_FIELDS = 5
_FIRST_FIRE = datetime(2000, 1, 1, tzinfo=UTC)
"""From here on a search sees every leap year and every day of the week on every date."""


def parse_cron(expression: str, timezone: str) -> None:
    """Check that there is a time at which it fires. Raises InvalidRequestError with field `cron` or `timezone`."""
    zone = _zone(timezone)
    if len(expression) > _MAX_CHARS or len(expression.split()) != _FIELDS:
        raise InvalidRequestError(
            "must have five fields: minute, hour, day of month, month, day of week", field="cron"
        )
    try:
        simulated = CronSim(expression, _FIRST_FIRE.astimezone(zone))
    except (CronSimError, ValueError, OverflowError) as error:
        raise InvalidRequestError(f"{_lower(str(error))}: it would never fire", field="cron") from error
    if next(simulated, None) is None:
        raise InvalidRequestError("never fires", field="cron")


def fires_after(expression: str, timezone: str, moment: datetime) -> Iterator[datetime]:
    """Give the times after a moment, in UTC, rising; for a checked expression.

    Where clocks are set forward, what would fire in the missing hour fires right after it; where they are set back,
    what fires at a fixed hour fires once. Expressions that fire every hour or more often go by real time.
    """
    last = moment
    for local in CronSim(expression, moment.astimezone(_zone(timezone))):
        found = local.astimezone(UTC)
        # Two local times may be one moment, after a missing hour.
        if found > last:
            last = found
            yield found


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise InvalidRequestError(
            "must be a name of the IANA time zones, as in Europe/Berlin", field="timezone"
        ) from error


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]
