"""When a webhook is tried again. A pure function of the answer."""

import email.utils
from dataclasses import dataclass
from datetime import datetime
from random import Random

__all__ = ["MAX_TRIES", "Answer", "Decision", "Verb", "decide"]

from enum import StrEnum

MAX_TRIES = 11
"""With the pauses below: the last try comes about a day after the first."""

_BASE_SECONDS = 5.0
_FACTOR = 4.0
_CAP_SECONDS = 6 * 3600.0
_MAX_RETRY_AFTER_SECONDS = 86400.0
_GONE = 410


class Verb(StrEnum):
    """What is done with a message after a try."""

    DONE = "done"
    RETRY = "retry"
    GIVE_UP = "give_up"
    DISABLE = "disable"


@dataclass(frozen=True, slots=True)
class Answer:
    """status: of the HTTP answer; None: there was none, and error says why. retry_after: that header, as it came."""

    status: int | None
    error: str | None = None
    retry_after: str | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """seconds: of the pause, for RETRY. error: what is noted; None when done."""

    verb: Verb
    seconds: float = 0.0
    error: str | None = None


def decide(answer: Answer, tries: int, *, now: datetime, rng: Random) -> Decision:
    """Say what becomes of a message. tries: with this one, from 1. now: aware UTC, for dates in Retry-After.

    Pauses: 5 s, four times as long each time, 6 h at most; each times a random number between 0.75 and 1.25, so that
    what failed together does not come back together. A longer Retry-After is obeyed, up to a day.
    """
    if answer.status is not None and 200 <= answer.status < 300:
        return Decision(Verb.DONE)
    error = answer.error or f"the receiver answered {answer.status}"
    if answer.status == _GONE:
        return Decision(Verb.DISABLE, error="the receiver answered 410: it is gone")
    if tries >= MAX_TRIES:
        return Decision(Verb.GIVE_UP, error=error)
    pause = min(_CAP_SECONDS, _BASE_SECONDS * _FACTOR ** (tries - 1)) * rng.uniform(0.75, 1.25)
    return Decision(Verb.RETRY, max(pause, _read_retry_after(answer.retry_after, now)), error)


def _read_retry_after(header: str | None, now: datetime) -> float:
    """Give seconds; 0 for what is missing or makes no sense."""
    text = (header or "").strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:10]), _MAX_RETRY_AFTER_SECONDS)
    try:
        at = email.utils.parsedate_to_datetime(text)
        wait = (at - now).total_seconds()
    except (TypeError, ValueError, IndexError, OverflowError):
        return 0.0
    return min(max(wait, 0.0), _MAX_RETRY_AFTER_SECONDS)
