"""The most that one sandbox may ask for, whatever its node has: the same for live sandboxes, pools and jobs."""

from collections.abc import Iterator
from dataclasses import dataclass

from services.jobspec import Resources
from services.sandbox_errors import WireInvalidError

__all__ = ["DEFAULT_CAPS", "SandboxCaps"]


@dataclass(frozen=True, slots=True)
class SandboxCaps:
    """What the installation says; see the settings `sandbox_max_...`."""

    pids: int = 4096

    def check_live(self, resources: Resources) -> None:
        """Raise WireInvalidError for the first limit of a live sandbox that is above its cap."""
        if resources.pids > self.pids:
            raise WireInvalidError(
                "SANDBOX::INVALID_PARAMETER",
                _told(resources.pids, self.pids),
                field="resourceLimits.pids",
            )

    def excesses_of_job(self, resources: Resources) -> Iterator[tuple[str, str]]:
        """Give each limit of a job that is above its cap: the field of the job, and what is wrong."""
        if resources.pids > self.pids:
            yield "resources.pids", _told(resources.pids, self.pids)


DEFAULT_CAPS = SandboxCaps()


def _told(asked: int, most: int) -> str:
    return f"is {asked}; this installation gives one sandbox at most {most}"
