"""What people want to know of a live sandbox when something is wrong with it: told in text, also after its end."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import Connection

from repositories.live_sandboxes import LiveSandboxRepository, SandboxEventRow, SandboxRow
from repositories.sandbox_outputs import OutputRow, SandboxOutputRepository
from services.sandbox_errors import SandboxMissingError
from services.sandbox_waits import SandboxWaits
from services.session_spec import SessionSpec

__all__ = ["Diagnosis", "DiagnosticService", "Excerpt", "is_secret_name"]

_SECRET = re.compile(r"SECRET|TOKEN|PASSWORD|KEY", re.IGNORECASE)
_MASK = "***"


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Some text, and whether there was more of it. warnings: what the reader has to know of it."""

    text: str
    is_cut: bool
    warnings: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All that is known of one sandbox. events: the newest, oldest of them first. output: of its entrypoint.

    is_stale: somebody asked for a newer output, and its node has not answered.
    """

    sandbox: SandboxRow
    output: OutputRow
    events: Sequence[SandboxEventRow]
    is_stale: bool = False

    def container_log(self, *, lines: int) -> Excerpt:
        """The entrypoint's last lines, stdout and stderr as they came."""
        data = self.output.output or b""
        text = data.decode("utf-8", "replace")
        is_short = (self.output.total_bytes or 0) > len(data)
        if is_short and "\n" in text:
            text = text.partition("\n")[2]  # what is left of a line says nothing
        kept = text.splitlines()
        warnings = []
        spec = SessionSpec.from_json(self.output.spec)
        if not spec.entrypoint:
            warnings.append("its entrypoint only waits, and so none is started: there is no output of it")
        elif self.is_stale and self.output.read_at is None:
            warnings.append("its node has not answered in time, and nothing was read before")
        elif self.is_stale and self.output.read_at is not None:
            warnings.append(f"this is as of {_time(self.output.read_at)}: its node has not answered in time")
        elif self.sandbox.state == "Paused":
            warnings.append("it is paused: this is what was read before that")
        return Excerpt(_joined(kept[-lines:]), is_short or len(kept) > lines, warnings)

    def lifecycle_log(self, *, lines: int) -> Excerpt:
        """What happened to the sandbox, a line each."""
        return _events(self.events, limit=lines)

    def runtime_events(self, *, limit: int) -> Excerpt:
        """What its node did and saw."""
        return _events([event for event in self.events if event.actor.startswith("worker:")], limit=limit)

    def inspection(self) -> str:
        """All facts but secrets: what is named like one is masked, and tokens and credentials are not among them."""
        row, spec = self.sandbox, SessionSpec.from_json(self.output.spec)
        resources = spec.resources
        facts = [
            ("id", str(row.id)),
            ("state", row.state),
            ("reason", row.state_reason),
            ("message", row.state_message),
            ("state_at", _time(row.state_at)),
            ("created_at", _time(row.created_at)),
            ("running_at", _time(row.running_at)),
            ("expires_at", _time(row.expires_at) or "never"),
            ("ended_at", _time(row.ended_at)),
            ("ended_by", row.ended_by),
            ("image", row.image),
            ("snapshot", None if row.snapshot_id is None else str(row.snapshot_id)),
            ("pool", row.pool),
            ("entrypoint", " ".join(row.entrypoint)),
            ("entrypoint_ended", self.output.ended),
            ("platform", spec.platform),
            ("runtime", row.runtime),
            ("oci_runtime", spec.oci_runtime),
            ("node", None if row.node_id is None else str(row.node_id)),
            ("name_on_node", row.sandbox_name),
            ("secure_access", "yes" if row.is_secure else "no"),
            ("cpu", f"{resources.cpu_millicores}m"),
            ("memory", f"{resources.memory_bytes} bytes"),
            ("disk", f"{resources.disk_bytes} bytes"),
            ("pids", str(resources.pids)),
            ("gpu", str(resources.gpu)),
        ]
        lines = [f"{name}: {_one_line(value)}" for name, value in facts if value is not None]
        lines += _mapping("env", {name: _masked(name, value) for name, value in spec.env.items()})
        lines += _mapping("metadata", row.metadata)
        lines += _mapping(
            "extensions", {name: _masked(name, value) for name, value in row.extensions.items()}
        )
        lines += _mapping(
            "volumes",
            {
                volume.name: f"{volume.claim or volume.host_path} at {volume.mount_path}"
                for volume in spec.volumes
            },
        )
        return _joined(lines)

    def summary(self, *, lines: int, events: int) -> str:
        """All of it, one part after the other."""
        log = self.container_log(lines=lines)
        parts = [
            ("Sandbox", self.inspection()),
            (f"Events (last {events})", _events(self.events, limit=events).text),
            (f"Logs (last {lines} lines)", log.text),
        ]
        text = "\n".join(f"=== {title} ===\n{body or '(none)' + chr(10)}" for title, body in parts)
        return text + "".join(f"note: {warning}\n" for warning in log.warnings)


class DiagnosticService:
    """Diagnoses of one tenant's sandboxes, inside the caller's transaction. Raises SandboxMissingError."""

    def __init__(self, connection: Connection, tenant_id: int) -> None:
        """connection: the caller begins and commits."""
        self._sandboxes = LiveSandboxRepository(connection, tenant_id)
        self._outputs = SandboxOutputRepository(connection, tenant_id)
        self._waits = SandboxWaits(connection, tenant_id)

    def want_output(self, sandbox_id: UUID) -> tuple[UUID, datetime] | None:
        """Ask the node for what the entrypoint wrote until now: (node, since when). None: there is nothing to ask."""
        row = self._sandboxes.find(sandbox_id)
        if row is None:
            raise SandboxMissingError(sandbox_id)
        found = self._outputs.find(sandbox_id)
        has_entrypoint = found is not None and bool(found.spec.get("entrypoint"))
        if row.state != "Running" or not has_entrypoint:
            return None
        return self._outputs.want(sandbox_id)

    def is_answered(self, sandbox_id: UUID, since: datetime) -> bool:
        """Whether the node has answered what was asked then, or cannot."""
        found = self._outputs.find(sandbox_id)
        if found is None or found.wanted_at is None:
            return True
        return found.read_at is not None and found.read_at >= since

    def diagnose(self, sandbox_id: UUID, *, events: int = 500, asked_at: datetime | None = None) -> Diagnosis:
        """Gather what is known. asked_at: of `want_output`, if that was called."""
        row, output = self._sandboxes.find(sandbox_id), self._outputs.find(sandbox_id)
        if row is None or output is None:
            raise SandboxMissingError(sandbox_id)
        is_stale = asked_at is not None and (output.read_at is None or output.read_at < asked_at)
        return Diagnosis(
            self._waits.told([row])[0],
            output,
            self._sandboxes.events(sandbox_id, limit=events),
            is_stale=is_stale and row.ended_at is None,
        )


def is_secret_name(name: str) -> bool:
    """Whether what has this name is not shown."""
    return _SECRET.search(name) is not None


def _events(events: Sequence[SandboxEventRow], *, limit: int) -> Excerpt:
    lines = []
    for event in events[-limit:]:
        text = f"{_time(event.at)} {event.reason} by {event.actor}"
        lines.append(text if event.message is None else f"{text}: {_one_line(event.message)}")
    return Excerpt(_joined(lines), len(events) > limit)


def _masked(name: str, value: str) -> str:
    return _MASK if is_secret_name(name) else value


def _mapping(name: str, values: "dict[str, str]") -> list[str]:
    return [f"{name}:", *(f"  {key}: {_one_line(values[key])}" for key in sorted(values))] if values else []


def _one_line(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\r", "\\r").replace("\n", "\\n")


def _time(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat(timespec="milliseconds")


def _joined(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
