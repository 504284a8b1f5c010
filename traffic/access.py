"""Telling that a sandbox is used, not too often."""

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final
from uuid import UUID

from traffic.headers import ACCESS_RENEW
from traffic.heads import Headers, values_of

__all__ = ["AccessNotes"]

_MAX_NOTES: Final = 8192


class AccessNotes:
    """Calls a hook for a sandbox that is reached, at most once in a while for each."""

    def __init__(
        self,
        on_access: Callable[[UUID], None],
        *,
        interval_seconds: float = 60.0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """on_access: must return at once, and not raise."""
        self._on_access = on_access
        self._interval = interval_seconds
        self._monotonic = monotonic
        self._told: OrderedDict[UUID, float] = OrderedDict()

    def note(self, sandbox_id: UUID, headers: Headers) -> None:
        """Note a request, unless its header `OpenSandbox-Access-Renew` says `skip`."""
        if any(value.lower() == b"skip" for value in values_of(headers, ACCESS_RENEW)):
            return
        now = self._monotonic()
        told = self._told.get(sandbox_id)
        if told is not None and now - told < self._interval:
            return
        self._told[sandbox_id] = now
        self._told.move_to_end(sandbox_id)
        if len(self._told) > _MAX_NOTES:
            self._told.popitem(last=False)
        self._on_access(sandbox_id)
