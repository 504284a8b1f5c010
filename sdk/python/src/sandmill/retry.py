"""When a call is made again, and after how long."""

import random
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from sandmill.errors import SandmillError

__all__ = ["RetryPolicy", "parse_retry_after"]


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Bounds of the repeats of one call. Every call of the client is safe to repeat.

    attempts: in all, so 1 means no repeat. budget_seconds: no repeat starts later than this after the first try.
    Delay: what the server asked for by Retry-After plus up to a quarter, so that clients do not come back all at once;
    else uniform in [0, min(cap_seconds, base_seconds * 2**(n - 1))] before repeat n.
    Source: full jitter, M. Brooker, "Exponential Backoff and Jitter", AWS Architecture Blog, 2015.
    """

    attempts: int = 8
    base_seconds: float = 0.2
    cap_seconds: float = 5.0
    budget_seconds: float = 60.0
    rng: random.Random = field(default_factory=random.Random, repr=False, compare=False)

    def delay(self, error: SandmillError, *, tried: int, elapsed_seconds: float) -> float | None:
        """Seconds to wait before the next try; None: give up. tried: 1 after the first try."""
        if not error.retryable or tried >= self.attempts:
            return None
        if error.retry_after_seconds is None:
            pause = self.rng.uniform(0, min(self.cap_seconds, self.base_seconds * 2.0 ** (tried - 1)))
        else:
            pause = error.retry_after_seconds * self.rng.uniform(1, 1.25)
        return pause if elapsed_seconds + pause <= self.budget_seconds else None


def parse_retry_after(value: str | None, *, now: datetime | None = None) -> float | None:
    """Read seconds or an HTTP date; None for nothing or for what is neither."""
    if value is None:
        return None
    text = value.strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        when = parsedate_to_datetime(text)
    except ValueError:
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return max(0.0, (when - (now or datetime.now(UTC))).total_seconds())
