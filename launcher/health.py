"""Whether a program that runs alone works, for the health checks of a container engine."""

from enum import StrEnum
from uuid import UUID

from core.config import Settings, reachable_host
from launcher.errors import StartupError
from launcher.probes import DatabaseProbe, answers_ok

__all__ = ["Part", "check_health"]

FLOWER_PORT = 5555
INGRESS_HEALTH = "/status.ok"


class Part(StrEnum):
    """A program of the server."""

    API = "api"
    SCHEDULER = "scheduler"
    WORKER = "worker"
    INGRESS = "ingress"
    FLOWER = "flower"


def check_health(part: Part, settings: Settings) -> None:
    """Ask the program that runs with the same settings. Raises StartupError when it does not work."""
    if not _is_healthy(part, settings):
        raise StartupError(f"{part} does not work: see its log")


def _is_healthy(part: Part, settings: Settings) -> bool:
    if part is Part.API:
        return answers_ok(settings.api_port, "/readyz", host=reachable_host(settings.api_host))
    if part is Part.INGRESS:
        return answers_ok(settings.ingress_port, INGRESS_HEALTH, host=reachable_host(settings.ingress_host))
    if part is Part.FLOWER:
        return answers_ok(FLOWER_PORT, "/healthcheck")
    probe = DatabaseProbe(settings.database_url.get_secret_value())
    try:
        return probe.has_scheduler() if part is Part.SCHEDULER else probe.has_node(_read_node_id(settings))
    finally:
        probe.close()


def _read_node_id(settings: Settings) -> UUID:
    path = settings.home_path / "node" / "node.id"
    try:
        return UUID(path.read_text(encoding="ascii").strip())
    except (OSError, ValueError) as error:
        raise StartupError(f"no node id in {path}: the worker has not started") from error
