"""How settings are spelt in a configuration file: `[worker] slots` is the field `worker_slots`.

A field belongs to the section of the last field named here that stands at or before it in `Settings`, so a new setting
needs no line of its own.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from core.config import Settings

__all__ = ["FIELDS", "SECTIONS", "Section", "file_key"]


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the settings. name: in the file. title: in the docs. prefixes: of fields, left out in the file."""

    name: str
    title: str
    prefixes: tuple[str, ...] = ()


SECTIONS: Mapping[str, Section] = {
    "home": Section("node", "All programs"),
    "log_format": Section("log", "Logs", ("log_",)),
    "api_host": Section("server", "API", ("api_", "server_")),
    "sandbox_create_wait_seconds": Section(
        "sandboxes", "Live sandboxes: the same for API and workers", ("sandbox_",)
    ),
    "ingress_host": Section("ingress", "Ingress", ("ingress_",)),
    "tick_seconds": Section("scheduler", "Scheduler"),
    "webhook_allowed_networks": Section(
        "webhooks", "Webhooks: the same for API and scheduler", ("webhook_",)
    ),
    "retention_batch_days": Section("retention", "Retention, by the scheduler", ("retention_",)),
    "lease_seconds": Section("leases", "Leases: the same for scheduler and workers"),
    "runtimes": Section("worker", "Worker", ("worker_",)),
    "local_executor": Section("local", "Local runtime", ("local_",)),
    "docker_pull": Section("docker", "Docker runtime", ("docker_",)),
}
"""First field of a part -> the part."""


def file_key(section: Section, field: str) -> str:
    """Give the key of a field in its section."""
    for prefix in section.prefixes:
        if field.startswith(prefix):
            return field.removeprefix(prefix)
    return field


def _places() -> Iterator[tuple[tuple[str, str], str]]:
    section = next(iter(SECTIONS.values()))
    for field in Settings.model_fields:
        section = SECTIONS.get(field, section)
        yield (section.name, file_key(section, field)), field


FIELDS: Mapping[tuple[str, str], str] = dict(_places())
"""(section, key) -> field."""
