"""execd's event stream: one bare JSON object per line, blank lines between; other lines are a broken daemon."""

import base64
import binascii
import json
from collections.abc import Iterator
from typing import Any

from core.errors import ExecdUnreachableError
from runtimes.base import CommandResult, StreamName

__all__ = ["EventParser", "event_bytes", "missing_bytes", "result_of"]

_MAX_LINE_BYTES = 1 << 20
"""execd cuts output at 64 KiB, which is at most 6 x 64 KiB escaped plus its base64: a longer line is no event."""

_NO_EXIT_CODE = frozenset({"timeout", "killed_by_client", "signal", "start_failed"})


class EventParser:
    """Takes bytes as they come and gives the events they complete."""

    def __init__(self) -> None:
        """Start at the beginning of a stream."""
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """Give the events that data completes. Raises ExecdUnreachableError for what is no event."""
        self._rest += data
        end = self._rest.rfind(b"\n") + 1
        if end == 0 and len(self._rest) > _MAX_LINE_BYTES:
            raise ExecdUnreachableError(f"execd sent a line of more than {_MAX_LINE_BYTES} bytes")
        complete = bytes(self._rest[:end])
        del self._rest[:end]
        for line in complete.split(b"\n"):
            if len(line) > _MAX_LINE_BYTES:
                raise ExecdUnreachableError(f"execd sent a line of more than {_MAX_LINE_BYTES} bytes")
            if line.strip():
                yield _parse(line)


def _parse(line: bytes) -> dict[str, Any]:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ExecdUnreachableError(f"execd sent a bad event: {line[:80]!r}") from error
    if not isinstance(event, dict) or not isinstance(event.get("type"), str):
        raise ExecdUnreachableError(f"execd sent a bad event: {line[:80]!r}")
    return event


def event_bytes(event: dict[str, Any]) -> tuple[StreamName, bytes] | None:
    """Give the exact bytes of an output event; None for every other type."""
    kind = event["type"]
    if kind not in ("stdout", "stderr"):
        return None
    encoded, text = event.get("b64"), event.get("text")
    try:
        if isinstance(encoded, str):
            return kind, base64.b64decode(encoded, validate=True)
        if isinstance(text, str):
            return kind, text.encode("utf-8", "surrogatepass")
    except (binascii.Error, ValueError) as error:
        raise ExecdUnreachableError(f"execd sent bad output: {error}") from error
    raise ExecdUnreachableError("execd sent an output event without text")


def missing_bytes(event: dict[str, Any]) -> int:
    """Say how much output a gap event tells of; 0 for every other type."""
    return max(0, _integer(event.get("missing_bytes")) or 0) if event["type"] == "gap" else 0


def result_of(event: dict[str, Any], *, interrupted: bool) -> CommandResult | None:
    """Give the result a terminal event stands for; None for every other type.

    Daemons without our additive fields say the exit code in `error.evalue` only.
    """
    if event["type"] not in ("error", "execution_complete"):
        return None
    reason = event.get("reason")
    exit_code = _integer(event.get("exit_code"))
    error = event.get("error")
    details = error if isinstance(error, dict) else {}
    if event["type"] == "execution_complete" and exit_code is None:
        exit_code = 0
    if event["type"] == "error" and reason is None:
        exit_code = _integer(details.get("evalue"))
        reason = "exit" if exit_code is not None else "start_failed"
    return CommandResult(
        exit_code=None if reason in _NO_EXIT_CODE else exit_code,
        signal=_integer(event.get("signal")),
        timed_out=reason == "timeout",
        interrupted=interrupted or reason == "killed_by_client",
        error=str(details.get("evalue", ""))[:4096] if reason == "start_failed" else None,
        duration_ms=max(0, _integer(event.get("execution_time")) or 0),
    )


def _integer(value: object) -> int | None:
    """Read an int or a decimal string; None for the rest."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    try:
        return int(value) if isinstance(value, str) and len(value) <= 12 else None
    except ValueError:
        return None
