"""How long a server asks to be left alone."""

from datetime import timedelta
from email.utils import parsedate_to_datetime

__all__ = ["parse_retry_after"]

_MAX_DIGITS = 9


def parse_retry_after(value: str | None, date: str | None = None) -> float | None:
    """Read the header Retry-After (RFC 9110, 10.2.3): seconds, or a date; gives seconds, None for what is neither.

    date: the answer's own Date header. A date is compared with that, never with the clock of this machine, which may
    be wrong; without it a date says nothing.
    """
    text = (value or "").strip()
    if text.isascii() and text.isdecimal():
        return float(text) if len(text) <= _MAX_DIGITS else None
    if not text or not date:
        return None
    try:
        wait = parsedate_to_datetime(text) - parsedate_to_datetime(date)
    except (TypeError, ValueError, OverflowError):  # the first also for a date with a zone and one without
        return None
    return max(0.0, wait / timedelta(seconds=1))
