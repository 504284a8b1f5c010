"""Asks whether a sandbox that is about to be given to somebody answers: its execd, by the way its clients will take."""

import http.client
from enum import StrEnum
from urllib.parse import urlsplit
from uuid import UUID

from core.logging import get_logger
from runtimes.base import EXECD_PORT

__all__ = ["MemberProbe", "Probe"]

log = get_logger(__name__)

_ACCESS_HEADER = "OpenSandbox-Secure-Access"
_GONE = frozenset({404, 502, 503, 504})
"""What an ingress says of a sandbox that it cannot reach, or does not know."""


class Probe(StrEnum):
    """What came of it. UNKNOWN: nobody can be asked; what the node said last has to do."""

    ALIVE = "alive"
    DEAD = "dead"
    UNKNOWN = "unknown"


class MemberProbe:
    """Thread-safe. A connection for each question: that costs less than to know which of the kept ones still work."""

    def __init__(self, *, timeout_seconds: float = 2.0) -> None:
        """timeout_seconds: what does not answer for so long is of no use to anybody."""
        self._timeout_seconds = timeout_seconds

    def check(self, ingress_url: str | None, sandbox_id: UUID, access_token: str) -> Probe:
        """Ask. ingress_url: of the sandbox's node; None: it has none. Never raises."""
        if ingress_url is None:
            return Probe.UNKNOWN
        parts = urlsplit(ingress_url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=self._timeout_seconds)
        try:
            connection.connect()
        except OSError as error:
            log.debug("ingress_not_reached", ingress=ingress_url, error=str(error))
            return Probe.UNKNOWN
        try:
            path = f"{parts.path.rstrip('/')}/{sandbox_id}/{EXECD_PORT}/ping"
            connection.request("GET", path, headers={_ACCESS_HEADER: access_token})
            status = connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return Probe.DEAD
        finally:
            connection.close()
        if status in _GONE:
            return Probe.DEAD
        return Probe.ALIVE if 200 <= status < 300 else Probe.UNKNOWN
