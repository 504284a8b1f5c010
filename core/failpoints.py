"""Named places at which a test may break a process: kill it, stop it, hold it up, cut its connections.

They are inert unless SANDMILL_FAILPOINTS arms some, and that is refused without SANDMILL_ALLOW_FAILPOINTS: nobody
arms them in production by one mistake. Off, a call costs a comparison.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic_settings import BaseSettings, SettingsConfigDict

from core.environment import settings_or_exit
from core.logging import get_logger

__all__ = [
    "POINTS",
    "Failpoint",
    "FailpointError",
    "arm",
    "arm_or_exit",
    "failpoint",
    "is_armed",
    "parse_failpoints",
    "remember_connection",
]

log = get_logger(__name__)

POINTS = frozenset(
    {
        "api.before_commit",
        "api.after_commit",
        "api.after_wake",
        "dispatch.after_lock",
        "dispatch.before_commit",
        "dispatch.after_commit",
        "dispatch.mid_send",
        "dispatch.after_send",
        "worker.received",
        "worker.before_claim",
        "worker.after_claim",
        "worker.after_create",
        "worker.after_start",
        "worker.mid_log",
        "worker.after_exit",
        "worker.before_finish",
        "worker.after_finish",
        "worker.before_ack",
        "member.before_take",
        "member.after_take",
        "session.before_create",
        "session.after_create",
        "session.after_running",
        "session.before_remove",
        "session.after_remove",
        "session.before_end",
        "session.after_end",
        "heartbeat.before",
        "heartbeat.after",
        "reap.before_commit",
        "reap.after_commit",
        "sweep.before_commit",
        "sweep.after_commit",
        "progress.before_commit",
        "progress.after_commit",
        "progress.ruled_before_commit",
        "progress.ruled_after_commit",
        "fanout.mid_page",
        "fanout.after_page",
        "snapshot.before_make",
        "snapshot.made",
        "snapshot.removed",
        "webhook.before_post",
        "webhook.after_post",
    }
)
"""All names that `failpoint` is called with."""

_TIMED = frozenset({"stop", "sleep"})
_UNTIMED = frozenset({"kill9", "raise", "drop_connection"})
_LONGEST_SECONDS = 3600.0


class FailpointError(RuntimeError):
    """What the action `raise` raises: an error nobody expects, on purpose."""


@dataclass(slots=True)
class Failpoint:
    """What happens at a point. seconds: of stop and sleep. nth: at which call, 1 for the first; only at that one."""

    name: str
    action: str
    seconds: float = 0.0
    nth: int = 1
    calls: int = 0


class FailpointSettings(BaseSettings):
    """Apart from `core.config.Settings`: nobody who runs the service sets these."""

    model_config = SettingsConfigDict(env_prefix="SANDMILL_", extra="ignore", frozen=True)

    failpoints: str = ""
    allow_failpoints: bool = False


_armed: dict[str, Failpoint] | None = None
_lock = threading.Lock()
_connections: "weakref.WeakSet[Any]" = weakref.WeakSet()
_wakers: list["subprocess.Popen[bytes]"] = []


def failpoint(name: str) -> None:
    """Do what is armed for this point, if anything. name: one of POINTS."""
    if _armed is not None:
        _reach(name)


def arm(points: Mapping[str, Failpoint]) -> None:
    """Arm these and no others. Call it once, before the threads of the process start; empty disarms."""
    global _armed  # noqa: PLW0603 -- one switch per process, read at every point
    _armed = dict(points) or None
    if points:
        log.warning("failpoints_armed", points=sorted(points))


def arm_or_exit(*, program: str) -> None:
    """Arm what the environment of a program that has just started says; what is wrong ends it with one line."""
    settings = settings_or_exit(FailpointSettings, program=program)
    if not settings.failpoints:
        return
    if not settings.allow_failpoints:
        sys.exit(
            f"{program}: SANDMILL_FAILPOINTS breaks this process on purpose: unset it, or set "
            "SANDMILL_ALLOW_FAILPOINTS=1 where nothing of value runs"
        )
    try:
        arm(parse_failpoints(settings.failpoints))
    except ValueError as error:
        sys.exit(f"{program}: SANDMILL_FAILPOINTS: {error}")


def is_armed() -> bool:
    """Whether any point may do something in this process."""
    return _armed is not None


def remember_connection(connection: Any, *_: Any) -> None:
    """Note a driver's connection, so that `drop_connection` can cut it; a listener for SQLAlchemy's `connect`."""
    _connections.add(connection)


def parse_failpoints(text: str) -> dict[str, Failpoint]:
    """Read `name:action[:nth]`, or `name:action:seconds[:nth]` for stop and sleep, divided by commas.

    Raises ValueError that says which part is wrong and what would be right.
    """
    points: dict[str, Failpoint] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        point = _parse_one(part)
        if point.name in points:
            raise ValueError(f"{point.name} is given twice: one action per point")
        points[point.name] = point
    return points


def _parse_one(part: str) -> Failpoint:
    name, *words = part.split(":")
    if name not in POINTS:
        raise ValueError(f"{name!r} is no failpoint; there are: {', '.join(sorted(POINTS))}")
    action = words.pop(0) if words else ""
    if action not in _TIMED | _UNTIMED:
        raise ValueError(f"{part!r}: the action must be one of {', '.join(sorted(_TIMED | _UNTIMED))}")
    seconds = _seconds(part, words) if action in _TIMED else 0.0
    nth = words.pop(0) if words else "1"
    if words or not nth.isdecimal() or int(nth) < 1:
        raise ValueError(
            f"{part!r}: behind the action{' and its seconds' * (action in _TIMED)} only a count >= 1"
        )
    return Failpoint(name, action, seconds, int(nth))


def _seconds(part: str, words: list[str]) -> float:
    try:
        seconds = float(words.pop(0))
    except (IndexError, ValueError):
        seconds = -1.0
    if not 0 < seconds <= _LONGEST_SECONDS:
        raise ValueError(f"{part!r}: needs seconds above 0 and up to {_LONGEST_SECONDS:g}, as in {part}:1.5")
    return seconds


def _reach(name: str) -> None:
    point = (_armed or {}).get(name)
    if point is None:
        return
    with _lock:
        point.calls += 1
        if point.calls != point.nth:
            return
    log.warning("failpoint_reached", point=name, action=point.action, seconds=point.seconds)
    _ACTIONS[point.action](point)


def _kill(_: Failpoint) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _stop(point: Failpoint) -> None:
    """Stand still as a whole, as under SIGSTOP or in a paused machine; somebody else has to wake us."""
    script = f"sleep {point.seconds}; kill -CONT {os.getpid()}"
    waker = subprocess.Popen(["/bin/sh", "-c", script], start_new_session=True)
    _wakers.append(waker)
    os.kill(os.getpid(), signal.SIGSTOP)


def _sleep(point: Failpoint) -> None:
    time.sleep(point.seconds)


def _raise(point: Failpoint) -> None:
    raise FailpointError(f"failpoint {point.name}")


def _drop_connection(_: Failpoint) -> None:
    """Cut every database connection of this process, as a broken network does: no goodbye, whatever is under way."""
    for connection in list(_connections):
        try:
            with socket.socket(fileno=os.dup(connection.fileno())) as cut:
                cut.shutdown(socket.SHUT_RDWR)
        except Exception as error:  # noqa: BLE001 -- one that is closed already, in whatever way the driver says so
            log.debug("connection_not_cut", error=str(error))


_ACTIONS: dict[str, Callable[[Failpoint], None]] = {
    "kill9": _kill,
    "stop": _stop,
    "sleep": _sleep,
    "raise": _raise,
    "drop_connection": _drop_connection,
}
