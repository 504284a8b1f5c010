"""The most that one sandbox may ask for, whatever its node has: the same for live sandboxes, pools and jobs."""

from collections.abc import Iterator
from dataclasses import dataclass

from core.config import Settings
from services.jobspec import Resources
from services.sandbox_errors import WireInvalidError

__all__ = ["DEFAULT_CAPS", "SandboxCaps", "sandbox_caps"]


@dataclass(frozen=True, slots=True)
class SandboxCaps:
    """What the installation says; see the settings `sandbox_max_...`."""

    pids: int = 4096
    disk_bytes: int = 100 << 30

    def check_live(self, resources: Resources) -> None:
        """Raise WireInvalidError for the first limit of a live sandbox that is above its cap."""
        for name, asked, most in self._excesses(resources):
            message = _told(asked, most, unit="" if name == "pids" else "Mi")
            raise WireInvalidError("SANDBOX::INVALID_PARAMETER", message, field=f"resourceLimits.{name}")

    def excesses_of_job(self, resources: Resources) -> Iterator[tuple[str, str]]:
        """Give each limit of a job that is above its cap: the field of the job, and what is wrong."""
        for name, asked, most in self._excesses(resources):
            yield f"resources.{_JOB_FIELDS.get(name, name)}", _told(asked, most)

    def _excesses(self, resources: Resources) -> Iterator[tuple[str, int, int]]:
        """Give name, value and cap of each; of the disk in MiB, what was asked for rounded up."""
        if resources.pids > self.pids:
            yield "pids", resources.pids, self.pids
        if resources.disk_bytes > self.disk_bytes:
            yield "disk", -(-resources.disk_bytes >> 20), self.disk_bytes >> 20


DEFAULT_CAPS = SandboxCaps()


def sandbox_caps(settings: Settings) -> SandboxCaps:
    """Give what the settings say."""
    return SandboxCaps(pids=settings.sandbox_max_pids, disk_bytes=settings.sandbox_max_disk_bytes)


_JOB_FIELDS = {"disk": "disk_mb"}


def _told(asked: int, most: int, unit: str = "") -> str:
    return f"is {asked}{unit}; this installation gives one sandbox at most {most}{unit}"
